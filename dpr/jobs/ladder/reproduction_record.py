"""What ``dpr reproduce`` leaves behind: the record of a run, and the status of the numbers that it reached."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.lazy import version_of
from dpr.core.machine import usable_cores
from dpr.core.version import __version__
from dpr.formats.reproductions import Number, Row, reads
from dpr.formats.yaml_files import with_values
from dpr.jobs.doctor import CORE, machine
from dpr.jobs.ladder.stages import RECORD
from dpr.storage.durable import durable_file, read_json, write_json

RESULT = "repro.json"
"""Beside the folders of the stages."""


def write_record(row: Row, asked: dict[str, Any], found: Sequence[tuple[Number, float | None]], file: Path) -> None:
    """Writes what was run, on what, and what came of it, with a checksum beside it."""
    stages: dict[str, Any] = {}
    for step in row.steps:
        if (record := file.parent / step.name / RECORD).is_file():
            entry = read_json(record)
            stages[step.name] = {key: entry.get(key) for key in ("command", "inputs", "outputs", "seconds")}
    names = sorted({name for step in row.steps for name in reads(step, row.inputs) if step.name in stages})
    numbers = [
        {
            "stage": number.stage,
            "name": number.name,
            "expected": number.wanted,
            "source": number.source,
            "found": value,
            "outcome": "not reached" if value is None else number.outcome(value),
        }
        for number, value in found
    ]
    content = {
        "row": row.name,
        "title": row.title,
        **asked,
        "date": _today(),
        "numbers": numbers,
        "inputs": {name: {key: row.inputs[name].get(key) for key in ("file", "url", "bytes", "sha256")} for name in names},
        "stages": stages,
        "versions": {"dpr": __version__, "python": platform.python_version(), **{name: version_of(name) for name in CORE}},
        "machine": machine(),
        "commit": _commit(),
    }
    write_json(file, content, note={})


def update_status(row: Row, reached: Sequence[Number]) -> None:
    """Writes into the YAML of the row that these numbers were reached; its comments stay."""
    text = row.file.read_text(encoding="utf-8")
    gpus = [line.removeprefix("GPU: ") for line in machine() if line.startswith("GPU: ") and "no NVIDIA" not in line]
    hardware = f"{len(gpus)} x {gpus[0]}" if gpus else f"{usable_cores()} CPU cores"
    status = f"verified on {_today()}, {hardware}, {__version__}"
    with durable_file(row.file) as out:
        out.write(with_values(text, {number.place: status for number in reached}))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _commit() -> str | None:
    """The commit of the checkout that runs, with + where files differ from it; None where the package is in none of its own."""
    place = Path(__file__).resolve().parents[3]
    if not (place / ".git").exists():  # an installed package may lie in somebody else's repository
        return None
    try:
        run = partial(subprocess.run, cwd=place, capture_output=True, text=True, timeout=30, check=True)
        return run(["git", "rev-parse", "HEAD"]).stdout.strip() + ("+" if run(["git", "status", "--porcelain", "-uno"]).stdout else "")
    except (OSError, subprocess.SubprocessError):
        return None
