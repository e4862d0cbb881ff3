"""Runs of a module of this folder in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulated import device


def found_by(module: str, folder: Path) -> dict[str, Any]:
    """What each run has printed, by its name. A run that is missing has the end of what the process said."""
    if (reason := device.is_missing()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", f"tests.simulated.{module}", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"name": ')]
    return {"process": ended.stderr[-3000:], **{found["name"]: found for found in lines}}


PACKAGES = {"adapters": "peft", "the service": "fastapi"}
"""What some runs need besides torch."""


def of_run(found: dict[str, Any], name: str) -> tuple[Any, Any]:
    """What a run has found on the CPU and on the device."""
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    assert name in found, found["process"]
    assert "error" not in found[name], found[name]["error"]
    return found[name]["cpu"], found[name]["simulated"]
