"""Ending a run that has stopped getting better; the decision is the same after a restart and on every
rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.formats import checkpoints
from dpr.training.assembly import BiEncoderTrainer
from dpr.training.callbacks import Callback, FunctionCallback
from dpr.training.callbacks.usual import EarlyStopping, LoadBest
from dpr.training.metrics import Metrics
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer


class Seen:
    """A trainer as far as early stopping looks at it."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.validations: list[object] = []

    def request_stop(self, reason: str) -> None:
        self.reasons.append(reason)

    def best_by(self, metrics: Metrics) -> tuple[str, bool]:
        return next(iter(metrics)), False


def stops_after(callback: EarlyStopping, values: list[float], name: str = "eval/nll_loss") -> int | None:
    trainer: Any = Seen()
    for number, value in enumerate(values, 1):
        callback.on_validate_end(trainer, {name: value})
        if trainer.reasons:
            return number
    return None


@pytest.mark.parametrize(
    ("options", "values", "stop"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.0], 4),
        ({"patience": 2}, [3.0, 3.1, 2.9, 3.0, 2.8], None),
        ({"patience": 1, "min_delta": 0.5}, [3.0, 2.7], 2),
        ({"patience": 2, "min_delta": 0.5}, [3.0, 2.7, 2.4, 2.3, 2.0], 5),
        ({"patience": 1, "metric": "eval/nll_loss", "highest": True}, [0.1, 0.2, 0.2], 3),
        ({"patience": 1}, [float("nan")], 1),
    ],
)
def test_when_it_stops(options: dict[str, Any], values: list[float], stop: int | None) -> None:
    assert stops_after(EarlyStopping(**options), values) == stop


def test_another_metric_starts_over() -> None:
    callback = EarlyStopping(patience=2)
    assert stops_after(callback, [1.0, 2.0]) is None
    assert stops_after(callback, [50.0, 49.0, 49.5], name="eval/avg_rank") is None
    assert stops_after(callback, [49.5], name="eval/avg_rank") == 1


def test_a_metric_that_is_not_there_is_a_warning_and_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    assert stops_after(EarlyStopping(patience=1, metric="eval/mrr"), [1.0, 2.0, 3.0]) is None
    assert "no eval/mrr, only eval/nll_loss" in caplog.text


def test_its_memory_is_that_of_the_checkpoint() -> None:
    first = EarlyStopping(patience=2)
    assert stops_after(first, [1.0, 2.0]) is None
    second = EarlyStopping(patience=2)
    second.load_state_dict(first.state_dict())
    assert stops_after(second, [1.5]) == 1


def trainer(folder: Path, *callbacks: Callback, name: str = "run", **options: Any) -> BiEncoderTrainer:
    sets = (
        [ListSource(make_samples(24))],
        [ListSource(make_samples(5, seed=1), "dev"), ListSource(make_samples(4, seed=2), "other")],
    )
    options.setdefault("learning_rate", 1e-2)
    return make_trainer(
        tiny_model(folder / "encoder", dtype=torch.float32), *sets, folder / name, *callbacks, **options
    )


def stopped_run(folder: Path) -> int:
    job = trainer(folder, EarlyStopping(patience=1, min_delta=100.0), eval_every_steps=1, global_batch_size=8)
    job.train()
    return job.progress.step


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_that_was_stopped_stays_stopped(tmp_path: Path, num_ranks: int) -> None:
    encoder_folder(tmp_path / "encoder")
    assert run_on_ranks(stopped_run, num_ranks, tmp_path) == [2] * num_ranks
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert run_on_ranks(stopped_run, num_ranks, tmp_path) == [2] * num_ranks
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_the_best_is_chosen_by_the_metric_that_was_named_and_loaded_at_the_end(tmp_path: Path) -> None:
    values: dict[int, float] = {}

    def note(trainer: BiEncoderTrainer, metrics: Metrics) -> None:
        values[trainer.progress.step] = metrics["eval/other/nll_loss"]

    options = {
        "best_metric": "eval/other/nll_loss",
        "best_is_highest": True,
        "eval_every_steps": 1,
        "keep_last": 1,
    }
    job = trainer(
        tmp_path, FunctionCallback(note, when="validate_end"), LoadBest(), num_train_epochs=3, **options
    )
    best = job.train()
    assert best == max(values.values()) > min(values.values())
    first = min(step for step, value in values.items() if value == best)
    assert job.progress.best_checkpoint == f"dpr_biencoder.step{first}"
    stored = checkpoints.read_tensors(tmp_path / "run" / job.progress.best_checkpoint, checkpoints.MODEL_FILE)
    assert all(torch.equal(tensor, stored[name]) for name, tensor in job.model.weights().items())
    with pytest.raises(
        ConfigError, match=r"train\.best_metric=eval/typo is not a metric .*eval/dev/nll_loss"
    ):
        trainer(tmp_path, name="typo", best_metric="eval/typo").train()


def test_a_user_defined_metric_is_the_mean_over_questions_on_any_number_of_ranks(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder")
    figures = [run_on_ranks(own_figures, ranks, tmp_path)[0] for ranks in (1, 2)]
    assert figures[0] == pytest.approx(figures[1], abs=1e-6)  # fp32 sums in another order
    assert figures[0]["eval/best"] == figures[0]["eval/in_batch_acc"] != figures[0]["eval/dev/best"]
    assert {"eval/avg_rank", "eval/best", "eval/nll_loss"} <= figures[0].keys(), (
        "they are there beside the average rank too"
    )


def own_figures(folder: Path) -> Metrics:
    job = trainer(
        folder,
        dev_batch_size=4,
        metrics={"best": is_best},
        val_av_rank_start_epoch=0,
        global_batch_size=8,
        name="own",
    )
    job.progress.step = 1
    return job.validate()


def is_best(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return scores.argmax(dim=1) == labels


def test_a_metric_of_the_wrong_shape_is_refused_before_training(tmp_path: Path) -> None:
    job = trainer(tmp_path, metrics={"mean": lambda scores, labels: scores.mean()})
    with pytest.raises(
        ConfigError,
        match=r"metric mean returned of shape \(\); expected a tensor with one value per question",
    ):
        job.train()
    assert job.progress.step == 0


def test_functions_are_called_when_they_are_due_over_restarts() -> None:
    called: list[int] = []

    def play(callback: FunctionCallback, moment: str, steps: range) -> None:
        for step in steps:
            trainer: Any = SimpleNamespace(progress=SimpleNamespace(step=step))
            getattr(callback, moment)(trainer)

    def make(**options: Any) -> FunctionCallback:
        called.clear()
        return FunctionCallback(lambda trainer: called.append(trainer.progress.step), **options)

    play(make(every=3), "on_step_end", range(1, 10))
    assert called == [3, 6, 9]
    play(make(every=3, when="before_optimizer_step"), "on_before_optimizer_step", range(9))
    assert called == [2, 5, 8], "the update that makes a step divisible by three"
    callback = make(every=2, when="epoch_end", once=True)
    play(callback, "on_epoch_end", range(10, 11))
    again = FunctionCallback(
        lambda trainer: called.append(trainer.progress.step), every=2, when="epoch_end", once=True
    )
    again.load_state_dict(callback.state_dict())
    play(again, "on_epoch_end", range(20, 24))
    assert called == [20]
    with pytest.raises(ConfigError, match="when=batch_end is not a moment"):
        make(when="batch_end")
