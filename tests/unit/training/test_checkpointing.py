"""The folder of a run survives kills and several starts; where a disk refuses checkpoints the best is one that exists."""

import json
import logging
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, DprError
from dpr.formats import checkpoints, run_folders
from dpr.models.biencoder import BiEncoder
from dpr.storage import durable
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import Callback
from dpr.training.callbacks.saving import LoadBest
from dpr.training.checkpointing import CheckpointFolder
from dpr.training.run import Run
from dpr.training.validations.protocol import Metrics, Validation
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import make_trainer


class Killed(BaseException):
    """Stands for SIGKILL: nothing tidies up after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Dies at the ``number``-th file operation (from 0)."""
    calls = [0]

    def counted(name: str, module: object) -> None:
        real = getattr(module, name)

        def replaced(*arguments: object, **options: object) -> object:
            calls[0] += 1
            if calls[0] > number:
                raise Killed
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, replaced)

    for name in ("open", "rename", "replace", "mkdir", "rmdir", "unlink"):
        counted(name, os)
    counted("rmtree", durable.shutil)


def test_a_kill_at_any_moment_of_the_start_does_not_stop_the_next_start(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / f"run-{number}"
        first = CheckpointFolder(folder)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number)
            try:
                first.prepare()
                done = True
            except Killed:
                done = False
        again = CheckpointFolder(folder)
        again.prepare()
        again.lock.release()
        assert {path.name for path in folder.iterdir()} <= {"run.lock"}
        if done:
            break
    assert 1 < number < 39


def start_and_tell(folder: Path, together: Any, reported: Any) -> None:
    checkpoints = CheckpointFolder(folder)
    together.wait()
    try:
        checkpoints.prepare()
        reported.put("")
    except DprError as error:
        reported.put(str(error) if isinstance(error, CheckpointError) else repr(error))
    together.wait()  # none releases the lock before all have asked for it


def test_of_several_starts_at_once_all_but_one_name_the_other_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    together, reported = context.Barrier(4), context.Queue()
    given = tmp_path / "run", together, reported
    processes = [context.Process(target=start_and_tell, args=given) for _ in range(4)]
    for process in processes:
        process.start()
    messages = sorted(reported.get() for _ in processes)
    for process in processes:
        process.join()
    assert messages[0] == ""
    assert all("another run is writing here" in message for message in messages[1:]), messages


class Falling(Validation):
    """A metric that is best at first, then at each of the steps given."""

    def __init__(self, values: dict[int, float]) -> None:
        self.values, self.run = values, None

    def __call__(self, model: BiEncoder) -> Metrics:
        assert self.run is not None
        return {"eval/falling": self.values[self.run.progress.step]}

    def lower_is_better(self, name: str) -> bool:
        return True

    run: Run | None


class FullDisk(Callback):
    """The disk is full while the steps given are saved."""

    def __init__(self, validation: Falling, full_at: tuple[int, ...], patch: pytest.MonkeyPatch) -> None:
        self.validation, self.full_at, self.patch = validation, full_at, patch

    def on_train_begin(self, run: Run) -> None:
        self.validation.run, write = run, checkpoints.write_tensors

        def refused(*arguments: Any) -> None:
            if run.progress.step in self.full_at:
                raise OSError(28, "No space left on device")
            write(*arguments)

        self.patch.setattr(checkpoints, "write_tensors", refused)


def job(
    folder: Path,
    patch: pytest.MonkeyPatch,
    full_at: tuple[int, ...],
    values: dict[int, float],
    *,
    load_best: bool = False,
    **options: Any,
) -> BiEncoderTrainer:
    validation = Falling(values)
    settings = {"batch_size": 5, "num_train_epochs": 1, "eval_every_steps": 1, "eval_at_start": False}
    settings |= {"best_metric": "eval/falling", "validations": [validation], **options}
    model = tiny_model(folder / "encoder")
    sets = [ListSource(make_samples(20))]
    full = FullDisk(validation, full_at, patch)
    further = [LoadBest()] if load_best else []
    return make_trainer(model, sets, [], folder / "run", full, *further, **settings)


VALUES = {1: 3.0, 2: 2.0, 3: 1.0, 4: 2.5}


def test_the_best_is_the_best_that_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = job(tmp_path, monkeypatch, (3,), VALUES, keep_last=1, load_best=True)
    assert trainer.train() == 2.0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["best_checkpoint"] == trainer.progress.best_checkpoint == "dpr_biencoder.step2"
    kept = {path.name for path in run_folders.checkpoint_folders(tmp_path / "run")}
    assert kept == {"dpr_biencoder.step2", "dpr_biencoder.step4"}
    opened = [BiEncoder.load(place) for place in (tmp_path / "run", tmp_path / "run" / "dpr_biencoder.step2")]
    assert opened[0].fingerprint == opened[1].fingerprint == trainer.model.float().fingerprint


def test_a_best_checkpoint_that_was_removed_is_said_and_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job(tmp_path, monkeypatch, (), VALUES, max_steps=3).train()
    shutil.rmtree(tmp_path / "run" / "dpr_biencoder.step3")
    with caplog.at_level(logging.WARNING, "dpr"):
        (tmp_path / "run" / "run.json").write_text(
            json.dumps({"best_checkpoint": "dpr_biencoder.step3", "last_checkpoint": "dpr_biencoder.step2"})
        )
        assert run_folders.resolve_checkpoint(tmp_path / "run").name == "dpr_biencoder.step2"
        assert "the checkpoint dpr_biencoder.step3 is missing" in caplog.text
    monkeypatch.undo()
    state = tmp_path / "run" / "dpr_biencoder.step2" / checkpoints.STATE_FILE
    stored = json.loads(state.read_text())
    stored["progress"]["best_checkpoint"], stored["progress"]["best_value"] = "dpr_biencoder.step9", 0.5
    state.write_text(json.dumps(stored))
    manifest = tmp_path / "run" / "dpr_biencoder.step2" / "manifest.json"
    manifest.write_text(_with_file(manifest, state))
    again = job(tmp_path, monkeypatch, (), VALUES, max_steps=3, load_best=True)
    assert again.train() == 1.0
    assert again.progress.best_checkpoint == "dpr_biencoder.step3"


def _with_file(manifest: Path, file: Path) -> str:
    from dpr.storage.durable import describe_file

    value = json.loads(manifest.read_text())
    value["files"][file.name] = describe_file(file)
    return json.dumps(value)


@pytest.mark.parametrize(
    ("full_at", "left", "every"), [((4,), [3, 2, 1], 1), ((3, 4), [2, 1], 1), ((4,), [], 0)]
)
def test_a_run_whose_last_step_is_not_saved_fails_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: tuple[int, ...], left: list[int], every: int
) -> None:
    with pytest.raises(CheckpointError, match=r"ended at step 4, but that step could not be saved"):
        job(tmp_path, monkeypatch, full_at, VALUES, eval_every_steps=every).train()
    assert (tmp_path / "run" / "run.json").exists() == bool(left)
    folders = run_folders.checkpoint_folders(tmp_path / "run")
    steps = [int(path.name.rpartition("step")[2]) for path in folders]
    assert steps == left
    monkeypatch.undo()
    assert job(tmp_path, monkeypatch, (), VALUES).train() == 1.0
