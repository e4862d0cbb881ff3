"""``dpr mine``: hard negatives by BM25 for a training set, block by block, so that a run that was killed goes on where it was.

1. A work folder beside the output holds the index and one file per finished block; it belongs to exactly these data and settings.
2. Each block of questions is searched, filtered and written; several processes take blocks side by side.
3. The blocks are joined into the output, the audit is written beside it, the work folder goes.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, TrainingSample
from dpr.formats.checksums import checksummed
from dpr.formats.durable import durable_file, read_json, remove_leftovers, write_json
from dpr.formats.parsed_cache import cache_key
from dpr.formats.training_files.dpr_json import join_record_files
from dpr.formats.training_records import sample_to_json
from dpr.formats.training_sets import TrainingSet
from dpr.mining.audit import BlockAudit, combine
from dpr.mining.corpus import OWN_CORPUS, MiningCorpus, write_own_passages
from dpr.mining.negatives import Candidate, MiningSettings, choose_negatives

logger = get_logger(__name__)

BLOCK_ROWS = 500
_VERSION = 1
_Task = tuple[range, TrainingSet, Path, Path, MiningSettings]
_opened: dict[str, MiningCorpus] = {}


def mine(
    train: TrainingSet,
    out: Path,
    settings: MiningSettings,
    *,
    corpus: Path | None = None,
    k1: float = 0.9,
    b: float = 0.4,
    processes: int = 1,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``train`` with mined hard negatives as JSON lines to ``out``, the audit to ``<out>.audit.json``, and returns the audit.

    Mined passages carry ``score``, ``rank`` and ``mined_by``. Positives that are in ``corpus`` get its ids, so that training knows a
    passage again wherever it occurs. The result does not depend on ``processes``, nor on interruptions.

    Args:
        corpus: passages to mine from; None = those of the training set.

    Raises:
        InputError: ``out`` exists and ``overwrite`` is false; the corpus cannot be read.
        ConfigError: settings out of range.
    """
    settings.check()
    if out.exists() and not overwrite:
        raise InputError("exists already", file=out, hint="choose another name, or overwrite=true")
    work = _work_folder(train, out, settings, corpus, k1, b)
    source = corpus or work / OWN_CORPUS
    if corpus is None and not source.is_file():
        logger.info("%d distinct passages in the training data", write_own_passages(train, source))
    MiningCorpus.build(source, work, k1=k1, b=b)
    size = BLOCK_ROWS
    blocks = [range(start, min(start + size, len(train))) for start in range(0, len(train), size)]
    waiting = [(rows, train, source, work, settings) for rows in blocks if not _part(work, rows).is_file()]
    done = len(blocks) - len(waiting)
    for _ in _results(waiting, processes):
        done += 1
        logger.info("%d of %d questions", min(done * size, len(train)), len(train))
    _opened.clear()
    return _finish(blocks, out, work)


def _work_folder(train: TrainingSet, out: Path, settings: MiningSettings, corpus: Path | None, k1: float, b: float) -> Path:
    """The folder of unfinished work; emptied when it is of other data or settings."""
    work = out.with_name(f"{out.name}.mining")
    facts = {"version": _VERSION, "train": train.fingerprint, "corpus": corpus and cache_key([corpus], []), "k1": k1, "b": b}
    facts |= asdict(settings)
    note = work / "settings.json"
    if work.is_dir() and (not note.is_file() or read_json(note) != facts):
        logger.warning("%s is of other data or settings and is begun anew", work)
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    remove_leftovers(work)
    write_json(note, facts)
    return work


def _results(tasks: list[_Task], processes: int) -> Iterator[int]:
    if processes <= 1:
        yield from map(_mine_block, tasks)
        return
    # Not fork: the threads that libraries have started do not survive it.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_mine_block, tasks)


def _mine_block(task: _Task) -> int:
    rows, train, source, work, settings = task
    key = str(work)
    if key not in _opened:
        _opened[key] = MiningCorpus(source, work)
    corpus = _opened[key]
    audit = BlockAudit()
    lines = []
    for row in rows:
        sample = train[row]
        positives = tuple(corpus.named(passage) for passage in sample.positives)
        known = positives + tuple(corpus.named(passage) for passage in train.known_positives(row))
        hits, positive_score = corpus.search(sample.question, settings.to_rank, positives)
        existing = tuple(corpus.named(passage) for passage in sample.hard_negatives) if settings.keep_existing else ()
        mined = choose_negatives(
            [Candidate(passage, score, rank) for rank, (passage, score) in enumerate(hits, 1)],
            positives=known,
            existing=existing,
            answers=sample.answers,
            positive_score=positive_score,
            row=row,
            settings=settings,
        )
        audit.add(sample, mined, positive_score)
        lines.append(json.dumps(_record(sample, positives, existing, mined.negatives), ensure_ascii=False) + "\n")
    write_json(_audit_file(work, rows), audit.record())
    with durable_file(_part(work, rows)) as out:
        out.writelines(lines)
    return rows.start


def _record(
    sample: TrainingSample, positives: tuple[Passage, ...], existing: tuple[Passage, ...], negatives: list[Candidate]
) -> dict[str, Any]:
    mined = tuple(candidate.passage for candidate in negatives)
    record = sample_to_json(replace(sample, positives=positives, hard_negatives=existing + mined))
    for entry, candidate in zip(record["hard_negative_ctxs"][len(existing) :], negatives, strict=True):
        entry.update(score=round(candidate.score, 4), rank=candidate.rank, mined_by="bm25")
    return record


def _finish(blocks: list[range], out: Path, work: Path) -> dict[str, Any]:
    audit = combine(read_json(_audit_file(work, rows)) for rows in blocks)
    with checksummed(out):
        join_record_files((_part(work, rows) for rows in blocks), out)
    audit_file = out.with_name(f"{out.name}.audit.json")
    with checksummed(audit_file):
        write_json(audit_file, audit)
    shutil.rmtree(work)
    return audit


def _part(work: Path, rows: range) -> Path:
    return work / f"part-{rows.start:09d}-{rows.stop:09d}.jsonl"


def _audit_file(work: Path, rows: range) -> Path:
    return work / f"audit-{rows.start:09d}-{rows.stop:09d}.json"
