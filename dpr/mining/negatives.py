"""From what a retriever found for a question to its negatives: the filters, each with its name for the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.core.seeding import generator_for
from dpr.data.likeness import NEAR_DUPLICATE, jaccard, plain, words_of
from dpr.evaluation.answer_match import has_answer

_SAMPLE = 71  # keeps these random numbers apart from those of training


@dataclass(frozen=True, slots=True)
class MiningSettings:
    """What becomes a negative."""

    per_question: int = 5
    """Negatives per question, at most."""
    from_rank: int = 1
    """First rank to take from, counted over all that was found."""
    to_rank: int = 100
    """Last rank to take from."""
    pick: str = "top"
    """top: the best that pass the filters; sample: any of them, drawn by seed and row."""
    seed: int = 0
    keep_answers: bool = False
    """Keep passages that hold an answer string."""
    near_duplicate: float = NEAR_DUPLICATE
    """Share of common words from which two passages are the same."""
    max_relative_score: float = 0.0
    """Leave out what scores above this share of the positive's score, where that is known; 0 = off."""
    keep_existing: bool = False
    """Keep the hard negatives that the data have already, before the mined ones."""

    def check(self) -> None:
        """Raises ConfigError for values out of range."""
        if self.per_question < 1 or not 1 <= self.from_rank <= self.to_rank:
            raise ConfigError("per_question must be at least 1, and 1 <= from_rank <= to_rank")
        if self.pick not in ("top", "sample"):
            raise ConfigError(f"pick={self.pick} is not known; choose one of top, sample")
        if not 0 < self.near_duplicate <= 1 or self.max_relative_score < 0:
            raise ConfigError("near_duplicate must be above 0 and at most 1, max_relative_score at least 0")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that was found, with its rank from 1."""

    passage: Passage
    score: float
    rank: int


@dataclass(slots=True)
class Mined:
    """What came of one question: the negatives, how many candidates were looked at, and how many each filter left out."""

    negatives: list[Candidate] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    candidates: int = 0


def choose_negatives(
    found: Sequence[Candidate],
    *,
    positives: Sequence[Passage],
    existing: Sequence[Passage] = (),
    answers: Sequence[str] = (),
    positive_score: float | None = None,
    row: int,
    settings: MiningSettings,
) -> Mined:
    """Applies rank window and filters in this order: known positives, near-duplicates of one, answers, score, repeats.

    Args:
        found: what the retriever gives, best first.
        positives: all passages known to answer the question, by any row.
        existing: negatives that are kept anyway.
        row: number of the question, for the draw.
    """
    window = [candidate for candidate in found if settings.from_rank <= candidate.rank <= settings.to_rank]
    mined = Mined()
    own_ids = {passage.id for passage in positives if passage.id is not None}
    own_texts = {plain(passage.text) for passage in positives}
    own_words = [words_of(passage.text) for passage in positives]
    taken_words = [words_of(passage.text) for passage in existing]
    order: Sequence[Candidate] = window
    if settings.pick == "sample":
        generator = generator_for(_SAMPLE, settings.seed, row)
        order = [window[int(place)] for place in generator.permutation(len(window))]
    for candidate in order:
        if len(mined.negatives) == settings.per_question:
            break
        words = words_of(candidate.passage.text)
        if candidate.passage.id in own_ids or plain(candidate.passage.text) in own_texts:
            mined.left_out["known positive"] += 1
        elif any(jaccard(words, other) >= settings.near_duplicate for other in own_words):
            mined.left_out["near-duplicate of a positive"] += 1
        elif answers and not settings.keep_answers and has_answer(answers, candidate.passage.text):
            mined.left_out["holds an answer"] += 1
        elif positive_score is not None and 0 < settings.max_relative_score * positive_score < candidate.score:
            mined.left_out["scores too high"] += 1
        elif any(jaccard(words, other) >= settings.near_duplicate for other in taken_words):
            mined.left_out["repeats another negative"] += 1
        else:
            mined.negatives.append(candidate)
            taken_words.append(words)
    mined.candidates = mined.left_out.total() + len(mined.negatives)
    mined.negatives.sort(key=lambda candidate: candidate.rank)
    return mined
