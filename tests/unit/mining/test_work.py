"""Blocks are written once each, whoever writes them: this process, several, or workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import LostRankError
from dpr.mining import work
from dpr.mining.work import BlockWriter, Elsewhere, write_blocks
from dpr.storage.steps import Steps

BLOCKS = [range(start, start + 2) for start in range(0, 10, 2)]


class Train:
    def copied_to(self, folder: Path) -> Train:
        folder.mkdir(parents=True, exist_ok=True)
        return self


@dataclass(frozen=True)
class Writer(BlockWriter):
    log: list[tuple[str, Any]]

    def find(self, rows: range) -> Any:
        self.log.append(("find", rows))
        return f"hits of {rows.start}"

    def write(self, rows: range, found: Any, scorer: Any = None) -> None:
        assert found == f"hits of {rows.start}"
        self.log.append(("write" if scorer is None else f"write with {scorer}", rows))

    def made(self, kind: str) -> list[range]:
        return sorted((rows for each, rows in self.log if each == kind), key=lambda rows: rows.start)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(Train(), tmp_path, Steps(tmp_path / "work" / "blocks", {}), [])  # type: ignore[arg-type]


class Threads(ThreadPoolExecutor):
    """A pool of processes, but for the processes."""

    def __init__(
        self, processes: int, *, mp_context: Any, initializer: Callable[..., None], initargs: tuple[Any, ...]
    ) -> None:
        super().__init__(processes)
        initializer(*initargs)


def test_the_name_of_a_block_is_that_of_its_rows(writer: Writer) -> None:
    assert writer.part(range(500, 1000)).name == "part-000000500-000001000.jsonl"
    assert writer.audit(range(500, 1000)).name == "audit-000000500-000001000.json"
    assert writer.part(BLOCKS[0]).parent == writer.work / "blocks"


def test_one_process_writes_blocks_in_order_each_before_it_is_told(writer: Writer) -> None:
    for count, rows in enumerate(write_blocks(writer, BLOCKS, processes=1, scorer=None), 1):
        assert writer.log[-1] == ("write", rows)
        assert writer.made("write") == BLOCKS[:count]
    assert writer.made("find") == BLOCKS


def test_several_processes_write_each_block_once(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "ProcessPoolExecutor", Threads)
    threads = torch.get_num_threads()
    try:
        done = list(write_blocks(writer, BLOCKS, processes=2, scorer=None))
    finally:
        torch.set_num_threads(threads)
    assert sorted(done, key=lambda rows: rows.start) == writer.made("find") == writer.made("write") == BLOCKS


def test_with_a_cross_encoder_the_others_only_search(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "ProcessPoolExecutor", Threads)
    scorer: Any = "the scorer"
    assert list(write_blocks(writer, BLOCKS, processes=2, scorer=scorer)) == BLOCKS
    assert writer.made("find") == writer.made("write with the scorer") == BLOCKS
    for place, (kind, rows) in enumerate(
        writer.log
    ):  # two blocks are searched, then scored, before the next two are
        if kind == "find" and rows.start >= 4:
            assert ("write with the scorer", range(2)) in writer.log[:place]


def test_a_process_that_was_killed_is_told_with_the_way_out(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Threads):
        def submit(self, *arguments: Any, **named: Any) -> Any:
            raise BrokenProcessPool("A process in the process pool was terminated abruptly")

    monkeypatch.setattr(work, "ProcessPoolExecutor", Killed)
    with pytest.raises(LostRankError, match=r"a mining process was killed.*rerun the same command to resume"):
        list(write_blocks(writer, BLOCKS, processes=2, scorer=None))


def test_workers_elsewhere_open_the_scorer_once_and_have_a_copy_of_the_data(writer: Writer) -> None:
    opened = []

    def open_scorer() -> Any:
        opened.append(1)
        return "their scorer"

    def each(call: Callable[[Any], None], tasks: Sequence[Any]) -> Iterator[tuple[Any, None]]:
        for task in reversed(tasks):
            call(task)
            yield task, None

    elsewhere = Elsewhere(each, open_scorer)
    assert list(write_blocks(writer, BLOCKS, processes=4, scorer=None, elsewhere=elsewhere)) == BLOCKS[::-1]
    assert writer.made("write with their scorer") == BLOCKS
    assert opened == [1]
    assert (writer.work / "train").is_dir()
    list(write_blocks(writer, BLOCKS[:1], processes=1, scorer=None, elsewhere=elsewhere))
    assert opened == [1, 1]  # another job has another scorer
