"""Twenty global batches against an independent loop: plain Hugging Face BERT, plain softmax, plain AdamW."""

from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from dpr.core.records import Passage, TrainingSample
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import Curve, make_trainer

BATCHES, BATCH, ACCUMULATION, LIMIT = 20, 4, 2, 0.05


def plain_samples() -> list[TrainingSample]:
    """Every passage occurs once in the file, so that a plain softmax over the global batch is the whole truth."""
    samples = []
    for number, sample in enumerate(make_samples(BATCHES * BATCH, seed=3)):
        positive, negative = (
            Passage(f"{sample.positives[0].text} {kind} {number}", sample.positives[0].title)
            for kind in ("ba", "de")
        )
        samples.append(TrainingSample(sample.question, (positive,), (negative,)))
    return samples


def reference_curve(
    folder: Path, samples: list[TrainingSample], order: list[int]
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of the updates; the mean gradient of their global batches is clipped once."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = tiny_model(folder)
    towers = []
    for trained in (model.question_model, model.ctx_model):
        tower = AutoModel.from_config(trained.config, dtype=torch.float64)
        tower.load_state_dict(trained.backbone.state_dict(), strict=False)
        towers.append(tower.train())
    parameters = [
        parameter for tower in towers for name, parameter in tower.named_parameters() if "pooler" not in name
    ]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)
    losses, norms = [], []
    for step in range(updates := BATCHES // ACCUMULATION):
        total = 0.0
        for global_batch in range(step * ACCUMULATION, (step + 1) * ACCUMULATION):
            batch = [samples[row] for row in order[global_batch * BATCH : (global_batch + 1) * BATCH]]
            texts = [
                (passage.title, passage.text)
                for sample in batch
                for passage in (sample.positives[0], sample.hard_negatives[0])
            ]
            vectors = []
            for tower, inputs in zip(towers, ([sample.question for sample in batch], texts), strict=True):
                encoded = [
                    tokenizer(
                        *((text,) if isinstance(text, str) else text if text[0] else text[1:]),
                        truncation=True,
                        max_length=24,
                    )
                    for text in inputs
                ]
                padded = tokenizer.pad(
                    [{"input_ids": item["input_ids"]} for item in encoded], return_tensors="pt"
                )
                vectors.append(tower(**padded).last_hidden_state[:, 0])
            scores = vectors[0] @ vectors[1].T
            loss = torch.nn.functional.cross_entropy(scores, torch.arange(BATCH) * 2) / ACCUMULATION
            loss.backward()
            total += float(loss.detach())
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, LIMIT)))
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * ((step + 1) / 5 if step < 5 else 1 - (step - 5) / (updates - 5))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, norms


def test_twenty_global_batches_follow_an_independent_reference(tmp_path: Path) -> None:
    folder, curve = encoder_folder(tmp_path / "encoder"), Curve()
    samples = plain_samples()
    options = {"batch_size": BATCH, "num_train_epochs": 1, "gradient_accumulation_steps": ACCUMULATION}
    options |= {"learning_rate": 1e-2, "max_grad_norm": LIMIT, "lr_schedule": "linear", "warmup_steps": 5}
    trainer = make_trainer(tiny_model(folder), [ListSource(samples)], [], tmp_path / "run", curve, **options)
    order = [
        int(row)
        for index in range(BATCHES)
        for row in trainer.plan.dataset.iterator.global_batch(0, index).rows
    ]
    assert sorted(order) == list(range(BATCHES * BATCH)) != order
    trainer.train()
    expected, norms = reference_curve(folder, samples, order)
    assert max(abs(mine - theirs) for mine, theirs in zip(curve.losses, expected, strict=True)) < 1e-8
    assert max(expected) - min(expected) > 0.1, "a flat curve would prove little"
    assert min(norms) > LIMIT, "every update is clipped"
