"""``dpr score``: a teacher's score for every passage of training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dpr.core.logs import get_logger
from dpr.formats.training_files.dpr import sample_to_json
from dpr.indexer.ranking import fuse_linear
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.mining.blocks import BlockJob, Record, quantile_lines
from dpr.mining.search import Query
from dpr.mining.teacher_scores import scored_by, with_teacher_scores

logger = get_logger(__name__)


_DEPTH = 100
"""Passages that each side of a hybrid ranks."""
_SCORED = ("questions", "passages", "passages with a score", "questions whose best passage is a positive")


@dataclass
class Scoring(BlockJob):
    """Job that writes training data with a ``teacher_score`` of every passage, in place of existing ones.

    The teacher is a cross-encoder (its log-odds), one search (its scores), or two searches as a hybrid. The
    hybrid is the sum by which ``dpr retrieve hybrid=linear`` ranks. Each side's scores of its 100 best
    passages of the corpus are scaled to 0 to 1 for each question; the score is ``weight`` times the first's
    plus the rest times the second's, and 0 for a passage that neither lists. A search identifies the passages
    of the corpus by their text; others get no score.
    """

    weight: float = DEFAULT_WEIGHT
    name = "scoring"

    def chosen(self) -> dict[str, Any]:
        return {"cross_encoder": self.scorer and self.scorer.fingerprint, "weight": self.weight}

    def warn(self, audit: dict[str, Any]) -> None:
        total = audit["counts"]["passages"]
        if missing := total - audit["counts"]["passages with a score"]:
            message = "%s: %d of %d passages have no score, since they are not in the corpus"
            logger.warning(message, self.out, missing, total)

    def do_block(self, rows: range) -> tuple[list[Record], Record]:
        samples = [self.train[row] for row in rows]
        if self.scorer is not None:
            samples = scored_by(self.scorer, samples)
        else:
            # the searches' scores of all passages of each question
            corpus = self.corpus
            rows_of = [[corpus.row_of(passage) for passage in sample.passages] for sample in samples]
            known = [[row for row in listed if row is not None] for listed in rows_of]
            if len(self.searches) == 2:
                queries = [Query(sample.question) for sample in samples]
                first, second = ([hits for hits, _ in one.find(queries, _DEPTH)] for one in self.searches)
                fused = map(dict, fuse_linear(first, second, weight=self.weight, k=2 * _DEPTH))
                found = [
                    [scores.get(corpus.id_at(row), 0.0) for row in listed]
                    for listed, scores in zip(known, fused, strict=True)
                ]
            else:
                found = self.searches[0].scores([sample.question for sample in samples], known)
            left = chain.from_iterable(found)
            samples = [
                with_teacher_scores(sample, [None if row is None else next(left) for row in listed])
                for sample, listed in zip(samples, rows_of, strict=True)
            ]

        counts: Counter[str] = Counter(dict.fromkeys(_SCORED, 0))
        values: dict[str, list[float]] = {"positive_score": [], "negative_score": []}
        for sample in samples:
            negatives = sample.hard_negatives + sample.other_negatives
            ours, theirs = (
                [passage.teacher_score for passage in passages if passage.teacher_score is not None]
                for passages in (sample.positives, negatives)
            )
            counts["questions"] += 1
            counts["passages"] += len(sample.positives) + len(negatives)
            counts["passages with a score"] += len(ours) + len(theirs)
            if ours and max(ours) >= max(theirs, default=max(ours)):
                counts["questions whose best passage is a positive"] += 1
            values["positive_score"] += ours
            values["negative_score"] += theirs
        return [sample_to_json(sample) for sample in samples], {"counts": dict(counts), "values": values}


def score_lines(audit: dict[str, Any]) -> Iterator[str]:
    """Yields the audit as a table."""
    for name in _SCORED:
        yield f"{audit['counts'][name]:>10,}  {name}"
    yield from quantile_lines(
        audit, {"positive_score": "scores of positives", "negative_score": "scores of negatives"}
    )
