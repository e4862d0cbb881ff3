"""Trackers get every metric, a resumed run continues the same run there, and one that fails costs a warning.
With the real packages."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.training.assembly import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.trackers import MLflow, TensorBoard, Tracker, WeightsAndBiases
from dpr.training.metrics import Metrics
from dpr.training.run import Run
from tests.helpers.patience import patient
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import make_trainer


def trainer(folder: Path, *callbacks: Callback, name: str = "run", **options: Any) -> BiEncoderTrainer:
    sets = [ListSource(make_samples(24))], [ListSource(make_samples(5, seed=1), "dev")]
    return make_trainer(
        tiny_model(folder / "encoder", dtype=torch.float32), *sets, folder / name, *callbacks, **options
    )


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
    assert "Broken takes no more metrics, from step 4 on: the server is gone" in caplog.text
    assert "Broken was not closed: still gone" in caplog.text
    finished = Broken(refused=0)
    trainer(tmp_path, finished, Broken(refused=0)).train()
    assert finished.seen == finished.ends == [] and finished.id == "first", "a finished run opens nothing"


def test_a_tracker_that_cannot_be_opened_refuses_a_new_run_and_costs_a_resumed_one_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        ConfigError, match="Broken cannot be opened: no route to host; mend that, or leave out callbacks"
    ):
        trainer(tmp_path, Broken(refused=None)).train()
    assert not list((tmp_path / "run").glob("dpr_biencoder*"))
    trainer(tmp_path, Broken(refused=0), max_steps=4).train()
    resumed = Broken(refused=None)
    trainer(tmp_path, resumed).train()
    assert "Broken takes no metrics of this resumed run: no route to host" in caplog.text
    assert resumed.seen == resumed.ends == [] and resumed.id == "first"


def test_a_run_that_fails_says_so_there(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_step_end(self, run: Run) -> None:
            raise ZeroDivisionError

    tracker = Broken(refused=0)
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, tracker, Failing()).train()
    assert tracker.ends == [True]


def test_mlflow_has_one_run_over_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow import MlflowClient

    # the kind of store that MLflow makes unasked
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    trainer(tmp_path, MLflow(project="test"), max_steps=4).train()
    client = MlflowClient()
    (experiment,) = [each.experiment_id for each in client.search_experiments() if each.name == "test"]
    (first,) = client.search_runs([experiment])
    trainer(tmp_path, MLflow(project="test")).train()
    (stored,) = client.search_runs([experiment])
    assert (
        stored.info.run_id == first.info.run_id
        and stored.info.run_name == "run"
        and stored.info.status == "FINISHED"
    )
    history = {
        name: client.get_metric_history(stored.info.run_id, name)
        for name in ("train/loss", "eval/nll_loss", "perf/mfu")
    }
    assert [each.step for each in history["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [each.step for each in history["eval/nll_loss"]] == [3, 4, 6]
    assert stored.data.params["train.batch_size"] == "8" and len(stored.data.params) > 60


def test_a_server_of_mlflow_that_is_not_there_is_told_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    for name in MLflow.patience:
        monkeypatch.setenv(name, "")  # so that it is taken away again
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    trainer(tmp_path, MLflow(project="test"), max_steps=2).train()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{unused.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(
            ConfigError, match=r"^MLflow cannot be opened: .*; mend that, or leave out tracking.mlflow=true$"
        ) as caught:
            trainer(tmp_path, MLflow(project="test"), name="other").train()
        assert "\n" not in str(caught.value)
        trainer(tmp_path, MLflow(project="test"), max_steps=4).train()
        assert time.monotonic() - start < patient(30)
    assert caplog.text.count("MLflow takes no metrics of this resumed run: ") == 1


def test_mlflow_takes_metrics_of_retrieval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = MLflow()
    job = trainer(tmp_path, tracker)
    tracker.open(job)
    tracker.send({"eval/dev/ndcg@10": 0.5}, 3)
    tracker.close(failed=True)
    stored = tracker._client.get_run(str(tracker.id))
    assert stored.data.metrics == {"eval/dev/ndcg_at_10": 0.5} and stored.info.status == "FAILED"


def test_tensorboard_has_every_metric_once_over_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tb is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer(tmp_path, TensorBoard(tmp_path / "tb"), max_steps=4).train()
    trainer(tmp_path, TensorBoard(tmp_path / "tb")).train()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in events.Scalars("eval/nll_loss")] == [3, 4, 6]
    assert {"perf/mfu", "optim/lr", "train/loss"} <= set(events.Tags()["scalars"])


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("the extra wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WeightsAndBiases(project="test", mode="offline")
    trainer(tmp_path, tracker, max_steps=2, config={"seed": 7}).train()
    (stored,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = stored.read_bytes()
    assert b"train/loss" in content and b"perf/mfu" in content
    again = WeightsAndBiases(project="test", mode="offline")
    job = trainer(tmp_path, again)
    job.resume()
    assert again.state_dict() == tracker.state_dict() != {}
    job.train()
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))) == 2
    assert os.environ["WANDB_SILENT"] == "true"


def test_trackers_are_switched_on_by_settings(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tb is not installed")
    from dpr.jobs.train import make_trackers
    from dpr.training.callbacks.usual import usual_callbacks
    from dpr.training.command_settings import BiEncoderTrainConfig

    config = BiEncoderTrainConfig(output_dir=str(tmp_path))
    assert make_trackers(config) == []
    usual = [type(callback).__name__ for callback in usual_callbacks(config.train, tmp_path)]
    config.tracking.tensorboard = True
    config.train.early_stopping.patience = 2
    found = [
        type(callback).__name__ for callback in usual_callbacks(config.train, tmp_path, make_trackers(config))
    ]
    place = usual.index("LogEvery")
    assert found == [*usual[:place], "TensorBoard", "EarlyStopping", *usual[place:]]


def test_a_missing_package_is_reported_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(
        ConfigError, match=r'tracking\.wandb=true needs the package \'wandb\': pip install -e "\.\[wandb\]"'
    ):
        WeightsAndBiases()
