"""A teacher's scores, put into the samples whose passages they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from dpr.core.records import Passage, TrainingSample
from dpr.mining.negatives import PairScorer


def passages_of(sample: TrainingSample) -> tuple[Passage, ...]:
    """All passages of a sample, in the order of their scores."""
    return sample.positives + sample.hard_negatives + sample.other_negatives


def with_teacher_scores(sample: TrainingSample, scores: Iterable[float | None]) -> TrainingSample:
    """The sample with these scores of its passages, in place of any that it has."""
    left = iter(scores)

    def scored(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        return tuple(replace(passage, teacher_score=as_written(next(left))) for passage in passages)

    positives, hard, other = scored(sample.positives), scored(sample.hard_negatives), scored(sample.other_negatives)
    return replace(sample, positives=positives, hard_negatives=hard, other_negatives=other)


def scored_by(scorer: PairScorer, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The samples with the cross-encoder's log-odds of all their passages."""
    scores = iter(scorer.log_odds([(sample.question, passage) for sample in samples for passage in passages_of(sample)]))
    return [with_teacher_scores(sample, islice(scores, len(passages_of(sample)))) for sample in samples]


def as_written(score: float | None) -> float | None:
    """A score as files hold it: rounded where float32, in which training reads it, ends for usual scores."""
    return None if score is None else round(score, 6)
