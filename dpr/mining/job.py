"""``dpr mine``: hard negatives for a training set, and the steps of every job that works on one block by
block (``work``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpr.core.logs import Progress, get_logger
from dpr.core.records import TrainingSample
from dpr.formats.corpora import durable_text
from dpr.formats.training_records import sample_to_json
from dpr.formats.training_sets import TrainingSet
from dpr.mining.audit import BlockAudit, combine, warn_of_few
from dpr.mining.corpus import TRAINING_PASSAGES, MiningCorpus, write_training_passages
from dpr.mining.negatives import (
    Candidate,
    MiningSettings,
    PairScorer,
    as_written,
    choose_negatives,
    finish_together,
    scored_by,
)
from dpr.mining.search import Finder, LexicalSearch, Query, QueryHits, Search
from dpr.mining.work import BlockWriter, Elsewhere, write_blocks
from dpr.storage.checksums import content_sha256, verify_file
from dpr.storage.durable import describe_file, read_json, remove_folder, write_json
from dpr.storage.leftovers import remove
from dpr.storage.outputs import output, require_writable
from dpr.storage.steps import CLAIM, Steps

logger = get_logger(__name__)

_VERSION = 4
Facts = dict[str, Any]


def mine(
    train: TrainingSet,
    out: Path,
    settings: MiningSettings,
    *,
    search: Search | None = None,
    scorer: PairScorer | None = None,
    corpus: Path | None = None,
    keep_within: int = 0,
    processes: int = 1,
    elsewhere: Elsewhere | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``train`` with mined hard negatives as JSON lines to ``out``, the audit to ``<out>.audit.json``,
    and returns the audit.

    Mined passages carry ``score``, ``rank`` and ``mined_by``. Positives that are in ``corpus`` get its ids,
    so that training recognises a passage wherever it occurs. The result does not depend on who does the work,
    or on interruptions. If ``out`` is already the finished result of the same data and settings, nothing is
    done.

    Args:
        search: BM25 by default.
        scorer: the cross-encoder that ``settings.veto_above`` is for.
        corpus: passages to mine from; None = those of the training set.
        keep_within: leaves out questions for which no positive is among the first so many passages found; 0 =
        none.
        elsewhere: workers on other machines, in place of ``processes`` of this one.

    Raises:
        InputError: ``out`` exists, is something else, and ``overwrite`` is false; the corpus cannot be read.
        ConfigError: settings out of range.
        LostRankError: one of the ``processes`` was killed.
        CheckpointError: another run is writing ``out``.
    """
    settings.check()
    search = search or LexicalSearch()
    base = {
        "version": _VERSION,
        "train": train.fingerprint,
        "corpus": corpus and content_sha256(corpus),
        "search": search.facts(),
    }

    def prepare(steps: Steps, blocks: Sequence[range]) -> BlockMiner:
        work = steps.folder.parent
        source = source_of(train, corpus, work)
        finder = search.prepare(train, blocks, MiningCorpus(source, work), work)
        return BlockMiner(train, source, steps, finder, search.mined_by, settings, keep_within)

    facts = base | {"settings": asdict(settings), "cross_encoder": scorer and scorer.fingerprint}
    facts |= {"keep_within": keep_within} if keep_within else {}
    job = BlockJob("mining", base, facts, search.block_rows, prepare, combine, scorer)
    audit = run_job(job, train, out, processes=processes, overwrite=overwrite, elsewhere=elsewhere)
    warn_of_few(audit, out)
    return audit


@dataclass(frozen=True)
class BlockMiner(BlockWriter):
    """Mines a block."""

    finder: Finder
    mined_by: str
    settings: MiningSettings
    keep_within: int = 0

    def find(self, rows: range) -> list[QueryHits]:
        """What the search finds for each question of a block."""
        samples = [self.train[row] for row in rows]
        queries = [Query(sample.question, self._known(sample)) for sample in samples]
        return self.finder.find(rows, queries, self.settings.to_rank)

    def _known(self, sample: TrainingSample) -> tuple[int, ...]:
        """Rows of the positives that are in the corpus."""
        rows = (self.corpus.row_of(passage) for passage in sample.positives)
        return tuple(row for row in rows if row is not None)

    def _is_kept(self, sample: TrainingSample, hits: QueryHits) -> bool:
        if not self.keep_within:
            return True
        known = {self.corpus.id_at(row) for row in self._known(sample)}
        return any(key in known for key, _ in hits.hits[: self.keep_within])

    def write(self, rows: range, hits: Sequence[QueryHits], scorer: PairScorer | None = None) -> None:
        """Chooses the negatives of a block and writes its records and its audit."""
        corpus = self.corpus
        prepared: list[TrainingSample] = []
        choices = []
        kept = [
            (row, sample, one)
            for row, one in zip(rows, hits, strict=True)
            if self._is_kept(sample := self.train[row], one)
        ]
        for row, sample, one in kept:
            positives = tuple(corpus.named(passage) for passage in sample.positives)
            existing = (
                tuple(corpus.named(passage) for passage in sample.hard_negatives)
                if self.settings.keep_existing
                else ()
            )
            choosing = choose_negatives(
                one.hits,
                corpus.passage,
                positives=positives
                + tuple(corpus.named(passage) for passage in self.train.known_positives(row)),
                existing=existing,
                answers=sample.answers,
                positive_score=one.positive_score,
                row=row,
                settings=self.settings,
            )
            prepared.append(replace(sample, positives=positives, hard_negatives=existing))
            choices.append((sample.question, choosing))
        block_audit = BlockAudit(not_found=len(rows) - len(kept))
        results = finish_together(choices, scorer)
        if scorer is not None:
            prepared = scored_by(scorer, prepared)

        def records() -> Iterator[dict[str, Any]]:
            for sample, (_, _, one), mined in zip(prepared, kept, results, strict=True):
                block_audit.add(sample, mined, one.positive_score, in_corpus=bool(self._known(sample)))
                yield _record(sample, mined.negatives, self.mined_by)

        self.save(rows, records(), block_audit.record)


def _record(sample: TrainingSample, negatives: list[Candidate], mined_by: str) -> dict[str, Any]:
    existing = sample.hard_negatives
    mined = tuple(
        replace(candidate.passage, teacher_score=as_written(candidate.log_odds)) for candidate in negatives
    )
    record = sample_to_json(replace(sample, hard_negatives=existing + mined))
    for entry, candidate in zip(record["hard_negative_ctxs"][len(existing) :], negatives, strict=True):
        entry.update(score=round(candidate.score, 4), rank=candidate.rank, mined_by=mined_by)
        if candidate.cross_encoder_score is not None:
            entry["cross_encoder_score"] = round(candidate.cross_encoder_score, 4)
    return record


def _joined(parts: Iterable[Path]) -> Iterator[str]:
    return (part.read_text(encoding="utf-8") for part in parts)


@dataclass(frozen=True)
class BlockJob:
    """Something done to every question of a training set.

    ``base`` decides what the work folder holds, ``facts`` the output too. ``prepare`` takes the blocks, as
    steps and as rows; ``combine`` makes one audit of those of the blocks, ``join`` the text of the output of
    their records, by default all of them in order.
    """

    name: str
    base: Facts
    facts: Facts
    block_rows: int
    prepare: Callable[[Steps, Sequence[range]], BlockWriter]
    combine: Callable[[Iterable[Facts]], Facts]
    scorer: PairScorer | None = None
    join: Callable[[Iterable[Path]], Iterable[str]] = _joined


def run_job(
    job: BlockJob,
    train: TrainingSet,
    out: Path,
    *,
    processes: int,
    overwrite: bool,
    elsewhere: Elsewhere | None = None,
) -> Facts:
    """Does what is left of a job and returns its audit; raises as ``mine`` does."""
    require_writable(out)
    work = out.with_name(f"{out.name}.{job.name}")
    audit_file = out.with_name(f"{out.name}.audit.json")
    with output(out, job.facts, overwrite=overwrite) as is_missing:
        # A run may have been killed between the output and its audit.
        if not is_missing and not verify_file(audit_file):
            remove(work)
            finished: Facts = read_json(audit_file)
            return finished
        Steps(work, job.base, restart=(work / CLAIM).is_file())  # a folder of somebody else is left alone
        steps = Steps(work / "blocks", job.facts, restart=True)
        size = job.block_rows
        blocks = [range(start, min(start + size, len(train))) for start in range(0, len(train), size)]
        writer = job.prepare(steps, blocks)
        missing = [rows for rows in blocks if not steps.is_done(rows.start)]
        progress = Progress(job.name, len(train), unit="questions", done=len(train) - sum(map(len, missing)))
        for rows in write_blocks(
            writer, missing, processes=processes, scorer=job.scorer, elsewhere=elsewhere
        ):
            progress.advance(len(rows), 0)
        progress.close()
        audit = job.combine(read_json(writer.audit(rows)) for rows in blocks)
        with durable_text(out, note=job.facts) as joined:
            joined.writelines(job.join(writer.part(rows) for rows in blocks))
        audit |= {"made_of": job.facts, "file": describe_file(out)}
        write_json(audit_file, audit, note={})
        remove_folder(work)
        return audit


def source_of(train: TrainingSet, corpus: Path | None, work: Path) -> Path:
    """The corpus, or without one the passages of the training set, which are written to the work folder."""
    source = corpus or work / TRAINING_PASSAGES
    if corpus is None and not source.is_file():
        logger.info("%d distinct passages in the training data", write_training_passages(train, source))
    return source
