"""``dpr mine``: filters that choose a question's negatives from the passages that a retriever found. The
audit names each filter: how much was left out and why, how negatives compare with positives, five examples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import counted, get_logger
from dpr.core.records import Passage, TrainingSample, plain
from dpr.data.near_duplicates import resembles
from dpr.data.words import words_of
from dpr.evaluation.answer_match import has_answer
from dpr.formats.training_files.dpr import sample_to_json
from dpr.indexer.ranking import Ranking
from dpr.mining.blocks import BlockJob, Record, quantile_lines
from dpr.mining.search import Query
from dpr.mining.settings import MiningSettings
from dpr.mining.teacher_scores import as_written, scored_by
from dpr.models.cross_encoder import CrossEncoder

logger = get_logger(__name__)

_KNOWN = "known positive"
_COUNTED = (
    "questions",
    "questions without negatives",
    "candidates",
    "candidates above the positive",
    "negatives",
)
_NOT_FOUND = "questions left out, since no positive is among the first found"
_LABELS = {
    "score": "score",
    "share_of_positive_score": "score / positive's score",
    "cross_encoder_score": "cross-encoder's score",
}


@dataclass(slots=True)
class Candidate:
    """A passage that was found, with its rank from 1."""

    passage: Passage
    score: float
    rank: int
    log_odds: float | None = None
    """Log-odds by the cross-encoder."""

    @property
    def cross_encoder_score(self) -> float | None:
        """Returns the cross-encoder's probability that it is relevant."""
        return None if self.log_odds is None else 0.5 + 0.5 * math.tanh(self.log_odds / 2)


@dataclass(slots=True)
class Mined:
    """Result for one question: the negatives, the number of candidates examined, and the number that each
    filter left out."""

    positive_score: float | None = None
    negatives: list[Candidate] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    above_positive: int = 0
    """Number of candidates that score above the positive, without known positives."""


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

    A candidate is examined only while negatives are missing, its text only if its id passes.

    Args:
        hits: the retriever's result, best first.
        passage_of: returns the passage with an id.
        positives: all passages known to answer the question, by any row.
        existing: negatives that are kept in any case.
        most: number of negatives to choose.
    """
    highest = settings.highest_score(positive_score)
    known_ids = {passage.id for passage in positives if passage.id is not None}
    known_texts = {plain(passage.text) for passage in positives}
    positive_words = [words_of(positive.text) for positive in positives]
    taken_words = [words_of(negative.text) for negative in existing]
    mined = Mined(positive_score)

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
        if not passage.text.strip():
            reason = "without text"
        elif plain(passage.text) in known_texts:
            reason = _KNOWN
        elif score > highest:
            reason = "scores too high"
        elif resembles(words, positive_words):
            reason = "near-duplicate of a positive"
        elif answers and has_answer(answers, passage.text):
            reason = "holds an answer"
        elif resembles(words, taken_words):
            reason = "repeats another negative"
        else:
            reason = ""
        if reason != _KNOWN and positive_score is not None and score > positive_score:
            mined.above_positive += 1
        if reason:
            mined.left_out[reason] += 1
        else:
            mined.negatives.append(Candidate(passage, score, rank))
            taken_words.append(words)
    return mined


def veto(mined: Sequence[tuple[str, Mined]], scorer: CrossEncoder, most: int) -> None:
    """Asks the cross-encoder about all negatives of many questions at once. Leaves out those with a
    probability of 0.5 or more of being relevant, and keeps ``most`` of the others."""
    pairs = [(question, negative.passage) for question, one in mined for negative in one.negatives]
    scores = iter(scorer.log_odds(pairs))
    for _, one in mined:
        kept = []
        for negative in one.negatives:
            negative.log_odds = log_odds = next(scores)
            if log_odds >= 0:
                one.left_out["vetoed by the cross-encoder"] += 1
            else:
                kept.append(negative)
        one.negatives = kept[:most]


@dataclass
class Mining(BlockJob):
    """Job that writes training data with mined hard negatives.

    Mined passages carry ``score``, ``rank`` and ``mined_by``. Positives that are in the corpus get its ids, so
    that training recognises a passage wherever it occurs. A cross-encoder leaves out passages that are probably
    relevant, and scores those written.

    Args:
        keep_within: leaves out questions for which no positive is among this many first passages; 0 = none.

    Raises:
        InputError: the corpus contains none of the positives, and ``settings.allow_missing`` is false.
    """

    settings: MiningSettings = field(default_factory=MiningSettings)
    keep_within: int = 0
    name = "mining"

    def chosen(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "cross_encoder": self.scorer and self.scorer.fingerprint,
            "keep_within": self.keep_within,
        }

    def warn(self, audit: dict[str, Any]) -> None:
        counts = audit["counts"]
        without = counts["questions without negatives"]
        if 2 * without >= counts["questions"]:
            reasons = [f"{counts['candidates']:,} candidates"]
            reasons += [f"{count:,} left out: {reason}" for reason, count in _reasons(audit)]
            if counts.get(_NOT_FOUND):
                reasons.append(f"{counts[_NOT_FOUND]:,} {_NOT_FOUND}")
            message = "%s: %d of %d questions have no mined negatives (%s)"
            logger.warning(message, self.out, without, counts["questions"], "; ".join(reasons))

    def prepare(self) -> None:
        if self.corpus_file is not None:
            rows = counted(range(len(self.train)), "looking for the positives", unit="questions")
            is_held = [self.corpus.holds(passage) for row in rows for passage in self.train[row].positives]
            found = f"contains {sum(is_held):,} of the {len(is_held):,} positives of the training data"
            if not any(is_held) and not self.settings.allow_missing:
                raise InputError(
                    found,
                    file=self.corpus_file,
                    expected="the passages that the positives were taken from",
                    hint="name their corpus, leave corpus out to mine from the passages of the training data, or"
                    " set allow_missing=true",
                )
            say = logger.info if all(is_held) else logger.warning
            say("%s %s", self.corpus_file, found)
        super().prepare()

    def do_block(self, rows: range) -> tuple[list[Record], Record]:
        settings = self.settings
        corpus = self.corpus
        samples = [self.train[row] for row in rows]
        queries = []
        for sample in samples:
            known = [(corpus.row_of(passage), passage) for passage in sample.positives]
            in_corpus = [row for row, _ in known if row is not None]
            queries.append(
                Query(sample.question, in_corpus, [passage for row, passage in known if row is None])
            )
        found = self.searches[0].find(queries, settings.to_rank)

        counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        most = settings.per_question * (1 if self.scorer is None else 2)
        kept: list[TrainingSample] = []
        mined: list[Mined] = []
        for row, sample, query, (hits, positive_score) in zip(rows, samples, queries, found, strict=True):
            if self.keep_within:
                ids = {corpus.id_at(place) for place in query.positives}
                if not ids & {key for key, _ in hits[: self.keep_within]}:
                    counts[_NOT_FOUND] += 1
                    continue
            positives = tuple(map(corpus.named, sample.positives))
            existing = tuple(map(corpus.named, sample.hard_negatives)) if settings.keep_existing else ()
            mined.append(
                choose_negatives(
                    hits,
                    corpus.passage,
                    positives=[*positives, *map(corpus.named, self.train.known_positives(row))],
                    existing=existing,
                    answers=sample.answers,
                    positive_score=positive_score,
                    most=most,
                    settings=settings,
                )
            )
            kept.append(replace(sample, positives=positives, hard_negatives=existing))
        if self.scorer is not None:
            named = [(sample.question, one) for sample, one in zip(kept, mined, strict=True)]
            veto(named, self.scorer, settings.per_question)
            kept = scored_by(self.scorer, kept)

        records: list[Record] = []
        left_out: Counter[str] = Counter()
        values: dict[str, list[float]] = {name: [] for name in _LABELS}
        example: Record | None = None
        for sample, one in zip(kept, mined, strict=True):
            positive_score = one.positive_score
            counts["questions"] += 1
            counts["questions without negatives"] += not one.negatives
            counts["candidates"] += one.candidates
            counts["candidates above the positive"] += one.above_positive
            counts["negatives"] += len(one.negatives)
            left_out.update(one.left_out)
            existing = sample.hard_negatives
            added = tuple(
                replace(negative.passage, teacher_score=as_written(negative.log_odds))
                for negative in one.negatives
            )
            record = sample_to_json(replace(sample, hard_negatives=existing + added))
            entries = record["hard_negative_ctxs"][len(existing) :]
            for entry, negative in zip(entries, one.negatives, strict=True):
                score = round(negative.score, 4)
                entry.update(score=score, rank=negative.rank, mined_by=self.searches[0].mined_by)
                values["score"].append(score)
                # shares of a negative number are meaningless
                if positive_score is not None and positive_score > 0:
                    values["share_of_positive_score"].append(round(negative.score / positive_score, 4))
                if negative.cross_encoder_score is not None:
                    entry["cross_encoder_score"] = round(negative.cross_encoder_score, 4)
                    values["cross_encoder_score"].append(entry["cross_encoder_score"])
                if example is None:
                    example = {
                        "question": sample.question,
                        "positive": sample.positives[0].text[:300],
                        "negative": negative.passage.text[:300],
                        "rank": negative.rank,
                        "score": round(negative.score, 3),
                        "positive_score": None if positive_score is None else round(positive_score, 3),
                    }
            records.append(record)
        audit = {"counts": dict(counts), "left_out": dict(left_out), "values": values, "example": example}
        return records, audit


def audit_lines(audit: dict[str, Any]) -> Iterator[str]:
    """Yields the audit as a table."""
    counts = audit["counts"]
    without = counts["questions without negatives"]
    yield f"{counts['questions']:>10,}  questions, {without:,} of them without negatives"
    if counts.get(_NOT_FOUND):
        yield f"{counts[_NOT_FOUND]:>10,}  {_NOT_FOUND}"
    yield f"{counts['candidates']:>10,}  candidates examined"
    shares = [("of them score above the positive", counts["candidates above the positive"])]
    shares += [(f"left out: {reason}", count) for reason, count in _reasons(audit)]
    for what, count in shares:
        yield f"{count:>10,}  {count / max(counts['candidates'], 1):>6.1%} {what}"
    yield f"{counts['negatives']:>10,}  negatives written"
    yield from quantile_lines(audit, _LABELS)
    for example in audit["examples"]:
        positive = "" if example["positive_score"] is None else f" {example['positive_score']}"
        yield f"  question  {' '.join(example['question'].split())[:140]}"
        yield f"    positive{positive}: {' '.join(example['positive'].split())[:140]}"
        negative = " ".join(example["negative"].split())[:140]
        yield f"    negative {example['score']} (rank {example['rank']}): {negative}"


def _reasons(audit: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted(audit["left_out"].items(), key=lambda item: -item[1])
