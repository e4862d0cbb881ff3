"""Two runs to one output: the second is refused and names the first; when that one has ended, it resumes the
work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.formats.training_sets import TrainingSet
from dpr.mining import search as searches

# Does one block, prints that, and waits.
WAITING = """
import sys, time
import dpr.mining.search
from pathlib import Path
from dpr.cli.main import main
from dpr.mining.job import BlockMiner
dpr.mining.search.BLOCK_ROWS = 7
real = BlockMiner.write

def waiting(miner, rows, *rest):
    real(miner, rows, *rest)
    Path(sys.argv[1]).touch()
    time.sleep(100)

BlockMiner.write = waiting
sys.exit(main(sys.argv[2:]))
"""


def test_a_second_run_is_refused_while_the_first_is_there(
    tmp_path: Path,
    train: TrainingSet,
    corpus_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(searches, "BLOCK_ROWS", 7)
    arguments, reached = (
        ["mine", str(tmp_path / "train.jsonl"), f"corpus={corpus_file}"],
        tmp_path / "reached",
    )
    assert main([*arguments, f"out={tmp_path}/whole.jsonl"]) == 0
    arguments.append(f"out={tmp_path}/out.jsonl")
    first = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(reached), *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        for _ in range(600):
            if reached.exists() or first.poll() is not None:
                break
            time.sleep(0.1)
        assert reached.exists()
        before = sorted((tmp_path / "out.jsonl.mining" / "blocks").iterdir())
        capsys.readouterr()
        # other settings too: they would restart the first one's work while it runs
        for more in ([], ["per_question=2"], ["overwrite=true"]):
            assert main([*arguments, *more]) == 3
            message = capsys.readouterr().err
            assert f"another run is writing here: process {first.pid} on " in message
            assert "out.jsonl.lock" in message
        assert sorted((tmp_path / "out.jsonl.mining" / "blocks").iterdir()) == before
        assert not (tmp_path / "out.jsonl").exists()
        assert main([*arguments[:-1], f"out={tmp_path}/other.jsonl"]) == 0, (
            "another output has nothing to do with it"
        )
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert main(arguments) == 0
    assert "left by processes that no longer exist" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.lock"))
