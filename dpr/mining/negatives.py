"""From what a retriever found for a question to its negatives: the filters, each with its name for the audit;
and scores of a teacher."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from dpr.core.records import Passage, TrainingSample
from dpr.core.seeding import generator_for
from dpr.data.text import plain
from dpr.data.words import jaccard, words_of
from dpr.evaluation.answer_match import has_answer
from dpr.indexer.ranking import Ranking
from dpr.mining.settings import MiningSettings

_SAMPLE = 71  # keeps these random numbers apart from those of training


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


Choosing = Generator[Candidate, float, Mined]
"""Negatives being chosen: yields the candidates whose log-odds it waits for, and returns the outcome."""


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
    row: int,
    settings: MiningSettings,
) -> Choosing:
    """Applies rank window and filters in this order: known positives, no text, score, near-duplicates of
    positives, answers, repeats, veto.

    A candidate is examined only while negatives are missing, its text only when its id and score pass, and
    the cross-encoder is asked only about one that passes all else.

    Args:
        hits: what the retriever gives, best first.
        passage_of: the passage with an id.
        positives: all passages known to answer the question, by any row.
        existing: negatives that are kept anyway.
        row: number of the question, for the draw.
    """
    filters = _Filters(positives, existing, answers, settings.highest_score(positive_score), settings)
    mined = Mined()
    for index in _order(len(hits), row, settings):
        if len(mined.negatives) == settings.per_question:
            break
        key, score = hits[index]
        mined.candidates += 1
        reason, passage = filters.judge(key, score, passage_of)
        if reason != _KNOWN and positive_score is not None and score > positive_score:
            mined.above_positive += 1
        candidate = Candidate(passage, score, index + 1)
        if not reason and settings.veto_above is not None:
            candidate.log_odds = yield candidate
            is_vetoed = (
                candidate.cross_encoder_score is not None
                and candidate.cross_encoder_score >= settings.veto_above
            )
            reason = "vetoed by the cross-encoder" if is_vetoed else ""
        if reason:
            mined.left_out[reason] += 1
        else:
            mined.negatives.append(candidate)
            filters.take()
    mined.negatives.sort(key=lambda candidate: candidate.rank)
    return mined


def _order(num_found: int, row: int, settings: MiningSettings) -> Sequence[int]:
    """Places in the ranking, in the order in which they are examined."""
    window = range(settings.from_rank - 1, min(settings.to_rank, num_found))
    if settings.pick == "top" or not window:
        return window
    return [
        window[int(index)] for index in generator_for(_SAMPLE, settings.seed, row).permutation(len(window))
    ]


_KNOWN = "known positive"
_UNREAD = Passage("")


class _Filters:
    """The filters of one question; words are taken out of texts when they are first compared."""

    def __init__(
        self,
        positives: Sequence[Passage],
        existing: Sequence[Passage],
        answers: Sequence[str],
        highest: float,
        settings: MiningSettings,
    ) -> None:
        self._highest, self._limit = highest, settings.near_duplicate
        self._answers = () if settings.keep_answers else answers
        self._ids = {passage.id for passage in positives if passage.id is not None}
        self._texts = {plain(passage.text) for passage in positives}
        self._positives, self._existing = positives, existing
        self._positive_words: list[frozenset[str]] | None = None
        self._taken_words: list[frozenset[str]] | None = None
        self._words: frozenset[str] = frozenset()

    def judge(self, key: str, score: float, passage_of: Callable[[str], Passage]) -> tuple[str, Passage]:
        """Why a passage is not a negative, empty where it is one, and the passage (nothing where its id
        decides)."""
        if key in self._ids:
            return _KNOWN, _UNREAD
        passage = passage_of(key)
        text = passage.text
        if not text.strip():
            return "without text", passage
        if plain(text) in self._texts:
            return _KNOWN, passage
        if score > self._highest:
            return "scores too high", passage
        if self._limit:
            self._words = words_of(text)
            if self._positive_words is None:
                self._positive_words = [words_of(positive.text) for positive in self._positives]
                self._taken_words = [words_of(negative.text) for negative in self._existing]
        if self._resembles(self._positive_words or []):
            return "near-duplicate of a positive", passage
        if self._answers and has_answer(self._answers, text):
            return "holds an answer", passage
        return ("repeats another negative" if self._resembles(self._taken_words or []) else ""), passage

    def take(self) -> None:
        """Notes the passage that was judged last as a negative, so that none repeats it."""
        if self._taken_words is not None:
            self._taken_words.append(self._words)

    def _resembles(self, others: Sequence[frozenset[str]]) -> bool:
        words, limit = self._words, self._limit
        for other in others:
            smaller, larger = sorted((len(words), len(other)))
            # They have no more in common than the smaller one holds, so most pairs are ruled out by counting.
            if smaller and smaller / larger >= limit and jaccard(words, other) >= limit:
                return True
        return False


def finish_together(choices: Sequence[tuple[str, Choosing]], scorer: PairScorer | None) -> list[Mined]:
    """Runs the choices of many questions to their end.

    Each waits for one candidate at a time. Those candidates are scored together, so no pair is scored
    needlessly and batches are large.
    """
    running = list(enumerate(choices))
    mined: dict[int, Mined] = {}
    scores: list[float] | None = None
    while running:
        waiting, pending = [], []
        for index, (number, (question, choosing)) in enumerate(running):
            try:
                candidate = next(choosing) if scores is None else choosing.send(scores[index])
            except StopIteration as end:
                mined[number] = end.value
                continue
            waiting.append((number, (question, choosing)))
            pending.append((question, candidate.passage))
        running = waiting
        if pending and scorer is None:
            raise ValueError("veto_above needs a cross-encoder")
        scores = scorer.log_odds(pending) if pending and scorer is not None else []
    return [mined[number] for number in sorted(mined)]


def passages_of(sample: TrainingSample) -> tuple[Passage, ...]:
    """All passages of a sample, in the order of their scores."""
    return sample.positives + sample.hard_negatives + sample.other_negatives


def with_teacher_scores(sample: TrainingSample, scores: Iterable[float | None]) -> TrainingSample:
    """The sample with these scores of its passages, in place of any that it has."""
    left = iter(scores)

    def scored(passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
        return tuple(replace(passage, teacher_score=as_written(next(left))) for passage in passages)

    positives, hard, other = (
        scored(sample.positives),
        scored(sample.hard_negatives),
        scored(sample.other_negatives),
    )
    return replace(sample, positives=positives, hard_negatives=hard, other_negatives=other)


def scored_by(scorer: PairScorer, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The samples with the cross-encoder's log-odds of all their passages."""
    scores = iter(
        scorer.log_odds([(sample.question, passage) for sample in samples for passage in passages_of(sample)])
    )
    return [with_teacher_scores(sample, islice(scores, len(passages_of(sample)))) for sample in samples]


def as_written(score: float | None) -> float | None:
    """A score as files hold it: rounded where float32, in which training reads it, ends for usual scores."""
    return None if score is None else round(score, 6)
