"""Metrics of train sets and of the vectors of a global batch are the formulas on any number of processes."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.batch import BiEncoderBatch, Temperature
from dpr.data.iterators import Sampling
from dpr.losses.candidates import find_candidates
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import GlobalBatch, LossResult
from dpr.models.biencoder import TowerOptions
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback, batch_metrics
from dpr.training.run import Run
from dpr.training.validations.protocol import Metrics
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import Calling, make_trainer

EXACT = {"rel": 1e-12, "abs": 1e-12}
CASES: dict[str, dict[str, Any]] = {
    "direct": {},
    "cached": {"grad_cache_tokens": 40},
    "sharded": {"sharding": "fsdp2"},
}


def trainer_of(folder: Path, output_dir: Path, *callbacks: Any, **options: Any) -> BiEncoderTrainer:
    """Three updates of global batches of 12 from two sets of different sizes."""
    model = tiny_model(folder, options=TowerOptions(learn_temperature=True, temperature=0.5)).train()
    sets = [ListSource(make_samples(size, seed=size), name) for name, size in (("small", 20), ("large", 32))]
    given = {"global_batch_size": 12, "hard_negatives": 2, "learning_rate": 1e-2, "max_steps": 3}
    return make_trainer(model, sets, [], output_dir, *callbacks, **{**given, **options})


def logged(folder: Path, output_dir: Path, **options: Any) -> list[Metrics]:
    logs: list[Metrics] = []
    trainer = trainer_of(folder, output_dir, **options)
    trainer.callbacks.append(Calling("on_log", lambda run, metrics: logs.append(dict(metrics))))
    trainer.train()
    return [
        {name: own for name, own in line.items() if name.startswith(("pool/", "train/"))} for line in logs
    ]


def every_case(folder: Path, output_dir: Path, sample: int) -> dict[str, list[Metrics]]:
    mixed = Sampling(mixed=True, weights=[1, 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_metrics, "SAMPLE", sample)
        found = {
            name: logged(folder, output_dir / name, sampling=mixed, **case) for name, case in CASES.items()
        }
        return found | {"a set a global batch": logged(folder, output_dir / "apart")}


def test_they_are_the_same_on_any_ranks_cached_and_sharded(tmp_path: Path) -> None:
    sample = 5
    folder = encoder_folder(tmp_path / "encoder", initializer_range=0.5)
    (expected,) = run_on_ranks(every_case, 1, folder, tmp_path / "1", sample)
    names = {f"pool/{name}" for name in (*batch_metrics.OF_QUESTIONS, "effective_rank")}
    names |= {
        f"train/{key}/{what}" for key in ("small", "large") for what in ("loss", "in_batch_acc", "share")
    }
    assert len(expected["direct"]) == 3 and all(names <= line.keys() for line in expected["direct"])
    for results in run_on_ranks(every_case, 2, folder, tmp_path / "2", sample):
        for case, lines in results.items():
            like = expected["direct" if case in CASES else case]
            for number, (line, wanted) in enumerate(zip(lines, like, strict=True)):
                # Adam makes much of differences in gradients near 0
                close = EXACT if number == 0 else {"rel": 1e-6, "abs": 1e-6}
                assert line.keys() == wanted.keys() and line == pytest.approx(wanted, **close), case
    lines = expected["a set a global batch"]
    assert [sorted(name for name in line if name.endswith("/share")) for line in lines] != [
        ["train/large/share"]
    ] * 3
    assert all(line[name] == 1.0 for line in lines for name in line if name.endswith("/share")), (
        "a global batch is of one set"
    )


class Seen(Callback):
    """The vectors and the batches of every global batch, and what is made of them."""

    def __init__(self) -> None:
        self.global_batches: list[tuple[torch.Tensor, torch.Tensor, BiEncoderBatch, float]] = []

    def on_global_batch(
        self, run: Run, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> None:
        assert not questions.requires_grad and not torch.is_grad_enabled()
        self.global_batches.append(
            (
                questions.clone(),
                global_batch.contexts.detach().clone(),
                batch,
                float(global_batch.temperature),
            )
        )


def test_they_are_the_formulas(tmp_path: Path) -> None:
    """Question by question and passage by passage, in loops."""
    seen, logs = Seen(), list[Metrics]()
    folder = encoder_folder(tmp_path / "encoder", initializer_range=0.5)
    options = {"sampling": Sampling(mixed=True, weights=[1, 1]), "gradient_accumulation_steps": 2}
    trainer = trainer_of(folder, tmp_path / "run", seen, log_batch_step=2, max_steps=4, **options)
    trainer.callbacks.append(Calling("on_log", lambda run, metrics: logs.append(dict(metrics))))
    trainer.train()
    assert len(seen.global_batches) == 8
    for line, first in zip(logs, (0, 4), strict=True):
        wanted = formulas(*seen.global_batches[first + 2])
        assert {name: line[f"pool/{name}"] for name in wanted} == pytest.approx(wanted, **EXACT)
        of_sets: dict[str, list[tuple[float, bool]]] = {"small": [], "large": []}
        for questions, contexts, batch, temperature in seen.global_batches[first : first + 4]:
            for row, number in enumerate(batch.datasets):
                positive, competitors = scores_of(row, questions, contexts, batch)
                scores = torch.tensor([positive, *competitors], dtype=torch.float64) / temperature
                loss = torch.logsumexp(scores, 0) - positive / temperature
                of_sets[("small", "large")[number]].append((float(loss), positive > max(competitors)))
        for name, values in of_sets.items():
            losses, correct = zip(*values, strict=True)
            found = [line[f"train/{name}/{kind}"] for kind in ("loss", "in_batch_acc", "share")]
            wanted = [sum(losses) / len(values), sum(correct) / len(values), len(values) / 48]
            assert found == pytest.approx(wanted, **EXACT)


def scores_of(
    row: int, questions: torch.Tensor, contexts: torch.Tensor, batch: BiEncoderBatch
) -> tuple[float, list[float]]:
    """A question's score with its positive, and with all that compete with it."""
    ids = [tuple(pair) for pair in batch.context_ids.tolist()]
    known = {
        tuple(pair)
        for pair, valid in zip(
            batch.known_positive_ids[row].tolist(), batch.known_positive_valid[row].tolist(), strict=True
        )
        if valid
    }
    competitors = dict[Any, float]()
    for slot, passage in enumerate(ids):
        if batch.context_valid[slot] and passage not in known | {ids[int(batch.positive_idx[row])]}:
            competitors[passage] = float(questions[row] @ contexts[slot])
    return float(questions[row] @ contexts[batch.positive_idx[row]]), list(competitors.values())


def formulas(
    questions: torch.Tensor, contexts: torch.Tensor, batch: BiEncoderBatch, temperature: float
) -> dict[str, float]:
    columns: dict[str, list[float]] = {name: [] for name in batch_metrics.OF_QUESTIONS}
    for row in range(len(batch)):
        positive, competitors = scores_of(row, questions, contexts, batch)
        columns["positive_similarity"].append(positive)
        columns["negative_similarity"].append(sum(competitors) / len(competitors))
        columns["margin"].append(positive - max(competitors))
        columns["temperature"].append(temperature)
        columns["candidates"].append(1 + len(competitors))
    distinct = list(
        {
            tuple(pair): slot
            for slot, pair in reversed(list(enumerate(batch.context_ids.tolist())))
            if batch.context_valid[slot]
        }.values()
    )
    strengths = torch.linalg.svdvals(torch.nn.functional.normalize(contexts[distinct], dim=1))
    shares = strengths[strengths > 1e-9] / strengths.sum()
    found = {name: sum(values) / len(values) for name, values in columns.items()}
    found["effective_rank"] = float((-(shares * shares.log()).sum()).exp())
    return found


def test_one_train_set_has_no_metrics_of_its_own_and_a_users_loss_may_count_alone(tmp_path: Path) -> None:
    class Counting(BiEncoderNllLoss):
        def __call__(
            self, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch | None = None
        ) -> LossResult:
            losses, correct = super().__call__(questions, global_batch, batch)
            return LossResult(losses, correct.sum())

    folder = encoder_folder(tmp_path / "encoder")
    which, count = (
        logged(folder, tmp_path / str(number), loss=loss)
        for number, loss in enumerate((BiEncoderNllLoss(), Counting()))
    )
    assert [line["train/in_batch_acc"] for line in which] == pytest.approx(
        [line["train/in_batch_acc"] for line in count], **EXACT
    )
    trainer = trainer_of(folder, tmp_path / "alone")
    alone = make_trainer(trainer.model, [ListSource(make_samples(20))], [], tmp_path / "one", max_steps=1)
    alone.train()
    names = (tmp_path / "one" / "metrics.jsonl").read_text()
    assert "train/loss" in names and "train/tiny" not in names and "pool/margin" in names


def test_a_collapse_is_named_at_the_next_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rate that ruins the model, and one that does not."""
    folder = encoder_folder(tmp_path / "encoder", initializer_range=0.5)
    for rate, is_ruined in ((1e-3, False), (1.0, True)):
        caplog.clear()
        steps = {"max_steps": 50, "num_train_epochs": 30, "log_batch_step": 25}
        trainer_of(folder, tmp_path / f"{rate}", learning_rate=rate, **steps).train()
        found = [record.message for record in caplog.records if "collapsed" in record.message]
        assert len(found) == is_ruined, caplog.text
        assert not is_ruined or "train.learning_rate=0.1" in found[0]


def test_nobody_waits_for_the_device_before_the_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device has shapes and no values: whoever asks it for a value fails."""
    trainer = trainer_of(encoder_folder(tmp_path / "encoder"), tmp_path / "run")
    # which does not know this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **options: nullcontext())
    batch, meta, vectors = (
        trainer.plan.dataset[0, 0],
        torch.device("meta"),
        torch.zeros(36, 16, device="meta"),
    )
    known = batch.known_positive_ids, batch.known_positive_valid
    slots = batch.positive_idx, batch.context_valid, batch.context_ids
    candidates = find_candidates("distinct", *slots, *known).to(meta)
    global_batch = GlobalBatch(
        vectors, candidates, Temperature(), vectors[:12], slice(0, 36), slice(0, 12), batch.context_ids
    )
    callback = batch_metrics.GlobalBatchMetrics(1)
    callback.on_global_batch(trainer, vectors[:12], global_batch, batch)
    trainer.metrics._device = meta
    trainer.metrics.begin()
    trainer.metrics.add(
        LossResult(torch.zeros(12, device=meta), torch.zeros(12, dtype=torch.bool, device=meta)), batch
    )
    seen = [callback._of_questions, callback._cosines]
    assert [tensor.shape for tensor in seen] == [(12, 5), (36, 36)]
    assert {tensor.device for tensor in seen} == {meta}


def test_vectors_that_are_no_numbers_are_left_out() -> None:
    assert batch_metrics.effective_rank(torch.eye(8)) == pytest.approx(8.0)
    assert math.isnan(batch_metrics.effective_rank(torch.full((8, 8), math.nan)))
