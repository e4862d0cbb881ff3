"""Blocks of questions, each searched, filtered and written. Several processes mine blocks in parallel."""

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
from dpr.mining.negatives import Candidate, MiningSettings, PairScorer, choose_negatives, finish_together
from dpr.mining.search import Asked, Finder, Found

BLOCKS = "blocks"


@dataclass(frozen=True)
class BlockMiner:
    """What every process needs to know to mine a block. ``source`` is the corpus, ``work`` holds what was made of it and the blocks."""

    train: TrainingSet
    source: Path
    work: Path
    finder: Finder
    mined_by: str
    settings: MiningSettings

    @cached_property
    def _corpus(self) -> MiningCorpus:
        return MiningCorpus(self.source, self.work)

    def part(self, rows: range) -> Path:
        """The records of a block; complete if its audit exists too."""
        return self.work / BLOCKS / f"part-{rows.start:09d}-{rows.stop:09d}.jsonl"

    def audit(self, rows: range) -> Path:
        return self.work / BLOCKS / f"audit-{rows.start:09d}-{rows.stop:09d}.json"

    def find(self, rows: range) -> list[Found]:
        """What the search finds for each question of a block."""
        asked = []
        for row in rows:
            sample = self.train[row]
            places = (self._corpus.row_of(passage) for passage in sample.positives)
            asked.append(Asked(sample.question, tuple(place for place in places if place is not None)))
        return self.finder.find(rows, asked, self.settings.to_rank)

    def write(self, rows: range, found: Sequence[Found], scorer: PairScorer | None = None) -> None:
        """Chooses the negatives of a block and writes its records and its audit."""
        corpus = self._corpus
        prepared: list[tuple[TrainingSample, tuple[Passage, ...]]] = []
        choices = []
        for row, one in zip(rows, found, strict=True):
            sample = self.train[row]
            positives = tuple(corpus.named(passage) for passage in sample.positives)
            existing = tuple(corpus.named(passage) for passage in sample.hard_negatives) if self.settings.keep_existing else ()
            choosing = choose_negatives(
                one.hits,
                corpus.passage,
                positives=positives + tuple(corpus.named(passage) for passage in self.train.known_positives(row)),
                existing=existing,
                answers=sample.answers,
                positive_score=one.positive_score,
                row=row,
                settings=self.settings,
            )
            prepared.append((replace(sample, positives=positives), existing))
            choices.append((sample.question, choosing))
        block_audit = BlockAudit()
        with durable_file(self.part(rows)) as out:
            for (sample, existing), one, mined in zip(prepared, found, finish_together(choices, scorer), strict=True):
                in_corpus = any(corpus.row_of(passage) is not None for passage in sample.positives)
                block_audit.add(sample, mined, one.positive_score, in_corpus=in_corpus)
                out.write(json.dumps(_record(sample, existing, mined.negatives, self.mined_by), ensure_ascii=False) + "\n")
        write_json(self.audit(rows), block_audit.record())


def _record(sample: TrainingSample, existing: tuple[Passage, ...], negatives: list[Candidate], mined_by: str) -> dict[str, Any]:
    mined = tuple(candidate.passage for candidate in negatives)
    record = sample_to_json(replace(sample, hard_negatives=existing + mined))
    for entry, candidate in zip(record["hard_negative_ctxs"][len(existing) :], negatives, strict=True):
        entry.update(score=round(candidate.score, 4), rank=candidate.rank, mined_by=mined_by)
        if candidate.cross_encoder_score is not None:
            entry["cross_encoder_score"] = round(candidate.cross_encoder_score, 4)
    return record


def mine_blocks(miner: BlockMiner, blocks: Sequence[range], *, processes: int, scorer: PairScorer | None) -> Iterator[range]:
    """Mines the blocks and yields each when it is written, in any order.

    A cross-encoder stays in this process with all its threads; the other processes only search, and rest while it scores.

    Raises:
        LostRankError: a process was killed.
    """
    if processes <= 1:
        for rows in blocks:
            miner.write(rows, miner.find(rows), scorer)
            yield rows
        return
    threads = max(1, torch.get_num_threads() // processes)
    # Not fork: the threads that libraries have started do not survive it. Each gets a copy: files that are open here cannot be sent.
    context, arguments = get_context("spawn"), (replace(miner), threads)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=arguments)
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


_miner: BlockMiner | None = None


def _start(miner: BlockMiner, threads: int) -> None:
    global _miner
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _miner = miner


def _end_with_parent() -> None:
    """Without it, a worker whose parent was killed waits for work forever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _find(rows: range) -> list[Found]:
    assert _miner is not None
    return _miner.find(rows)


def _mine(rows: range) -> None:
    assert _miner is not None
    _miner.write(rows, _miner.find(rows))
