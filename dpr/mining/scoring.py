"""``dpr score``: a teacher's score for every passage of a training set, block by block, so that a killed run
can be resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.formats.training_records import sample_to_json
from dpr.formats.training_sets import TrainingSet
from dpr.indexer.fusion import fuse_linear
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.mining.audit import quantiles
from dpr.mining.corpus import MiningCorpus
from dpr.mining.job import BlockJob, run_job, source_of
from dpr.mining.negatives import PairScorer, passages_of, scored_by, with_teacher_scores
from dpr.mining.search import Finder, Query, Search
from dpr.mining.work import BlockWriter
from dpr.storage.checksums import content_sha256
from dpr.storage.steps import Steps

logger = get_logger(__name__)

BLOCK_ROWS = 500
"""Questions whose pairs a cross-encoder scores together."""
_VERSION = 1
_COUNTED = ("questions", "passages", "passages with a score", "questions whose best passage is a positive")
_SIDES = ("positive", "negative")
Scores = list[float | None]


@dataclass(frozen=True)
class Teacher:
    """Who scores: a cross-encoder (its log-odds), one search (its scores), or two, which are a hybrid.

    A hybrid's score is what ``dpr retrieve hybrid=linear`` ranks by: each side's scores of its ``depth`` best
    passages of the corpus, scaled to 0 to 1 for each question, ``weight`` times the first's plus the rest
    times the second's; 0 for a passage that neither lists.
    """

    scorer: PairScorer | None = None
    searches: tuple[Search, ...] = ()
    weight: float = DEFAULT_WEIGHT
    depth: int = 100

    def __post_init__(self) -> None:
        if (self.scorer is None) == (not self.searches) or len(self.searches) > 2:
            raise ConfigError("a teacher is a cross-encoder, a search or two searches")
        if not 0 <= self.weight <= 1:
            raise ConfigError(f"hybrid_weight={self.weight} is out of range; expected 0 to 1")
        if self.depth < 1:
            raise ConfigError(f"hybrid_depth={self.depth} is out of range; expected 1 or more")

    def facts(self) -> dict[str, Any]:
        """What decides its scores beside the searches."""
        hybrid = {"weight": self.weight, "depth": self.depth} if len(self.searches) == 2 else None
        return {"cross_encoder": self.scorer and self.scorer.fingerprint, "hybrid": hybrid}


def score_passages(
    train: TrainingSet,
    out: Path,
    teacher: Teacher,
    *,
    corpus: Path | None = None,
    processes: int = 1,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``train`` with a ``teacher_score`` of every passage as JSON lines to ``out``, the audit to
    ``<out>.audit.json``; returns it.

    Scores that the data have are replaced. A search knows the passages of ``corpus`` (None: those of the
    training set), by their text; others get no score. The result does not depend on ``processes`` or on
    interruptions.

    Raises:
        InputError, ConfigError, LostRankError, CheckpointError: as ``dpr.mining.job.mine``.
    """
    searches = teacher.searches
    base = {"version": _VERSION, "train": train.fingerprint, "corpus": corpus and content_sha256(corpus)}
    base["search"] = [search.facts() for search in searches]

    def prepare(steps: Steps, blocks: Sequence[range]) -> BlockScorer:
        if not searches:
            return BlockScorer(train, Path(), steps, (), teacher.weight, teacher.depth)
        work = steps.folder.parent
        source = source_of(train, corpus, work)
        opened = MiningCorpus(source, work)
        finders = tuple(search.prepare(train, blocks, opened, work) for search in searches)
        return BlockScorer(train, source, steps, finders, teacher.weight, teacher.depth)

    size = searches[0].block_rows if searches else BLOCK_ROWS
    job = BlockJob("scoring", base, base | teacher.facts(), size, prepare, _combine, teacher.scorer)
    audit = run_job(job, train, out, processes=processes, overwrite=overwrite)
    counts = audit["counts"]
    if missing := counts["passages"] - counts["passages with a score"]:
        logger.warning(
            "%s: %d of %d passages have no score, since they are not in the corpus",
            out,
            missing,
            counts["passages"],
        )
    return audit


@dataclass(frozen=True)
class BlockScorer(BlockWriter):
    """Scores a block."""

    finders: tuple[Finder, ...]
    weight: float
    depth: int

    def find(self, rows: range) -> list[Scores]:
        """The searches' scores of all passages of each question; nothing of a cross-encoder, which scores
        when the block is written."""
        if not self.finders:
            return []
        samples = [self.train[row] for row in rows]
        questions = [sample.question for sample in samples]
        passages = [[self.corpus.row_of(passage) for passage in passages_of(sample)] for sample in samples]
        if len(self.finders) == 2:
            return self._fused(rows, questions, passages)
        known = [[row for row in listed if row is not None] for listed in passages]
        scores = map(iter, self.finders[0].scores(rows, questions, known))
        return [
            [None if row is None else next(values) for row in listed]
            for listed, values in zip(passages, scores, strict=True)
        ]

    def _fused(
        self, rows: range, questions: Sequence[str], passages: Sequence[Sequence[int | None]]
    ) -> list[Scores]:
        queries = [Query(question, ()) for question in questions]
        first, second = (
            [hits.hits for hits in finder.find(rows, queries, self.depth)] for finder in self.finders
        )
        fused = map(dict, fuse_linear(first, second, weight=self.weight, k=2 * self.depth))
        return [
            [None if row is None else scores.get(self.corpus.id_at(row), 0.0) for row in listed]
            for listed, scores in zip(passages, fused, strict=True)
        ]

    def write(self, rows: range, found: Sequence[Scores], scorer: PairScorer | None = None) -> None:
        samples = [self.train[row] for row in rows]
        if scorer is None:
            samples = [
                with_teacher_scores(sample, scores) for sample, scores in zip(samples, found, strict=True)
            ]
        else:
            samples = scored_by(scorer, samples)
        self.save(rows, map(sample_to_json, samples), lambda: _audit(samples))


def _audit(samples: Sequence[TrainingSample]) -> dict[str, Any]:
    """The statistics of a block."""
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    values: dict[str, list[float]] = {side: [] for side in _SIDES}
    for sample in samples:
        sides = dict(
            zip(_SIDES, (sample.positives, sample.hard_negatives + sample.other_negatives), strict=True)
        )
        scores = {
            side: [item.teacher_score for item in listed if item.teacher_score is not None]
            for side, listed in sides.items()
        }
        counts["questions"] += 1
        counts["passages"] += len(passages_of(sample))
        counts["passages with a score"] += sum(map(len, scores.values()))
        best = max(scores["positive"], default=None)
        counts["questions whose best passage is a positive"] += best is not None and best >= max(
            scores["negative"], default=best
        )
        for side in _SIDES:
            values[side] += scores[side]
    return {"counts": dict(counts), "values": values}


def _combine(blocks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The audit of all blocks: counts, and quantiles of the scores of positives and negatives."""
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    values: dict[str, list[np.ndarray]] = {side: [] for side in _SIDES}
    for block in blocks:
        counts.update(block["counts"])
        for side in _SIDES:
            values[side].append(np.array(block["values"][side], dtype=np.float32))
    return {
        "counts": dict(counts),
        **{f"{side}_score_quantiles": quantiles(parts) for side, parts in values.items()},
    }


def audit_lines(audit: dict[str, Any]) -> Iterator[str]:
    """The audit as a table for people."""
    for name in _COUNTED:
        yield f"{audit['counts'][name]:>10,}  {name}"
    header = " ".join(f"{name:>8}" for name in ("5%", "25%", "50%", "75%", "95%"))
    yield f"  quantiles of scores of {header}"
    for side in _SIDES:
        if listed := audit[f"{side}_score_quantiles"]:
            yield f"    {side + 's':<20} " + " ".join(f"{value:>8.3f}" for value in listed)
