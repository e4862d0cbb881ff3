"""Commands that run others as stages run them here, in this process, which has imported everything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.jobs.ladder.climb import PassOn


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages run in this process, which has imported everything; the list has the names of their
    commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    ran: list[str] = []

    def run(self: PassOn, command: Sequence[str], log: Path) -> int:
        arguments = list(command)[3:]  # python -m dpr
        ran.append(arguments[0])
        return main(
            [
                *arguments,
                *(["vocab_size=400", "hidden=16", "overwrite=true"] if arguments[0] == "new-encoder" else []),
            ]
        )

    monkeypatch.setattr(PassOn, "run", run)
    return ran
