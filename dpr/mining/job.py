"""``dpr mine``: hard negatives for a training set, block by block, so that a killed run resumes where it was.

1. A work folder beside the output holds what the search needs and one file per finished block; it is of exactly these data and settings.
2. Each block of questions is searched, filtered and written; several processes take blocks side by side.
3. The blocks are joined into the output, the audit is written beside it, the work folder goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.progress import Progress
from dpr.formats.checksums import content_sha256
from dpr.formats.durable import describe_file, read_json, remove_folder, write_json
from dpr.formats.leftovers import remove_leftovers
from dpr.formats.outputs import require_writable
from dpr.formats.run_lock import held, lock_of
from dpr.formats.training_files.json_formats import join_record_files
from dpr.formats.training_sets import TrainingSet
from dpr.mining.audit import combine, warn_of_few
from dpr.mining.blocks import BlockJob, mine_blocks
from dpr.mining.corpus import OWN_CORPUS, MiningCorpus, write_own_passages
from dpr.mining.lexical import LexicalSearch
from dpr.mining.negatives import MiningSettings
from dpr.mining.search import Search
from dpr.mining.veto import PairScorer

logger = get_logger(__name__)

_VERSION = 2
Facts = dict[str, Any]


def mine(
    train: TrainingSet,
    out: Path,
    settings: MiningSettings,
    *,
    search: Search | None = None,
    scorer: PairScorer | None = None,
    corpus: Path | None = None,
    processes: int = 1,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``train`` with mined hard negatives as JSON lines to ``out``, the audit to ``<out>.audit.json``, and returns the audit.

    Mined passages carry ``score``, ``rank`` and ``mined_by``. Positives that are in ``corpus`` get its ids, so that training knows a
    passage again wherever it occurs. The result does not depend on ``processes``, nor on interruptions. Where ``out`` is the finished
    result of the same data and settings, nothing is done.

    Args:
        search: BM25 if absent.
        scorer: the cross-encoder that ``settings.veto_above`` is for.
        corpus: passages to mine from; None = those of the training set.

    Raises:
        InputError: ``out`` exists, is something else, and ``overwrite`` is false; the corpus cannot be read.
        ConfigError: settings out of range.
        LostRankError: one of the ``processes`` was killed.
        CheckpointError: another run is writing ``out``.
    """
    settings.check()
    require_writable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with held(out, file=lock_of(out)):
        audit = _mine(train, out, settings, search or LexicalSearch(), scorer, corpus=corpus, processes=processes, overwrite=overwrite)
    warn_of_few(audit, out)
    return audit


def _mine(
    train: TrainingSet,
    out: Path,
    settings: MiningSettings,
    search: Search,
    scorer: PairScorer | None,
    *,
    corpus: Path | None,
    processes: int,
    overwrite: bool,
) -> dict[str, Any]:
    base = {"version": _VERSION, "train": train.fingerprint, "corpus": corpus and content_sha256(corpus), "search": search.facts()}
    facts = base | {"settings": asdict(settings), "cross_encoder": scorer and scorer.fingerprint}
    work = out.with_name(f"{out.name}.mining")
    remove_leftovers(out.parent)
    # Work that is still there is finished first, also where a killed run had come as far as the output.
    if out.exists() and not overwrite and not _is_of(work / "blocks", facts):
        audit = _finished(out, facts)
        if audit is None:
            raise InputError("exists already", file=out, hint="choose another name, or overwrite=true")
        logger.info("%s is there already, of these data and settings: nothing to do", out)
        return audit
    _claim(work, base)
    _claim(work / "blocks", facts)
    source = corpus or work / OWN_CORPUS
    if corpus is None and not source.is_file():
        logger.info("%d distinct passages in the training data", write_own_passages(train, source))
    size = search.block_rows
    blocks = [range(start, min(start + size, len(train))) for start in range(0, len(train), size)]
    prepared = search.prepare(train, blocks, MiningCorpus(source, work), work)
    job = BlockJob(train, source, work, work / "blocks", prepared, search.mined_by, settings)
    _mine_missing(job, blocks, processes, scorer)
    return _finish(job, blocks, out, facts)


def _mine_missing(job: BlockJob, blocks: Sequence[range], processes: int, scorer: PairScorer | None) -> None:
    waiting = [rows for rows in blocks if not job.audit(rows).is_file()]
    progress = Progress("mining", len(job.train), unit="questions", done=len(job.train) - sum(map(len, waiting)))
    for rows in mine_blocks(job, waiting, processes=processes, scorer=scorer):
        progress.advance(len(rows), 0)
    progress.close()


def _claim(folder: Path, facts: Facts) -> None:
    """Makes the folder one of unfinished work of these facts; what is there of others goes."""
    if folder.is_dir() and not _is_of(folder, facts):
        logger.warning("%s belongs to other data or settings; starting over", folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    write_json(folder / "made_of.json", facts)


def _is_of(folder: Path, facts: Facts) -> bool:
    with suppress(InputError):
        return bool(read_json(folder / "made_of.json") == facts)
    return False


def _finished(out: Path, facts: Facts) -> dict[str, Any] | None:
    """The audit of ``out`` where it is the whole result of these facts."""
    with suppress(InputError, AttributeError):
        audit: dict[str, Any] = read_json(_audit_file(out))
        if audit.get("made_of") == facts and audit.get("file") == describe_file(out):
            return audit
    return None


def _finish(job: BlockJob, blocks: Sequence[range], out: Path, facts: Facts) -> dict[str, Any]:
    audit = combine(read_json(job.audit(rows)) for rows in blocks)
    join_record_files((job.part(rows) for rows in blocks), out)
    audit |= {"made_of": facts, "file": describe_file(out)}
    write_json(_audit_file(out), audit, note={})
    remove_folder(job.work)
    return audit


def _audit_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.audit.json")
