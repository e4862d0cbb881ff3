"""From what a retriever found for a question to its negatives: the filters, each with its name for the audit;
and scores of a teacher."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from dpr.core.records import Passage, TrainingSample
from dpr.data.text import plain
from dpr.data.words import NEAR_DUPLICATE, jaccard, words_of
from dpr.evaluation.answer_match import has_answer
from dpr.indexer.ranking import Ranking
from dpr.mining.settings import MiningSettings

VETO = 0.5
"""Probability of being relevant from which a cross-encoder leaves a passage out."""
_KNOWN = "known positive"


@dataclass(slots=True)
class Candidate:
    """A passage that was found, with its rank from 1."""

    passage: Passage
    score: float
    rank: int
    log_odds: float | None = None
    """What the cross-encoder finds (``PairScorer``)."""

    @property
    def cross_encoder_score(self) -> float | None:
        """The cross-encoder's probability that it is relevant."""
        return None if self.log_odds is None else 0.5 + 0.5 * math.tanh(self.log_odds / 2)


@dataclass(slots=True)
class Mined:
    """What came of one question: the negatives, how many candidates were examined, and how many each filter
    left out."""

    negatives: list[Candidate] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    above_positive: int = 0
    """Candidates, known positives apart, that score above the positive."""


class PairScorer(Protocol):
    """A model that reads a question and a passage together."""

    @property
    def fingerprint(self) -> str:
        """Changes with whatever changes its scores."""
        ...

    def log_odds(self, pairs: Sequence[tuple[str, Passage]]) -> list[float]:
        """For each pair ln(p / (1 - p)) of the probability p that the passage is relevant to the question."""
        ...


def choose_negatives(
    hits: Ranking,
    passage_of: Callable[[str], Passage],
    *,
    positives: Sequence[Passage],
    existing: Sequence[Passage] = (),
    answers: Sequence[str] = (),
    positive_score: float | None = None,
    most: int,
    settings: MiningSettings,
) -> Mined:
    """Applies rank window and filters in this order: known positives, no text, score, near-duplicates of
    positives, answers, repeats.

    A candidate is examined only while negatives are missing, its text only when its id passes.

    Args:
        hits: what the retriever gives, best first.
        passage_of: the passage with an id.
        positives: all passages known to answer the question, by any row.
        existing: negatives that are kept anyway.
        most: negatives to choose.
    """
    highest = settings.highest_score(positive_score)
    known_ids = {passage.id for passage in positives if passage.id is not None}
    known_texts = {plain(passage.text) for passage in positives}
    positive_words = [words_of(positive.text) for positive in positives]
    taken_words = [words_of(negative.text) for negative in existing]
    mined = Mined()

    def reason_against(passage: Passage, score: float, words: frozenset[str]) -> str:
        if not passage.text.strip():
            return "without text"
        if plain(passage.text) in known_texts:
            return _KNOWN
        if score > highest:
            return "scores too high"
        if _resembles(words, positive_words):
            return "near-duplicate of a positive"
        if answers and has_answer(answers, passage.text):
            return "holds an answer"
        return "repeats another negative" if _resembles(words, taken_words) else ""

    for rank, (key, score) in enumerate(hits[: settings.to_rank], 1):
        if rank < settings.from_rank:
            continue
        if len(mined.negatives) == most:
            break
        mined.candidates += 1
        if key in known_ids:
            mined.left_out[_KNOWN] += 1
            continue
        passage = passage_of(key)
        words = words_of(passage.text)
        reason = reason_against(passage, score, words)
        if reason != _KNOWN and positive_score is not None and score > positive_score:
            mined.above_positive += 1
        if reason:
            mined.left_out[reason] += 1
        else:
            mined.negatives.append(Candidate(passage, score, rank))
            taken_words.append(words)
    return mined


def _resembles(words: frozenset[str], others: Sequence[frozenset[str]]) -> bool:
    for other in others:
        smaller, larger = sorted((len(words), len(other)))
        # They have no more in common than the smaller one holds, so most pairs are ruled out by counting.
        if smaller and smaller / larger >= NEAR_DUPLICATE and jaccard(words, other) >= NEAR_DUPLICATE:
            return True
    return False


def veto(mined: Sequence[tuple[str, Mined]], scorer: PairScorer, most: int) -> None:
    """Asks the cross-encoder about all negatives of many questions at once, leaves out those that it takes to be
    relevant, and keeps ``most`` of the others."""
    pairs = [(question, negative.passage) for question, one in mined for negative in one.negatives]
    scores = iter(scorer.log_odds(pairs))
    for _, one in mined:
        kept = []
        for negative in one.negatives:
            negative.log_odds = next(scores)
            if (negative.cross_encoder_score or 0.0) >= VETO:
                one.left_out["vetoed by the cross-encoder"] += 1
            else:
                kept.append(negative)
        one.negatives = kept[:most]


def passages_of(sample: TrainingSample) -> tuple[Passage, ...]:
    """All passages of a sample, in the order of their scores."""
    return sample.positives + sample.hard_negatives + sample.other_negatives


def with_teacher_scores(sample: TrainingSample, scores: Iterable[float | None]) -> TrainingSample:
    """The sample with these scores of its passages, in place of any that it has."""
    left = iter(scores)

    def scored(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        return tuple(replace(passage, teacher_score=as_written(next(left))) for passage in passages)

    positives = scored(sample.positives)
    hard = scored(sample.hard_negatives)
    other = scored(sample.other_negatives)
    return replace(sample, positives=positives, hard_negatives=hard, other_negatives=other)


def scored_by(scorer: PairScorer, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The samples with the cross-encoder's log-odds of all their passages."""
    pairs = [(sample.question, passage) for sample in samples for passage in passages_of(sample)]
    scores = iter(scorer.log_odds(pairs))
    return [with_teacher_scores(sample, islice(scores, len(passages_of(sample)))) for sample in samples]


def as_written(score: float | None) -> float | None:
    """A score as files hold it: rounded where float32, in which training reads it, ends for usual scores."""
    return None if score is None else round(score, 6)
