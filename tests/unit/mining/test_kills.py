"""Mining that is killed at any moment and begun again ends with the same bytes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpr.cli.main import main
from dpr.core.errors import LostRankError
from dpr.formats.training_sets import TrainingSet
from dpr.mining import search as searches
from dpr.mining.negatives import mine
from dpr.mining.search import Found, LexicalSearch, Query
from dpr.mining.settings import MiningSettings
from tests.helpers.patience import patient
from tests.helpers.processes import fork_server


def run_until(killed_after: int, arguments: Sequence[str], *, command: str = "mine") -> int:
    """Runs a command in a process that makes so many files appear under their names and is killed before the
    next.

    Returns its exit code, which is negative if it was killed.
    """
    process = fork_server().Process(target=_until, args=(killed_after, [command, *arguments]))
    process.start()
    process.join(patient(100))
    assert process.exitcode is not None
    return process.exitcode


def _until(killed_after: int, arguments: list[str]) -> None:
    searches.DENSE_BLOCK_ROWS = searches.BLOCK_ROWS = 7
    real, renamed = os.replace, list[Any]()

    def counting(*places: Any) -> None:
        renamed.append(places)
        if len(renamed) > killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*places)

    os.replace = counting  # type: ignore[assignment]
    sys.exit(main(arguments))


@pytest.mark.parametrize("way", ["dense"])
def test_killed_mining_resumes_to_the_same_bytes(
    tmp_path: Path,
    train: TrainingSet,
    corpus_file: Path,
    model_folder: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("BLOCK_ROWS", "DENSE_BLOCK_ROWS"):
        monkeypatch.setattr(searches, name, 7)
    arguments = [str(tmp_path / "train.jsonl"), f"corpus={corpus_file}", "per_question=3"]
    if way == "dense":
        arguments += [f"model_file={model_folder}", "device=cpu"]
    assert main(["mine", *arguments, f"out={tmp_path}/whole.jsonl"]) == 0
    arguments = [*arguments, f"out={tmp_path}/out.jsonl"]
    # early, over the index or the vectors; then over the blocks; then to the end
    assert [run_until(count, arguments) for count in (9, 7, 1000)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    for name in ("out.jsonl", "out.jsonl.audit.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("out", "whole")).read_bytes()
    assert not (tmp_path / "out.jsonl.mining").exists()


class KillingSearch(LexicalSearch):
    """Searches in a process that is then killed, as by a machine short of memory."""

    def find(self, queries: Sequence[Query], depth: int) -> list[Found]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_killed_process_of_several_ends_the_command_with_a_message(
    tmp_path: Path, train: TrainingSet, corpus_file: Path
) -> None:
    with pytest.raises(LostRankError, match="rerun the same command"):
        mine(
            train,
            tmp_path / "out.jsonl",
            MiningSettings(),
            search=KillingSearch(),
            corpus=corpus_file,
            processes=2,
        )
    whole = mine(train, tmp_path / "whole.jsonl", MiningSettings(), corpus=corpus_file)
    assert mine(train, tmp_path / "out.jsonl", MiningSettings(), corpus=corpus_file, processes=2) == whole
