"""Work on a training set block by block beside the output, so that a killed run can be resumed: what mining
and scoring share.

1. A work folder beside the output, tied to these data and settings, holds what the search needs and one file
   per finished block.
2. Each block of questions is searched and written; several processes work on blocks in parallel.
3. The blocks are joined into the output, the audit is written beside it, and the work folder is removed.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import IO, Any

import torch

from dpr.core.errors import LostRankError
from dpr.formats.training_sets import TrainingSet
from dpr.mining.corpus import MiningCorpus
from dpr.mining.negatives import PairScorer
from dpr.storage.steps import Steps


@dataclass(frozen=True)
class BlockWriter(ABC):
    """What every process needs to know to write a block. ``source`` is the corpus; ``steps`` are the blocks,
    by their first row."""

    train: TrainingSet
    source: Path
    steps: Steps

    @property
    def work(self) -> Path:
        """The folder of the blocks, and of what was made of the corpus."""
        return self.steps.folder.parent

    @cached_property
    def corpus(self) -> MiningCorpus:
        return MiningCorpus(self.source, self.work)

    def part(self, rows: range) -> Path:
        """The records of a block."""
        return self.steps.folder / f"part-{rows.start:09d}-{rows.stop:09d}.jsonl"

    def audit(self, rows: range) -> Path:
        return self.steps.folder / f"audit-{rows.start:09d}-{rows.stop:09d}.json"

    @abstractmethod
    def find(self, rows: range) -> Any:
        """What the search finds for the questions of a block."""

    @abstractmethod
    def write(self, rows: range, found: Any, scorer: PairScorer | None = None) -> None:
        """Writes the records of a block and its audit, by ``save``."""

    def save(
        self, rows: range, records: Iterable[dict[str, Any]], audit: Callable[[], dict[str, Any]]
    ) -> None:
        """Writes a block: its records, and then its audit."""

        def write_records(out: IO[bytes]) -> None:
            for record in records:
                out.write((json.dumps(record, ensure_ascii=False) + "\n").encode())

        def write_audit(out: IO[bytes]) -> None:
            out.write(json.dumps(audit()).encode())

        self.steps.write_step(
            rows.start, {self.part(rows).name: write_records, self.audit(rows).name: write_audit}
        )


@dataclass(frozen=True)
class Elsewhere:
    """Workers on machines that share the work folder.

    ``each`` calls a function there for every task and yields the tasks as they are done, each with what the
    function returned. ``open_scorer`` opens the cross-encoder there.
    """

    each: Callable[[Callable[[Any], None], Sequence[Any]], Iterator[tuple[Any, None]]]
    open_scorer: Callable[[], PairScorer] | None = None


def write_blocks(
    writer: BlockWriter,
    blocks: Sequence[range],
    *,
    processes: int,
    scorer: PairScorer | None,
    elsewhere: Elsewhere | None = None,
) -> Iterator[range]:
    """Writes the blocks and yields each when it is written, in any order: in this process, in ``processes``
    of them, or elsewhere.

    With a cross-encoder, which has all threads, this process works alone.

    Raises:
        LostRankError: a process was killed.
    """
    if elsewhere is not None:
        sent = _Sent(
            os.urandom(8).hex(),
            replace(writer, train=writer.train.copied_to(writer.work / "train")),
            elsewhere.open_scorer,
        )
        for (_, rows), _ in elsewhere.each(_write_there, [(sent, rows) for rows in blocks]):
            yield rows
        return
    if processes <= 1 or scorer is not None:
        for rows in blocks:
            writer.write(rows, writer.find(rows), scorer)
            yield rows
        return
    threads = max(1, torch.get_num_threads() // processes)
    # Not fork: the threads that libraries have started do not survive it. Each gets a copy: files that are
    # open here cannot be sent.
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_start, initargs=(replace(writer), threads)
    )
    try:
        running = {pool.submit(_write, rows): rows for rows in blocks}
        for done in as_completed(running):
            done.result()
            yield running[done]
    except BrokenProcessPool:
        raise LostRankError(
            "a mining process was killed, possibly because memory ran out; rerun the same command to resume"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Sent:
    """What workers elsewhere get with every block."""

    key: str
    writer: BlockWriter
    open_scorer: Callable[[], PairScorer] | None


_opened: dict[str, tuple[BlockWriter, PairScorer | None]] = {}


def _write_there(task: tuple[_Sent, range]) -> None:
    sent, rows = task
    if sent.key not in _opened:  # a worker opens indexes and models once
        _opened.clear()
        _opened[sent.key] = sent.writer, sent.open_scorer and sent.open_scorer()
    writer, scorer = _opened[sent.key]
    writer.write(rows, writer.find(rows), scorer)


_writer: BlockWriter | None = None


def _start(writer: BlockWriter, threads: int) -> None:
    global _writer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _writer = writer


def _end_with_parent() -> None:
    """Without it, a worker whose parent was killed waits for work forever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _write(rows: range) -> None:
    assert _writer is not None
    _writer.write(rows, _writer.find(rows))
