"""SIGKILL of a whole run: rerunning the same command ends with bitwise the weights of an undisturbed run."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

from dpr.formats.checkpoints import MODEL_FILE, read_tensors
from dpr.formats.run_folders import checkpoint_folders
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import durable_folder, verify_folder
from dpr.storage.leftovers import remove_leftovers
from tests.faults import injections
from tests.faults.conftest import Case, Trial, fault
from tests.faults.runs import LAST_STEP, SAVE_EVERY, Run, Workshop, final_hash, saved_steps
from tests.helpers.jobs import train as evaluate

POINTS = (
    "in the middle of a file",
    "while pruning",
    "before the temporary folder",
    "before the manifest",
    "before the rename",
    "after the rename",
)


def check_little_is_lost(killed: Run, again: Run) -> None:
    """At most the updates since the last save that was due are done again."""
    done = [int(step) for step in re.findall(r"step (\d+)/", killed.text)]
    went_on = [int(step) for step in re.findall(r"resuming from .* at step (\d+)", again.rank_text(0))]
    lost = max(done, default=0) - max(went_on, default=0)
    assert lost <= SAVE_EVERY, f"{lost} updates were lost"


@fault(
    "A1",
    "SIGKILL of all processes at a random moment",
    "same command again: equal weights, at most one save interval lost",
    trials=50,
)
def test_killed_at_a_random_moment(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    ranks = 1 if trial.number % 5 == 4 else 2
    killed = workshop.start(trial.output_dir, ranks=ranks)
    if trial.number % 4 != 1:  # the fourth part meets it while it starts
        killed.wait_for(rf"step {trial.random.randint(1, LAST_STEP - 1)}/")
    time.sleep(trial.random.uniform(0, 0.12))
    killed.kill()
    assert -9 in killed.wait(), "it had ended before it was killed"
    again = workshop.finish(trial.output_dir, ranks=ranks)
    assert final_hash(trial.output_dir) == undisturbed[ranks]
    check_little_is_lost(killed, again)


@pytest.mark.fault(
    "A1",
    "SIGKILL at six points of saving",
    "same command again: equal weights, at most one save interval lost",
)
def test_killed_while_saving(case: Case, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    for trial in case.trials(5 * len(POINTS), fast=1):
        with trial:
            point, number = POINTS[trial.number % len(POINTS)], trial.number // len(POINTS)
            # The first run prunes for the first time with its fourth or fifth save.
            save = 1 + number % 2 if point == "while pruning" else 1 + number
            killed = workshop.start(
                trial.output_dir, injections=[("kill_while_saving", {"point": point, "save": save})]
            )
            assert -9 in killed.wait(), killed.text
            again = workshop.finish(trial.output_dir)
            assert final_hash(trial.output_dir) == undisturbed[2]
            check_little_is_lost(killed, again)
            leftovers = [path.name for path in trial.output_dir.iterdir() if path.name.startswith(".")]
            assert not leftovers


@pytest.mark.fault(
    "A24",
    "SIGKILL while old checkpoints are removed (keep_last=1)",
    "a whole checkpoint at every instant; equal weights",
)
def test_killed_while_pruning(case: Case, workshop: Workshop) -> None:
    expected: dict[int, str] = {}
    for trial in case.trials(20, fast=0):
        with trial:
            if not expected:
                workshop.finish(case.folder / "whole", "train.keep_last=1")
                expected[2] = final_hash(case.folder / "whole")
            removal = 1 + trial.number % 4
            killed = workshop.start(
                trial.output_dir,
                "train.keep_last=1",
                injections=[("kill_while_pruning", {"removal": removal})],
            )
            assert -9 in killed.wait(), killed.text
            whole = [folder for folder in checkpoint_folders(trial.output_dir) if not verify_folder(folder)]
            assert whole, sorted(path.name for path in trial.output_dir.iterdir())
            assert workshop.finished_hash(trial.output_dir, "train.keep_last=1") == expected[2]
            assert len(saved_steps(trial.output_dir)) <= 2


@pytest.mark.fault(
    "A26",
    "SIGKILL of a sharded run (fsdp2) while it saves",
    "same command again: equal weights, which every command reads",
)
def test_a_sharded_run_is_killed(case: Case, workshop: Workshop) -> None:
    sharded = ("train.sharding=fsdp2", "train.grad_cache_tokens=60")
    points = ("before the rename", "after the rename", "while pruning")
    for trial in case.trials(len(points), fast=0):
        with trial:
            whole = case.folder / "whole"
            if not whole.exists():
                workshop.finish(whole, *sharded)
            kill = {"point": points[trial.number], "save": 2}
            killed = workshop.start(trial.output_dir, *sharded, injections=[("kill_while_saving", kill)])
            assert -9 in killed.wait(), killed.text
            again = workshop.finish(trial.output_dir, *sharded)
            check_little_is_lost(killed, again)
            last = [checkpoint_folders(folder)[0] for folder in (whole, trial.output_dir)]
            assert last[0].name == last[1].name and not verify_folder(last[1])
            assert not list(trial.output_dir.glob(".tmp-*"))
            weights = [read_tensors(folder, MODEL_FILE) for folder in last]
            assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())
            assert BiEncoder.load(trial.output_dir).encode_questions(["bade"]).shape == (1, 16)
            dev = f"dev_datasets=[{workshop.folder / 'dev.json'}]"
            assert evaluate([f"model_file={last[1]}", dev, "device=cpu"]) == 0


@pytest.mark.parametrize("number", [1, 2])
def test_a_folder_that_is_replaced_is_never_lost(number: int, tmp_path: Path) -> None:
    """The writer is killed before a rename; what writes there next finds the old content."""
    target = tmp_path / "out"
    with durable_folder(target) as folder:
        (folder / "a").write_text("old")
    if (pid := os.fork()) == 0:
        kill = injections._at_call(number, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        injections._around(os, "rename", before=kill)
        with durable_folder(target, overwrite=True) as folder:
            (folder / "a").write_text("new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    remove_leftovers(tmp_path)
    assert verify_folder(target) == [] and (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
