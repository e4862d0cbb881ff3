"""Stages are copies of a process that has only imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpr.core.stopping import OWNED_PROCESS
from dpr.core.version import __version__
from dpr.jobs.ladder import process
from dpr.jobs.ladder.process import _IMPORTED, PassOn, python_command
from tests.architecture.source_files import REPOSITORY

ASKED = """
import importlib, sys, torch

def asked(*arguments, **options):
    raise AssertionError("asks for devices, which no copy of this process could use any more")

torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = asked
for name in sys.argv[1:]:
    importlib.import_module(name)
assert not torch.cuda.is_initialized()
"""


def test_what_is_imported_before_a_stage_is_forked_begins_nothing_on_a_gpu() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASKED, *_IMPORTED], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="stages are forked on Linux alone")
@pytest.mark.parametrize("owner", ["this process", "another"])
def test_stages_are_forked_by_the_process_of_a_command_alone(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def counted(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return popen(*arguments, **options)

    monkeypatch.setenv(OWNED_PROCESS, str(os.getpid()) if owner == "this process" else "1")
    monkeypatch.setattr(process, "_IMPORTED", ())
    monkeypatch.setattr(subprocess, "Popen", counted)
    assert PassOn().run(python_command(["--version"]), tmp_path / "log.txt") == 0
    assert PassOn().run(python_command(["nonsense"]), tmp_path / "log.txt") == 2
    assert len(started) == (0 if owner == "this process" else 2)
    log = (tmp_path / "log.txt").read_text()
    assert f"dpr {__version__}" in log and "unknown command nonsense" in log
