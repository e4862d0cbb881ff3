"""Trackers get every metric, also over a restart, and one that fails costs a warning (with the real packages)."""

import importlib.util
import os
from functools import partial
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError
from dpr.training.callbacks import Callback
from dpr.training.callbacks.trackers import TensorBoard, Tracker, WeightsAndBiases
from dpr.training.run import Run
from dpr.training.validations.protocol import Metrics
from tests.helpers.serving import wait_until
from tests.helpers.training import tiny_trainer

trainer = partial(tiny_trainer, eval_at_start=False)


class Broken(Tracker):
    """Refuses the metrics of step ``refused``; at None, to be opened."""

    def __init__(self, refused: int | None) -> None:
        self.refused, self.seen, self.ends = refused, list[int](), list[bool]()

    def open(self, run: Run) -> None:
        if self.refused is None:
            raise ConnectionError("no route to host")
        self.id = self.id or "first"

    def send(self, metrics: Metrics, step: int) -> None:
        if step == self.refused:
            raise ConnectionError("the server is gone")
        self.seen.append(step)

    def close(self, *, failed: bool) -> None:
        self.ends.append(failed)
        raise ConnectionError("still gone")


def test_a_tracker_that_fails_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker, other = Broken(refused=4), Broken(refused=0)
    trainer(tmp_path, tracker, other).train()
    assert tracker.seen == [1, 2, 3, 3] and tracker.ends == []
    assert other.seen == [1, 2, 3, 3, 4, 5, 6, 6] and other.ends == [False]
    assert "Broken gets no more metrics after step 4: the server is gone" in caplog.text
    assert "Broken was not closed: still gone" in caplog.text
    finished = Broken(refused=0)
    trainer(tmp_path, finished, Broken(refused=0)).train()
    assert finished.seen == finished.ends == [] and finished.id == "first", "a finished run opens nothing"


def test_a_closed_tracker_refuses_a_new_run_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"cannot be opened: no route to host; .*leave out callbacks"):
        trainer(tmp_path, Broken(refused=None)).train()
    assert not list((tmp_path / "run").glob("dpr_biencoder*"))
    trainer(tmp_path, Broken(refused=0), max_steps=4).train()
    resumed = Broken(refused=None)
    trainer(tmp_path, resumed).train()
    assert "Broken gets no metrics of this resumed run: no route to host" in caplog.text
    assert resumed.seen == resumed.ends == [] and resumed.id == "first"


def test_a_run_that_fails_says_so_there(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_step_end(self, run: Run) -> None:
            raise ZeroDivisionError

    tracker = Broken(refused=0)
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, tracker, Failing()).train()
    assert tracker.ends == [True]


def test_tensorboard_has_every_metric_once_over_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tb is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer(tmp_path, TensorBoard(tmp_path / "tb"), max_steps=4).train()
    trainer(tmp_path, TensorBoard(tmp_path / "tb")).train()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in events.Scalars("eval/nll_loss")] == [3, 4, 6]
    assert {"perf/tokens_per_s", "optim/lr", "train/loss"} <= set(events.Tags()["scalars"])


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("the extra wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = WeightsAndBiases()
    trainer(tmp_path, tracker, max_steps=2, config={"seed": 7}).train()
    (stored,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    # Another process writes it, later on a busy machine.
    wait_until(lambda: b"train/loss" in stored.read_bytes())
    assert b"perf/tokens_per_s" in stored.read_bytes()
    again = WeightsAndBiases()
    job = trainer(tmp_path, again)
    job.resume()
    assert again.state_dict() == tracker.state_dict() != {}
    job.train()
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))) == 2
    assert os.environ["WANDB_SILENT"] == "true"


def test_trackers_are_switched_on_by_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tb is not installed")
    from dpr.jobs.train import make_trackers
    from dpr.training.bi_encoder_trainer import default_callbacks
    from dpr.training.command_settings import TrainCommand

    config = TrainCommand(output_dir=str(tmp_path))
    assert make_trackers(config) == []
    defaults = [type(callback).__name__ for callback in default_callbacks(config.train, tmp_path)]
    config.tracking.tensorboard = True
    config.train.early_stopping.patience = 2
    switched_on = default_callbacks(config.train, tmp_path, make_trackers(config))
    found = [type(callback).__name__ for callback in switched_on]
    place = defaults.index("LogEvery")
    assert found == [*defaults[:place], "TensorBoard", "EarlyStopping", *defaults[place:]]


def test_a_missing_package_is_reported_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"needs the package 'wandb': pip install"):
        WeightsAndBiases()
