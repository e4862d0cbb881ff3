"""Scores of a teacher in training data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from dpr.core.records import Passage, TrainingSample
from dpr.models.cross_encoder import CrossEncoder


def with_teacher_scores(sample: TrainingSample, scores: Iterable[float | None]) -> TrainingSample:
    """Returns the sample with these scores of its passages, in place of existing ones."""
    left = iter(scores)

    def scored(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        return tuple(replace(passage, teacher_score=as_written(next(left))) for passage in passages)

    positives = scored(sample.positives)
    hard = scored(sample.hard_negatives)
    other = scored(sample.other_negatives)
    return replace(sample, positives=positives, hard_negatives=hard, other_negatives=other)


def scored_by(scorer: CrossEncoder, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Returns the samples with the cross-encoder's log-odds of all their passages."""
    pairs = [(sample.question, passage) for sample in samples for passage in sample.passages]
    scores = iter(scorer.log_odds(pairs))
    return [with_teacher_scores(sample, islice(scores, len(sample.passages))) for sample in samples]


def as_written(score: float | None) -> float | None:
    """Returns a score as files hold it: with six decimals, where float32, in which training reads it, usually ends."""
    return None if score is None else round(score, 6)
