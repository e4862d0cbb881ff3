"""A sharded run from the command line: killed while it saves, run again, and read by commands that know
nothing of it.

pytest tests/cli/test_sharded_run.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch

from dpr.formats import checkpoints
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import verify_folder
from tests.helpers.tiny import training_folder
from tests.invariants.test_resume import ROOT, command, environment, kill_tree, run

SHARDED = (
    "train.sharding=fsdp2",
    "train.sharded_checkpoints=true",
    "train.num_train_epochs=2",
    "train.grad_cache_tokens=60",
)


def kill_while_it_saves(workplace: Path, output_dir: Path) -> None:
    """Kills all processes of a run once there is a checkpoint and another one is being written."""
    process = subprocess.Popen(
        command(workplace, output_dir, 2, *SHARDED),
        env=environment(workplace),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 170
    while not (
        checkpoints.checkpoint_folders(output_dir, "dpr_biencoder") and list(output_dir.glob(".tmp-*"))
    ):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
    kill_tree(process.pid)
    process.wait()


def test_a_sharded_run_survives_a_kill_and_ends_as_a_model_for_every_command(tmp_path: Path) -> None:
    workplace = training_folder(tmp_path, train=120, dev=11)
    whole, killed = workplace / "whole", workplace / "killed"
    result = run(workplace, whole, 2, *SHARDED)
    assert result.returncode == 0, result.stderr
    kill_while_it_saves(workplace, killed)
    result = run(workplace, killed, 2, *SHARDED)
    assert result.returncode == 0, result.stderr
    assert "resuming from" in result.stderr
    last = [checkpoints.checkpoint_folders(folder, "dpr_biencoder")[0] for folder in (whole, killed)]
    assert last[0].name == last[1].name and not verify_folder(last[1]) and not list(killed.glob(".tmp-*"))
    weights = [checkpoints.read_tensors(folder, checkpoints.MODEL_FILE) for folder in last]
    assert all(torch.equal(weights[1][name], tensor) for name, tensor in weights[0].items())
    assert BiEncoder.load(killed).encode_questions(["bade"]).shape == (1, 16)

    evaluate = [
        sys.executable,
        str(ROOT / "train_dense_encoder.py"),
        f"model_file={last[1]}",
        f"dev_datasets=[{workplace / 'dev.json'}]",
    ]
    result = subprocess.run(
        [*evaluate, "device=cpu"],
        env=environment(workplace),
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0 and "eval/nll_loss" in result.stdout, result.stderr
