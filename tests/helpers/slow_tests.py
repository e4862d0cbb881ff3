"""The tests that ``make check-fast`` leaves out, from the times of a run.

PYTEST_ARGS=--junitxml=times.xml make test; python -m tests.helpers.slow_tests times.xml [seconds]
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

FILE = Path(__file__).resolve().parents[1] / "slow_tests.txt"
# Whole folders that start programs, launchers, kills or thousands of cases.
_NAMES = ("cli", "faults", "fuzz", "gpu", "examples", "unit/benchmarks", "unit/integrations")
_FOLDERS = tuple(f"tests/{name}/" for name in _NAMES)
LONGEST_FILES = tuple(
    f"tests/{name}.py"
    for name in (
        *("faults/test_kills", "faults/test_commands"),
        *(
            "cli/test_sharded_run",
            "faults/test_resuming",
            "cli/test_documented_commands",
            "invariants/test_resume",
        ),
        *(
            "invariants/test_sharding",
            "gpu/test_training_runs",
            "faults/test_launchers",
            "faults/test_damage",
        ),
        *("unit/benchmarks/test_gpu", "unit/training/test_step", "faults/test_lost_processes"),
        *("cli/test_index_contract", "unit/mining/test_memory", "invariants/test_verdict"),
    )
)
"""A minute and more each, the longest first. They begin first, so that no worker is left with one when the
others have ended."""


@cache
def _listed() -> frozenset[str]:
    return frozenset(FILE.read_text().split())


def is_slow(node: str) -> bool:
    """Whether a test, by its id ``tests/.../test_x.py::test_y[case]``, is left out; one that is not listed
    yet is not."""
    return node.startswith(_FOLDERS) or node.partition("[")[0] in _listed()


def main(times: str, seconds: str = "1.5") -> None:
    """Lists the functions of which a case took longer, its fixtures included."""
    slow = set()
    for case in ElementTree.parse(times).iter("testcase"):
        node = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].partition('[')[0]}"
        if float(case.attrib["time"]) > float(seconds) and not node.startswith(_FOLDERS):
            slow.add(node)
    FILE.write_text("".join(f"{node}\n" for node in sorted(slow)))
    print(f"{FILE}: {len(slow)} functions")


if __name__ == "__main__":
    main(*sys.argv[1:])
