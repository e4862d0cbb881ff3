"""Mining that is killed at any moment and begun again ends with the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import LostRankError
from dpr.formats.training_sets import TrainingSet
from dpr.mining.corpus import MiningCorpus
from dpr.mining.job import mine
from dpr.mining.lexical import LexicalSearch, PreparedLexical
from dpr.mining.negatives import MiningSettings
from dpr.mining.search import Finder

# Every child makes so many files appear under their names and is killed before the next; those after it go on.
DRIVER = """
import os, signal, sys
import dpr.cli.main, dpr.build.mining, dpr.mining.dense, dpr.mining.lexical
dpr.mining.dense.BLOCK_ROWS = dpr.mining.lexical.BLOCK_ROWS = 7
real, renamed = os.replace, []

def counting(*places):
    renamed.append(places)
    if len(renamed) > EVERY:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*places)

os.replace = counting
for run in range(60):
    if (child := os.fork()) == 0:
        os._exit(dpr.cli.main.main(sys.argv[1:]))
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        print(run, os.waitstatus_to_exitcode(status))
        break
"""


def drive(every: int, arguments: Sequence[str]) -> tuple[int, int]:
    """How many runs were killed, and the exit code of the last."""
    command = [sys.executable, "-c", DRIVER.replace("EVERY", str(every)), "mine", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"})
    runs, code = done.stdout.splitlines()[-1].split()
    return int(runs), int(code)


@pytest.mark.parametrize("way", ["bm25", "dense"])
def test_killed_mining_goes_on_to_the_same_bytes(
    tmp_path: Path, train: TrainingSet, corpus_file: Path, model_folder: Path, way: str
) -> None:
    arguments = [str(tmp_path / "train.jsonl"), f"corpus={corpus_file}", "pick=sample"]
    if way == "dense":
        arguments += [f"model_file={model_folder}", "device=cpu", "margin=-1"]
    assert drive(1000, [*arguments, f"out={tmp_path}/whole.jsonl"]) == (0, 0)
    killed, code = drive(5, [*arguments, f"out={tmp_path}/out.jsonl"])
    assert killed >= 3
    assert code == 0
    for name in ("out.jsonl", "out.jsonl.audit.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("out", "whole")).read_bytes()
    assert not (tmp_path / "out.jsonl.mining").exists()


@dataclass(frozen=True)
class KilledFinder:
    """Opens an index in a process that is then killed, as by a machine short of memory."""

    def open(self) -> Finder:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class KillingSearch(LexicalSearch):
    def prepare(self, train: TrainingSet, blocks: Sequence[range], corpus: MiningCorpus, work: Path) -> PreparedLexical:
        killed: Any = KilledFinder()
        return killed  # type: ignore[no-any-return]


def test_a_killed_process_of_several_ends_the_command_with_a_message(tmp_path: Path, train: TrainingSet, corpus_file: Path) -> None:
    with pytest.raises(LostRankError, match="run the same command again"):
        mine(train, tmp_path / "out.jsonl", MiningSettings(), search=KillingSearch(), corpus=corpus_file, processes=2)
    whole = mine(train, tmp_path / "whole.jsonl", MiningSettings(), corpus=corpus_file)
    assert mine(train, tmp_path / "out.jsonl", MiningSettings(), corpus=corpus_file, processes=2) == whole
