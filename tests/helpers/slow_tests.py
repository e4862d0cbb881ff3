"""The tests that ``make check-fast`` leaves out: ``python -m tests.helpers.slow_tests JUNIT.xml [seconds]``."""

import sys
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

FILE = Path(__file__).resolve().parents[1] / "slow_tests.txt"
# Whole folders that start programs, launchers, kills or thousands of cases.
_NAMES = ("cli", "faults", "fuzz", "gpu", "simulated", "examples", "unit/benchmarks", "unit/integrations")
_FOLDERS = tuple(f"tests/{name}/" for name in _NAMES)


@cache
def _listed() -> frozenset[str]:
    return frozenset(FILE.read_text().split())


def is_slow(node: str) -> bool:
    """True if a test, by its id, is left out."""
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
