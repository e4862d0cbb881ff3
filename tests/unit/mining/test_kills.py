"""A worker of mining that is killed ends the command with one sentence; the same command goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from dpr.core.errors import LostRankError
from dpr.formats.stored_training_set import TrainingSet
from dpr.mining.search import Found, LexicalSearch, Query
from dpr.mining.settings import MiningSettings
from tests.unit.mining.conftest import mine


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
