"""``compat=dpr`` against the original's loop, written down again on the padded windows of a plain BERT."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from dpr.core.records import Passage, TrainingSample
from dpr.core.settings import drop_unused
from dpr.formats.training_files.dpr import write_training_set
from dpr.jobs.train import build_model, open_sets, run
from dpr.models.settings import TowerSettings
from dpr.training.command_settings import TrainCommand
from dpr.training.data_sets import resolve_training_files
from dpr.training.settings import TrainNode
from tests.helpers.original import nested_params, original_extras, original_names, write_original
from tests.helpers.tiny import encoder_folder, make_samples, tiny_model
from tests.helpers.training import Curve, trainer_of

STEPS, BATCH, WARMUP, RATE, CLIP, DECAY = 20, 4, 5, 1e-3, 2.0, 0.01
WINDOW = 24
RANKED = {"max_qs": 5, "hard_neg": 2, "other_neg": 2}


class Original:
    """The original's two towers and what it does with them."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        state = torch.load(file, weights_only=False)["model_dict"]
        self.towers = {}
        for name in ("question_model", "ctx_model"):
            tower = BertModel(
                BertConfig.from_pretrained(
                    str(folder), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
                )
            )
            own = {
                key.removeprefix(name + "."): value
                for key, value in state.items()
                if key.startswith(name + ".")
            }
            own.pop("embeddings.position_ids")
            tower.load_state_dict(own, strict=True)
            self.towers[name] = tower.train()

    def encode(self, name: str, texts: list[tuple[str, ...]]) -> torch.Tensor:
        rows = []
        for text in texts:
            tokens = self.tokenizer(*text, truncation="longest_first", max_length=WINDOW)["input_ids"]
            tokens = tokens + [self.tokenizer.pad_token_id] * (WINDOW - len(tokens))
            tokens[-1] = self.tokenizer.sep_token_id
            rows.append(tokens)
        ids = torch.tensor(rows)
        mask = (ids != self.tokenizer.pad_token_id).long()
        output = self.towers[name](input_ids=ids, token_type_ids=torch.zeros_like(ids), attention_mask=mask)
        vectors: torch.Tensor = output.last_hidden_state[:, 0]
        return vectors

    def scores(
        self, batch: list[TrainingSample], num_other: int, num_hard: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, M) and the columns of the positives."""
        slots: list[Passage] = []
        positives = []
        for sample in batch:
            hard = list(sample.hard_negatives) or list(sample.other_negatives)
            positives.append(len(slots))
            slots += [sample.positives[0], *sample.other_negatives[:num_other], *hard[:num_hard]]
        questions = self.encode("question_model", [(one.question.replace("\u2019", "'"),) for one in batch])
        passages = self.encode(
            "ctx_model", [(p.title, p.text.strip()) if p.title else (p.text.strip(),) for p in slots]
        )
        return questions @ passages.T, torch.tensor(positives)

    def train(self, samples: list[TrainingSample], order: list[int]) -> list[float]:
        named = [item for tower in self.towers.values() for item in tower.named_parameters()]
        plain = [parameter for name, parameter in named if "bias" in name or "LayerNorm.weight" in name]
        decayed = [each for name, each in named if not ("bias" in name or "LayerNorm.weight" in name)]
        optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
            lr=RATE,
            eps=1e-8,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: step / WARMUP if step < WARMUP else max(1e-7, (STEPS - step) / (STEPS - WARMUP)),
        )
        losses = []
        for step in range(STEPS):
            scores, positives = self.scores(
                [samples[row] for row in order[step * BATCH : (step + 1) * BATCH]], 1, 1
            )
            loss = torch.nn.functional.nll_loss(torch.log_softmax(scores, dim=1), positives)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    @torch.no_grad()
    def nll(self, samples: list[TrainingSample], batch_size: int) -> tuple[float, int, int]:
        """Mean over full batches of the batch's loss, questions whose positive came first, questions."""
        losses, correct, batches = [], 0, len(samples) // batch_size
        for number in range(batches):
            scores, positives = self.scores(samples[number * batch_size : (number + 1) * batch_size], 1, 1)
            losses.append(float(torch.nn.functional.nll_loss(torch.log_softmax(scores, dim=1), positives)))
            correct += int((scores.argmax(1) == positives).sum())
        return sum(losses) / batches, correct, batches * batch_size

    @torch.no_grad()
    def rank(
        self, samples: list[TrainingSample], batch_size: int, max_questions: int, others: int, hards: int
    ) -> tuple[float, float, int]:
        """Lowest and highest mean place of the positives, depending on how ties fall, and the number of questions."""
        taken: list[TrainingSample] = []
        for number in range(len(samples) // batch_size):
            taken += samples[number * batch_size : (number + 1) * batch_size]
            if len(taken) > max_questions:
                break
        scores, positives = self.scores(taken, others, hards)
        gold = scores.gather(1, positives[:, None])
        tied = ((scores - gold).abs() < 1e-5).sum(1) - 1
        higher = (scores > gold + 1e-5).sum(1)
        return float(higher.float().mean()), float((higher + tied).float().mean()), len(taken)


def samples_of(count: int, seed: int, *, most: int = 9) -> list[TrainingSample]:
    """Some questions have no negatives, and many passages occur for several questions."""
    return [
        replace(
            sample, hard_negatives=sample.hard_negatives[:most], other_negatives=sample.other_negatives[:most]
        )
        for sample in make_samples(count, seed=seed, num_passages=15)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An encoder, an original checkpoint ``x.cp`` of an encoder that is not here, train.json and dev.json."""
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    # Wide initial weights, so that scores differ visibly.
    encoder_folder(tmp_path / "bert", initializer_range=0.4)
    weights = tiny_model(tmp_path / "bert", dtype=torch.float32).weights()
    write_original(tmp_path / "x.cp", original_extras(original_names(weights), 16), nested_params("not/here"))
    write_training_set(tmp_path / "train.json", samples_of(STEPS * BATCH, 3, most=1))
    write_training_set(tmp_path / "dev.json", samples_of(13, 4))
    return tmp_path


def config_of(folder: Path, **changes: Any) -> TrainCommand:
    given = {"batch_size": BATCH, "dev_batch_size": 4, "hard_negatives": 1, "other_negatives": 1}
    given |= {"learning_rate": RATE, "warmup_steps": WARMUP, "weight_decay": DECAY, "max_grad_norm": CLIP}
    given |= {"num_train_epochs": 1, "log_batch_step": 1, "eval_per_epoch": 0, "num_workers": 0}
    given |= {f"val_av_rank_{name}": count for name, count in RANKED.items()}
    train = TrainNode(**given)
    changes = changes or {"train_datasets": [str(folder / "train.json")]}
    config = TrainCommand(
        model_file=str(folder / "x.cp"),
        output_dir=str(folder / "run"),
        compat="dpr",
        train=train,
        encoder=TowerSettings(pretrained_model_cfg=str(folder / "bert"), dropout=0.0),
        **changes,
    )
    drop_unused(config)  # without a training set, what is about training
    config.check()
    return config


def trained(folder: Path, config: TrainCommand) -> tuple[list[float], list[int]]:
    """The curve, and the rows in the order they were trained on."""
    train_sets = open_sets(resolve_training_files([str(folder / "train.json")], {}), config)
    trainer = trainer_of(config, build_model(config), train_sets, [])
    curve = Curve()
    trainer.callbacks.append(curve)
    order = [
        int(row)
        for global_batch in range(STEPS)
        for row in trainer.plan.dataset.iterator.global_batch(0, global_batch).rows
    ]
    trainer.train()
    return curve.losses, order


def test_twenty_steps_follow_the_original_with_the_preset_alone(folder: Path) -> None:
    for compat, is_near in (("dpr", True), (None, False)):
        config = config_of(folder)
        config.compat = compat
        losses, order = trained(folder, config)
        samples = samples_of(STEPS * BATCH, 3, most=1)
        expected = Original(folder / "x.cp", folder / "bert").train(samples, order)
        worst = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
        assert worst < 2e-5 if is_near else worst > 1e-2
        assert max(expected) - min(expected) > 0.3, "a flat curve would prove little"
        shutil.rmtree(folder / "run")


def test_the_gradient_is_clipped_as_if_it_were_divided_by_the_number_of_processes(folder: Path) -> None:
    limits = [config_of(folder).gradient_limit(size) for size in (1, 8)]
    assert limits == [CLIP, 8 * CLIP]


def test_prefixes_belong_to_training(folder: Path) -> None:
    """As in the original, ``special_token`` does not change the metrics of a validation."""
    metrics = []
    for compat in ("dpr", None):
        for prefix in (None, "ba"):
            config = config_of(
                folder,
                dev_datasets=["dev"],
                datasets={"dev": {"file": str(folder / "dev.json"), "special_token": prefix}},
            )
            config.compat = compat
            metrics.append(run(config))
    assert metrics[0] == metrics[1]
    assert metrics[2] != metrics[3]


def test_evaluation_gives_the_metrics_of_the_original(folder: Path) -> None:
    run(config_of(folder, dev_datasets=[str(folder / "dev.json")]))
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    original, samples = Original(folder / "x.cp", folder / "bert"), samples_of(13, 4)
    loss, correct, questions = original.nll(samples, 4)
    assert questions == 12
    assert 0 < correct < questions
    print(f"difference of the NLL: {abs(metrics['eval/nll_loss'] - loss):.1e}")
    assert metrics["eval/nll_loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["eval/in_batch_acc"] * questions == pytest.approx(correct, abs=1e-9)
    low, high, ranked = original.rank(samples, 4, 5, 2, 2)
    assert ranked == 8
    assert low < high  # there are ties
    assert (metrics["eval/avg_rank_low"], metrics["eval/avg_rank_high"]) == pytest.approx(
        (low, high), abs=1e-6
    )
    assert low <= metrics["eval/avg_rank"] <= high


def test_what_the_metrics_are_made_of_shows(folder: Path) -> None:
    """Each part of the preset matters here: without it the metrics differ."""
    dev = [str(folder / "dev.json")]
    expected = run(config_of(folder, dev_datasets=dev))
    for change in ("compat", "candidates", "trailing_sep"):
        config = config_of(folder, dev_datasets=dev)
        if change == "compat":
            config.compat = None
        elif change == "candidates":
            config.loss.candidates = "distinct"
        else:
            config.encoder.dpr_trailing_sep = False
        assert abs((run(config) or 0) - (expected or 0)) > 1e-3, change
