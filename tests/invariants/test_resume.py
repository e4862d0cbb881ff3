"""Promise 3: a run that is killed and started again ends with the weights it would have had.

pytest tests/invariants/test_resume.py
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Run, environment, free_port, saved_steps
from tests.faults.server import serve
from tests.helpers.patience import patient
from tests.helpers.processes import Served
from tests.helpers.tiny import training_folder
from tests.helpers.training import assert_same_bits, newest, stored

RANKS = 3  # with 2, sums do not depend on the order of their terms


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_folder(tmp_path_factory.mktemp("resume"), train=120, dev=11)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    server = Served(serve)
    yield server
    server.close()


def start(server: Served, workplace: Path, output_dir: Path) -> Run:
    """Starts the command in processes of their own, as a launcher does."""
    arguments = [
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
    ]
    log = workplace / f"log-{time.monotonic_ns()}"
    request = {
        "do": "start",
        "ranks": RANKS,
        "arguments": arguments,
        "environment": environment(workplace),
        "injections": [],
        "log": str(log),
        "port": free_port(),
    }
    return Run(server, server.ask(request), log)


def finished(server: Served, workplace: Path, output_dir: Path) -> str:
    """What a run that ends well has printed."""
    run = start(server, workplace, output_dir)
    assert set(run.wait()) == {0}, run.text
    return run.text


def kill_after_steps(run: Run, output_dir: Path, steps: int) -> None:
    """Kills all processes of a run as soon as ``steps`` updates are in its log."""
    log = output_dir / "metrics.jsonl"
    deadline = time.monotonic() + patient(120)
    while not log.exists() or log.read_text().count("train/loss") < steps:
        assert run.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.kill()


def test_a_killed_run_ends_with_bitwise_the_same_weights(server: Served, workplace: Path) -> None:
    whole = workplace / "whole"
    killed = workplace / "killed"
    finished(server, workplace, whole)
    expected = stored(whole)
    # the checkpoint of step 2 is there before step 3 is in the log
    step = random.SystemRandom().randint(3, 10)
    kill_after_steps(start(server, workplace, killed), killed, step)
    assert saved_steps(killed)[0] < saved_steps(whole)[0]
    assert "resuming from" in finished(server, workplace, killed)
    print(f"killed after step {step}")
    assert newest(killed).name == newest(whole).name
    assert_same_bits(stored(killed), expected)
    assert (killed / "metrics.json").read_text() == (whole / "metrics.json").read_text()
    # What callbacks remember (best value and patience, the highest rank) is that of the undisturbed run too.
    memories = [(newest(folder) / "callbacks.json").read_text() for folder in (killed, whole)]
    assert memories[0] == memories[1]
    assert '"bad"' in memories[0] and '"highest_rank"' in memories[0]
    steps = [
        line.split('"step": ')[1].split(",")[0]
        for line in (killed / "metrics.jsonl").read_text().splitlines()
        if "train/loss" in line
    ]
    assert [int(number) for number in steps] == list(range(1, 16))
