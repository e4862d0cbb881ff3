"""Counting trials and making the table of benchmarks/results/faults.md.

pytest tests/faults                                          the fast part: some trials of every case
pytest tests/faults --all-faults                             all trials
pytest tests/faults --all-faults --fault-table FILE          and puts the counts into FILE (make faults)
"""

from __future__ import annotations

import inspect
import os
import random
import re
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from dpr.storage.durable import durable_file
from tests.faults.runs import Workshop, final_hash
from tests.faults.server import serve
from tests.helpers.processes import Served

BEGIN, END = "<!-- fault table: begin -->", "<!-- fault table: end -->"


@dataclass
class Row:
    """One line of the table."""

    id: str
    fault: str
    expected: str
    tried: int = 0
    passed: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        count = f"{self.passed}/{self.tried}"
        return f"| {self.id} | {self.fault} | {self.expected} | {count} | {self.seconds:.0f} |"


ROWS = pytest.StashKey[dict[str, Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="all trials of tests/faults instead of some")
    parser.addoption("--fault-table", metavar="FILE", help="Markdown file whose table gets the counts")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(id, fault, expected): a row of the fault table")
    config.stash[ROWS] = {}


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    server = Served(serve)
    yield server
    server.close()


@pytest.fixture(scope="session")
def workshop(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("faults")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # one case runs as another user
    return Workshop(folder / "workplace", server)


@pytest.fixture(scope="session")
def undisturbed(workshop: Workshop) -> dict[int, str]:
    """What an undisturbed run ends with, by the number of ranks."""
    hashes = {}
    for ranks in (1, 2):
        output_dir = workshop.folder / f"undisturbed-{ranks}"
        workshop.finish(output_dir, ranks=ranks)
        hashes[ranks] = final_hash(output_dir)
    return hashes


@dataclass
class Trial:
    """One attempt. As a ``with`` block it counts as passed unless something is raised in it."""

    number: int
    random: random.Random
    output_dir: Path
    case: Case

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.case.row.tried += 1
        if error is None:
            self.case.row.passed += 1
        elif isinstance(error, Exception):
            self.case.failures.append(f"trial {self.number}:\n" + "".join(traceback.format_exception(error)))
        return isinstance(error, Exception)


@dataclass
class Case:
    """The trials of one test."""

    row: Row
    folder: Path
    takes_all: bool
    failures: list[str] = field(default_factory=list)

    def trials(self, count: int, *, fast: int) -> Iterator[Trial]:
        """Yields ``count`` trials, or ``fast`` of them unless all were asked for; seeded by the case and the number."""
        if not (fast or self.takes_all):
            pytest.skip("takes long; --all-faults runs it")
        for number in range(count if self.takes_all else fast):
            yield self.trial(number)

    def trial(self, number: int) -> Trial:
        return Trial(number, random.Random(f"{self.row.fault} {number}"), self.folder / f"run-{number}", self)


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    marker = request.node.get_closest_marker("fault")
    rows = request.config.stash[ROWS]
    row = rows.setdefault(f"{marker.args[0]} {marker.args[1]}", Row(*marker.args))
    case = Case(row, tmp_path, request.config.getoption("--all-faults"))
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    start = time.perf_counter()
    yield case
    row.seconds += time.perf_counter() - start
    if target := request.config.getoption(
        "--fault-table"
    ):  # at once, so that what is done stays when the rest is not
        _write_table(Path(target), {name: row for name, row in rows.items() if row.tried})
    assert not case.failures, f"{len(case.failures)} of {row.tried} failed\n" + "\n".join(case.failures)


def fault(
    row: str, text: str, expected: str, *, trials: int, fast: int = 1
) -> Callable[[Callable[..., None]], Any]:
    """Makes a function of one ``trial`` a test of as many, which are a row of the table."""

    def decorated(function: Callable[..., None]) -> Any:
        def test(case: Case, **fixtures: Any) -> None:
            for trial in case.trials(trials, fast=fast):
                with trial:
                    function(trial=trial, **fixtures)

        names = ["case", *(name for name in inspect.signature(function).parameters if name != "trial")]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return pytest.mark.fault(row, text, expected)(test)

    return decorated


def _order(row: Row) -> tuple[str, int, str]:
    return row.id[0], int(row.id[1:]), row.fault


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = {name: row for name, row in config.stash[ROWS].items() if row.tried}
    if not rows:
        return
    terminalreporter.section("faults")
    for row in sorted(rows.values(), key=_order):
        terminalreporter.write_line(row.line())
    tried, passed = sum(row.tried for row in rows.values()), sum(row.passed for row in rows.values())
    terminalreporter.write_line(
        f"{passed} of {tried} trials passed, {sum(row.seconds for row in rows.values()):.0f} s"
    )


def _write_table(file: Path, rows: dict[str, Row]) -> None:
    """Replaces the rows of this run in the file's table and keeps the others."""
    text = file.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    assert found, f"{file} has no {BEGIN}"
    known: dict[str, Row] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 5 and re.fullmatch(r"[A-Z]\d+", cells[0]):
            passed, _, tried = cells[3].partition("/")
            known[f"{cells[0]} {cells[1]}"] = Row(*cells[:3], int(tried), int(passed), float(cells[4]))
    known.update(rows)
    ordered = sorted(known.values(), key=_order)
    total = f"{sum(row.passed for row in ordered)} of {sum(row.tried for row in ordered)} trials passed"
    total += f", {sum(row.seconds for row in ordered) / 60:.0f} minutes on {os.cpu_count()} CPU cores."
    head = ["| id | fault | expected | passed/tried | seconds |", "|---|---|---|---|---|"]
    with durable_file(file) as out:
        out.write(
            before
            + "\n".join([BEGIN, "", *head, *(row.line() for row in ordered), "", total, "", END])
            + after
        )
