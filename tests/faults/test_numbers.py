"""Losses and gradients that are NaN or infinite."""

import re
from pathlib import Path

import pytest
import torch

from dpr.core.errors import DivergedError
from dpr.formats.checkpoints import MODEL_FILE, read_tensors
from dpr.formats.run_folders import checkpoint_folders
from dpr.storage.durable import verify_folder
from tests.faults.conftest import Trial, fault
from tests.faults.runs import Workshop, logged_values, saved_steps
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import Calling, make_trainer

DIVERGED = 4


def check_all_saved_are_numbers(workshop: Workshop, trial_dir: object) -> None:
    for folder in checkpoint_folders(trial_dir):  # type: ignore[arg-type]
        assert not verify_folder(folder)
        assert all(torch.isfinite(each).all() for each in read_tensors(folder, MODEL_FILE).values()), folder


@fault(
    "A15",
    "NaN or Inf on one rank in 1 to 4 updates in a row",
    "skipped and counted on all ranks; weights equal on all",
    trials=10,
)
def test_some_updates_are_skipped(trial: Trial, workshop: Workshop, undisturbed: dict[int, str]) -> None:
    ranks = 1 if trial.number % 5 == 4 else 2
    first, count = trial.random.randint(1, 8), trial.random.randint(1, 4)
    spoil = {"first": first, "steps": count, "on_rank": ranks - 1}
    spoil["value"] = ("nan", "inf")[trial.number % 2]
    faults = [("not_a_number", spoil), ("tell_weights", {})]
    run = workshop.finish(trial.output_dir, ranks=ranks, injections=faults)
    weights = re.findall(r"^weights (\w+)$", run.text, re.MULTILINE)
    assert len(weights) == ranks and len(set(weights)) == 1
    skipped = re.findall(r"step (\d+): the gradient is NaN or infinite", run.rank_text(0))
    assert [int(step) for step in skipped] == list(range(first, first + count))
    logged = logged_values(trial.output_dir, "train/skipped_steps")
    assert logged == {step: min(max(step - first + 1, 0), count) for step in range(1, 13)}
    check_all_saved_are_numbers(workshop, trial.output_dir)
    assert saved_steps(trial.output_dir)[0] == 12


@fault(
    "A15",
    "NaN on one rank in five updates in a row",
    "exit 4 on all ranks; last good checkpoint kept, no NaN in any",
    trials=4,
)
def test_too_many_in_a_row(trial: Trial, workshop: Workshop) -> None:
    first = trial.random.randint(2, 7)
    spoil = {"first": first, "steps": 99, "on_rank": trial.number % 2}
    run = workshop.run(trial.output_dir, injections=[("not_a_number", spoil), ("tell_weights", {})])
    assert run.wait() == [DIVERGED, DIVERGED], run.text
    assert f"in 5 updates in a row, the last at step {first + 4}" in run.rank_text(0)
    assert len(set(re.findall(r"^weights (\w+)$", run.text, re.MULTILINE))) == 1
    check_all_saved_are_numbers(workshop, trial.output_dir)
    assert saved_steps(trial.output_dir)[0] == (first + 3) // 2 * 2


def test_weights_that_are_no_numbers_are_never_saved(tmp_path: Path) -> None:
    spoil = Calling("on_after_optimizer_step", lambda run: next(run.model.parameters()).data.fill_(torch.nan))
    sets = [ListSource(make_samples(8))]
    job = make_trainer(tiny_model(tmp_path / "encoder"), sets, [], tmp_path / "run", spoil, max_steps=1)
    with pytest.raises(DivergedError, match="so no checkpoint is written"):
        job.train()
    assert not [path for path in (tmp_path / "run").iterdir() if "step" in path.name]
