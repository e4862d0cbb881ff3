"""``dpr mine``: hard negatives for a training set, block by block, so that a killed run can be resumed.

1. A work folder beside the output, tied to these data and settings, holds what the search needs and one file per finished block.
2. Each block of questions is searched, filtered and written; several processes mine blocks in parallel.
3. The blocks are joined into the output, the audit is written beside it, and the work folder is removed.
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
from dpr.mining.blocks import BLOCKS, BlockMiner, mine_blocks
from dpr.mining.corpus import TRAINING_PASSAGES, MiningCorpus, write_training_passages
from dpr.mining.lexical import LexicalSearch
from dpr.mining.negatives import MiningSettings, PairScorer
from dpr.mining.search import Search

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

    Mined passages carry ``score``, ``rank`` and ``mined_by``. Positives that are in ``corpus`` get its ids, so that training recognises a
    passage wherever it occurs. The result does not depend on ``processes`` or on interruptions. If ``out`` is already the finished
    result of the same data and settings, nothing is done.

    Args:
        search: BM25 by default.
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
    search = search or LexicalSearch()
    with held(out, file=lock_of(out)):
        base = {"version": _VERSION, "train": train.fingerprint, "corpus": corpus and content_sha256(corpus), "search": search.facts()}
        facts = base | {"settings": asdict(settings), "cross_encoder": scorer and scorer.fingerprint}
        work = out.with_name(f"{out.name}.mining")
        remove_leftovers(out.parent)
        # Unfinished work is finished first, even if a killed run had already written the output.
        if out.exists() and not overwrite and not _is_of(work / BLOCKS, facts):
            if (finished := _finished(out, facts)) is None:
                raise InputError("exists already", file=out, hint="choose another name, or overwrite=true")
            logger.info("%s is already the result of these data and settings: nothing to do", out)
            audit = finished
        else:
            _claim(work, base)
            _claim(work / BLOCKS, facts)
            miner, blocks = _prepared(train, work, settings, search, corpus)
            missing = [rows for rows in blocks if not miner.audit(rows).is_file()]
            progress = Progress("mining", len(train), unit="questions", done=len(train) - sum(map(len, missing)))
            for rows in mine_blocks(miner, missing, processes=processes, scorer=scorer):
                progress.advance(len(rows), 0)
            progress.close()
            audit = _finish(miner, blocks, out, facts)
    warn_of_few(audit, out)
    return audit


def _prepared(
    train: TrainingSet, work: Path, settings: MiningSettings, search: Search, corpus: Path | None
) -> tuple[BlockMiner, list[range]]:
    """Writes what the search needs to the work folder."""
    source = corpus or work / TRAINING_PASSAGES
    if corpus is None and not source.is_file():
        logger.info("%d distinct passages in the training data", write_training_passages(train, source))
    size = search.block_rows
    blocks = [range(start, min(start + size, len(train))) for start in range(0, len(train), size)]
    finder = search.prepare(train, blocks, MiningCorpus(source, work), work)
    return BlockMiner(train, source, work, finder, search.mined_by, settings), blocks


def _claim(folder: Path, facts: Facts) -> None:
    """Ties a work folder to these facts; work of other facts is removed."""
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
    """The audit of ``out`` if that is the complete result of these facts."""
    with suppress(InputError, AttributeError):
        audit: dict[str, Any] = read_json(_audit_file(out))
        if audit.get("made_of") == facts and audit.get("file") == describe_file(out):
            return audit
    return None


def _finish(miner: BlockMiner, blocks: Sequence[range], out: Path, facts: Facts) -> dict[str, Any]:
    audit = combine(read_json(miner.audit(rows)) for rows in blocks)
    join_record_files((miner.part(rows) for rows in blocks), out)
    audit |= {"made_of": facts, "file": describe_file(out)}
    write_json(_audit_file(out), audit, note={})
    remove_folder(miner.work)
    return audit


def _audit_file(out: Path) -> Path:
    return out.with_name(f"{out.name}.audit.json")
