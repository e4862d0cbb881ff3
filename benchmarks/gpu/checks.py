"""The tests that need a GPU, and the promises about gradients, on the machine at hand; counts and
failures."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Record
from benchmarks.gpu.workload import Sizes

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = {
    "tests/gpu": ["tests/gpu"],
    "invariants": [
        f"tests/invariants/test_{name}.py" for name in ("fast_paths", "one_gradient", "resume", "decoders")
    ],
}
REHEARSED = {"tests/gpu": ["tests/gpu/test_windows.py"]}
NEEDED = ("pytest", "pyarrow")
"""What the tests import beside what the benchmark needs; no plugin of pytest."""
MOST_SECONDS = 220


def part(record: Record, sizes: Sizes) -> None:
    """Runs both sets one after the other, each in a process of its own."""
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        record.add("tests", f"not run: {' and '.join(missing)} not installed")
        return
    failed = 0
    for name, paths in (REHEARSED if record.is_rehearsal else TESTS).items():
        with tempfile.TemporaryDirectory() as temporary:
            counts = _run(paths, Path(temporary) / "tests.xml")
        record.add(name, counts)
        failed += len(counts["failed"]) + counts["cut off"]
    record.judge("failures", failed)


def _run(paths: list[str], report: Path) -> dict[str, Any]:
    """Counts, the names of what failed, and the reasons of what was skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths]
    cut_off = 0
    try:
        ended = subprocess.run(command, cwd=REPOSITORY, timeout=MOST_SECONDS, capture_output=True, text=True)
        tail = ended.stdout.splitlines()[-3:]
    except subprocess.TimeoutExpired as error:
        shown = (
            (error.stdout or b"").decode("utf-8", "replace")
            if not isinstance(error.stdout, str)
            else error.stdout
        )
        cut_off, tail = 1, [*shown.splitlines()[-3:], f"more than {MOST_SECONDS} seconds"]
    cases = list(ET.parse(report).getroot().iter("testcase")) if report.is_file() else []
    kinds = {
        kind: [case for case in cases if any(case.find(tag) is not None for tag in tags)]
        for kind, tags in _KINDS.items()
    }
    skipped = [
        (node.get("message") or "") for case in kinds["skipped"] if (node := case.find("skipped")) is not None
    ]
    return {
        "run": len(cases) - len(skipped),
        "passed": len(cases) - len(skipped) - len(kinds["failed"]),
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in kinds["failed"]],
        "skipped": {reason: skipped.count(reason) for reason in sorted(set(skipped))},
        "cut off": cut_off or int(not cases),
        "tail": tail,
    }


_KINDS = {"failed": ("failure", "error"), "skipped": ("skipped",)}
