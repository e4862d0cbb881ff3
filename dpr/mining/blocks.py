"""One block of questions after another: searched, filtered, written; several processes take blocks side by side."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from dpr.core.errors import LostRankError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.durable import durable_file, write_json
from dpr.formats.training_records import sample_to_json
from dpr.formats.training_sets import TrainingSet
from dpr.mining.audit import BlockAudit
from dpr.mining.corpus import MiningCorpus
from dpr.mining.negatives import Candidate, MiningSettings, choose_negatives
from dpr.mining.search import Asked, Finder, Found, PreparedSearch
from dpr.mining.veto import PairScorer, finish_together


@dataclass(frozen=True, slots=True)
class BlockJob:
    """What every process needs to know. ``source`` is the corpus, ``work`` holds what was made of it, ``out`` gets the blocks."""

    train: TrainingSet
    source: Path
    work: Path
    out: Path
    search: PreparedSearch
    mined_by: str
    settings: MiningSettings

    def part(self, rows: range) -> Path:
        """The finished records of a block; there when its audit is there too."""
        return self.out / f"part-{rows.start:09d}-{rows.stop:09d}.jsonl"

    def audit(self, rows: range) -> Path:
        return self.out / f"audit-{rows.start:09d}-{rows.stop:09d}.json"


class BlockMiner:
    """Does blocks of a job in one process."""

    def __init__(self, job: BlockJob) -> None:
        self._job = job

    @cached_property
    def _corpus(self) -> MiningCorpus:
        return MiningCorpus(self._job.source, self._job.work)

    @cached_property
    def _finder(self) -> Finder:
        return self._job.search.open()

    def mine(self, rows: range) -> None:
        """Searches, filters and writes a block."""
        self.write(rows, self.find(rows))

    def find(self, rows: range) -> list[Found]:
        """What the search gives for each question of a block."""
        samples = (self._job.train[row] for row in rows)
        asked = [
            Asked(sample.question, tuple(row for passage in sample.positives if (row := self._corpus.row_of(passage)) is not None))
            for sample in samples
        ]
        return self._finder.find(rows, asked, self._job.settings.to_rank)

    def write(self, rows: range, found: Sequence[Found], scorer: PairScorer | None = None) -> None:
        """Chooses the negatives of a block and writes its records and its audit."""
        job, corpus = self._job, self._corpus
        prepared: list[tuple[TrainingSample, tuple[Passage, ...]]] = []
        choices = []
        for row, one in zip(rows, found, strict=True):
            sample = job.train[row]
            positives = tuple(corpus.named(passage) for passage in sample.positives)
            existing = tuple(corpus.named(passage) for passage in sample.hard_negatives) if job.settings.keep_existing else ()
            choosing = choose_negatives(
                one.hits,
                corpus.passage,
                positives=positives + tuple(corpus.named(passage) for passage in job.train.known_positives(row)),
                existing=existing,
                answers=sample.answers,
                positive_score=one.positive_score,
                row=row,
                settings=job.settings,
            )
            prepared.append((replace(sample, positives=positives), existing))
            choices.append((sample.question, choosing))
        audit = BlockAudit()
        with durable_file(job.part(rows)) as out:
            for (sample, existing), one, mined in zip(prepared, found, finish_together(choices, scorer), strict=True):
                in_corpus = any(corpus.row_of(passage) is not None for passage in sample.positives)
                audit.add(sample, mined, one.positive_score, in_corpus=in_corpus)
                out.write(json.dumps(_record(sample, existing, mined.negatives, job.mined_by), ensure_ascii=False) + "\n")
        write_json(job.audit(rows), audit.record())


def _record(sample: TrainingSample, existing: tuple[Passage, ...], negatives: list[Candidate], mined_by: str) -> dict[str, Any]:
    mined = tuple(candidate.passage for candidate in negatives)
    record = sample_to_json(replace(sample, hard_negatives=existing + mined))
    for entry, candidate in zip(record["hard_negative_ctxs"][len(existing) :], negatives, strict=True):
        entry.update(score=round(candidate.score, 4), rank=candidate.rank, mined_by=mined_by)
        if candidate.cross_encoder_score is not None:
            entry["cross_encoder_score"] = round(candidate.cross_encoder_score, 4)
    return record


def mine_blocks(job: BlockJob, blocks: Sequence[range], *, processes: int, scorer: PairScorer | None) -> Iterator[range]:
    """Does the blocks, each yielded when it is written, in any order. With a cross-encoder, which stays in this process with all its
    threads, the others only search, and rest while it scores.

    Raises:
        LostRankError: a process was killed.
    """
    miner = BlockMiner(job)
    if processes <= 1:
        for rows in blocks:
            miner.write(rows, miner.find(rows), scorer)
            yield rows
        return
    threads = max(1, torch.get_num_threads() // processes)
    # Not fork: the threads that libraries have started do not survive it.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start, initargs=(job, threads))
    try:
        if scorer is None:
            running = {pool.submit(_mine, rows): rows for rows in blocks}
            for done in as_completed(running):
                done.result()
                yield running[done]
        else:
            for start in range(0, len(blocks), processes):
                together = blocks[start : start + processes]
                for rows, found in zip(together, list(pool.map(_find, together)), strict=True):
                    miner.write(rows, found, scorer)
                    yield rows
    except BrokenProcessPool:
        raise LostRankError("a mining process was killed, possibly because memory ran out; rerun the same command to resume") from None
    finally:
        pool.shutdown(cancel_futures=True)


_own: BlockMiner | None = None


def _start(job: BlockJob, threads: int) -> None:
    global _own
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _own = BlockMiner(job)


def _end_with_parent() -> None:
    """A pool's process whose parent was killed would wait for work for ever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _mine(rows: range) -> None:
    assert _own is not None
    _own.mine(rows)


def _find(rows: range) -> list[Found]:
    assert _own is not None
    return _own.find(rows)
