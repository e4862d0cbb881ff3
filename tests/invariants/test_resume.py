"""Promise 3: a run that is killed and started again ends with the weights it would have had.

pytest tests/invariants/test_resume.py
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dpr.cli.main import main
from dpr.formats import checkpoints
from tests.helpers.tiny import training_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_folder(tmp_path_factory.mktemp("resume"), train=120, dev=11)


def command(workplace: Path, output_dir: Path, num_processes: int, *overrides: str) -> list[str]:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
        if num_processes > 1
        else []
    )
    return [
        *(sys.executable, *launcher, str(ROOT / "train_dense_encoder.py")),
        f"train_datasets=[{workplace / 'train.json'}]",
        f"dev_datasets=[{workplace / 'dev.json'}]",
        f"output_dir={output_dir}",
        f"encoder.pretrained_model_cfg={workplace / 'encoder'}",
        "encoder.pretrained=false",
        "encoder.sequence_length=24",
        "encoder.dropout=0.1",
        "train.global_batch_size=12",
        "train.other_negatives=1",
        "train.gradient_accumulation_steps=2",
        "train.num_train_epochs=3",
        "train.learning_rate=1e-3",
        "train.warmup_steps=3",
        "train.eval_every_steps=5",
        "train.save_every_steps=2",
        "train.log_batch_step=1",
        "val_av_rank_start_epoch=1",
        "train.early_stopping.patience=100",
        *overrides,
    ]


def environment(workplace: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DPR_CACHE": str(workplace / "cache"),
        "HF_HUB_OFFLINE": "1",
    }


def run(
    workplace: Path, output_dir: Path, num_processes: int, *overrides: str
) -> subprocess.CompletedProcess[str]:
    """Several processes are started; one is this one, which has torch already, with all that it may have done
    before."""
    words = command(workplace, output_dir, num_processes, *overrides)
    if num_processes > 1:
        return subprocess.run(words, env=environment(workplace), capture_output=True, text=True, timeout=180)
    torch.set_num_threads(1)
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setenv("DPR_CACHE", str(workplace / "cache"))
        code = main(["train", *words[2:]])
    return subprocess.CompletedProcess(words, code, "", said.getvalue())


def kill_after_steps(workplace: Path, output_dir: Path, num_processes: int, steps: int) -> None:
    """Starts a run and kills all of its processes as soon as ``steps`` updates are in its log."""
    process = subprocess.Popen(
        command(workplace, output_dir, num_processes),
        env=environment(workplace),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    log, deadline = output_dir / "metrics.jsonl", time.monotonic() + 120
    while not log.exists() or log.read_text().count("train/loss") < steps:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    kill_tree(process.pid)
    process.wait()


def kill_tree(root: int) -> None:
    """SIGKILL for a process and all that came from it; a launcher's workers are in other sessions."""
    os.kill(root, signal.SIGSTOP)
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children.setdefault(
                    int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []
                ).append(int(entry.name))
            except OSError:
                continue
    doomed = [root]
    for pid in doomed:
        doomed += children.get(pid, [])
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def final_weights(output_dir: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.checkpoint_folders(output_dir, "dpr_biencoder")[0]
    tensors = checkpoints.read_tensors(newest, checkpoints.MODEL_FILE) | checkpoints.read_tensors(
        newest, checkpoints.OPTIMIZER_FILE
    )
    return {"step": torch.tensor(int(newest.name.rpartition("step")[2])), **tensors}


@pytest.mark.parametrize("num_processes", [1, 3])  # with 2, sums do not depend on the order of their terms
def test_a_killed_run_ends_with_bitwise_the_same_weights(workplace: Path, num_processes: int) -> None:
    whole, killed = workplace / f"whole-{num_processes}", workplace / f"killed-{num_processes}"
    result = run(workplace, whole, num_processes)
    assert result.returncode == 0, result.stderr
    expected = final_weights(whole)
    # the checkpoint of step 2 is there before step 3 is in the log
    step = random.SystemRandom().randint(3, 10)
    kill_after_steps(workplace, killed, num_processes, step)
    assert int(final_weights(killed)["step"]) < int(expected["step"])
    result = run(workplace, killed, num_processes)
    assert result.returncode == 0, result.stderr
    assert "resuming from" in result.stderr
    found = final_weights(killed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected), f"killed after step {step}"
    assert (killed / "metrics.json").read_text() == (whole / "metrics.json").read_text()
    # What callbacks remember (best value and patience, the highest rank) is that of the undisturbed run too.
    memories = [
        (checkpoints.checkpoint_folders(folder, "dpr_biencoder")[0] / "callbacks.json").read_text()
        for folder in (killed, whole)
    ]
    assert memories[0] == memories[1]
    assert '"bad"' in memories[0] and '"highest_rank"' in memories[0]
    steps = [
        line.split('"step": ')[1].split(",")[0]
        for line in (killed / "metrics.jsonl").read_text().splitlines()
        if "train/loss" in line
    ]
    assert [int(number) for number in steps] == list(range(1, 16))


def test_dropout_really_was_on(workplace: Path) -> None:
    assert run(workplace, workplace / "whole-1", 1).returncode == 0  # done already, after the test above
    assert run(workplace, workplace / "dropout", 1, "encoder.dropout=0").returncode == 0
    weights, other = (final_weights(workplace / name) for name in ("whole-1", "dropout"))
    assert not all(torch.equal(weights[name], other[name]) for name in other)


def test_a_finished_run_is_left_alone(workplace: Path) -> None:
    before = {path: path.read_bytes() for path in (workplace / "whole-1").rglob("*") if path.is_file()}
    result = run(workplace, workplace / "whole-1", 1)
    assert result.returncode == 0, result.stderr
    assert {
        path: path.read_bytes() for path in (workplace / "whole-1").rglob("*") if path.is_file()
    } == before


def test_a_different_run_is_refused_and_the_setting_is_named(workplace: Path) -> None:
    result = run(workplace, workplace / "whole-1", 1, "seed=99")
    assert result.returncode == 3
    assert "seed was 12345, is now 99" in result.stderr
    assert "resume=force" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_damaged_checkpoint_is_passed_over(workplace: Path) -> None:
    folder = workplace / "damaged"
    shutil.copytree(workplace / "whole-1", folder)
    newest = checkpoints.checkpoint_folders(folder, "dpr_biencoder")[0]
    data = bytearray((newest / checkpoints.MODEL_FILE).read_bytes())
    data[-5] ^= 1
    (newest / checkpoints.MODEL_FILE).write_bytes(data)
    result = run(workplace, folder, 1)
    assert result.returncode == 0, result.stderr
    assert "is damaged" in result.stderr
    expected, found = final_weights(workplace / "whole-1"), final_weights(folder)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
