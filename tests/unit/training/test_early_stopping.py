"""A run that no longer improves ends, with the same decision after a restart and on every rank."""

from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, ConfigError
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.saving import EarlyStopping
from dpr.training.validations.protocol import Metrics
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples
from tests.helpers.training import tiny_trainer


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
    trainer: Any = Seen()
    trainer.best_by = lambda metrics: ("eval/mrr", True)
    callback = EarlyStopping(patience=1)
    for value in (1.0, 2.0, 3.0):
        callback.on_validate_end(trainer, {"eval/nll_loss": value})
    assert trainer.reasons == [] and "no eval/mrr" in caplog.text


def test_its_memory_is_that_of_the_checkpoint() -> None:
    first = EarlyStopping(patience=2)
    assert stops_after(first, [1.0, 2.0]) is None
    second = EarlyStopping(patience=2)
    second.load_state_dict(first.state_dict())
    assert stops_after(second, [1.5]) == 1


def trainer(folder: Path, *callbacks: Callback, name: str = "run", **options: Any) -> BiEncoderTrainer:
    dev_sets = [ListSource(make_samples(5, seed=1), "dev"), ListSource(make_samples(4, seed=2), "other")]
    options.setdefault("learning_rate", 1e-2)
    return tiny_trainer(folder, *callbacks, name=name, dev_sets=dev_sets, **options)


def stopped_run(folder: Path, **options: Any) -> int:
    options |= {"eval_every_steps": 1, "global_batch_size": 8}
    job = trainer(folder, EarlyStopping(patience=1, min_delta=100.0), **options)
    job.train()
    return job.progress.step


def test_a_run_that_was_stopped_stays_stopped(tmp_path: Path) -> None:
    encoder_folder(tmp_path / "encoder")
    assert run_on_ranks(stopped_run, 2, tmp_path) == [2, 2]
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert run_on_ranks(stopped_run, 2, tmp_path) == [2, 2]
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    with pytest.raises(CheckpointError, match=r"train\.learning_rate was 0\.01, is now 0\.02"):
        stopped_run(tmp_path, learning_rate=0.02)


def test_a_best_metric_that_is_none_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval/typo is not a metric .*eval/dev/nll_loss"):
        trainer(tmp_path, best_metric="eval/typo").train()
