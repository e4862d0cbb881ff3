"""What was mined, in figures: how much was left out and why, how the negatives compare with the positives, five examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dpr.core.records import TrainingSample
from dpr.evaluation.answer_match import has_answer
from dpr.mining.negatives import Mined

_COUNTED = (
    "questions",
    "questions without negatives",
    "questions whose positive is in the corpus",
    "candidates",
    "negatives",
    "negatives that hold an answer",
    "negatives with a known positive score",
    "negatives above the positive",
)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class BlockAudit:
    """Counts one block of questions; ``record`` is what the final audit is made of."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._left_out: Counter[str] = Counter()
        self._scores: list[float] = []
        self._shares: list[float] = []
        self._example: dict[str, Any] | None = None

    def add(self, sample: TrainingSample, mined: Mined, positive_score: float | None) -> None:
        """Counts one question."""
        self._counts["questions"] += 1
        self._counts["candidates"] += mined.candidates
        self._counts["negatives"] += len(mined.negatives)
        self._counts["questions without negatives"] += not mined.negatives
        self._counts["questions whose positive is in the corpus"] += positive_score is not None
        self._left_out.update(mined.left_out)
        for candidate in mined.negatives:
            self._scores.append(round(candidate.score, 4))
            if sample.answers and has_answer(sample.answers, candidate.passage.text):
                self._counts["negatives that hold an answer"] += 1
            if positive_score:
                self._counts["negatives with a known positive score"] += 1
                self._counts["negatives above the positive"] += candidate.score > positive_score
                self._shares.append(round(candidate.score / positive_score, 4))
        if self._example is None and mined.negatives:
            first = mined.negatives[0]
            self._example = {
                "question": sample.question,
                "positive": sample.positives[0].text[:300],
                "negative": first.passage.text[:300],
                "rank": first.rank,
                "score": round(first.score, 3),
                "positive_score": None if positive_score is None else round(positive_score, 3),
            }

    def record(self) -> dict[str, Any]:
        """The counts as JSON."""
        return {
            "counts": dict(self._counts),
            "left_out": dict(self._left_out),
            "scores": self._scores,
            "shares": self._shares,
            "example": self._example,
        }


def combine(blocks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The audit of all blocks: counts, quantiles of scores and of score / positive's score, five examples from all over the data."""
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    left_out: Counter[str] = Counter()
    scores: list[np.ndarray] = []
    shares: list[np.ndarray] = []
    examples: list[Any] = []
    for block in blocks:
        counts.update(block["counts"])
        left_out.update(block["left_out"])
        scores.append(np.array(block["scores"], dtype=np.float32))
        shares.append(np.array(block["shares"], dtype=np.float32))
        if block["example"] is not None:
            examples.append(block["example"])
    chosen = [examples[place] for place in sorted({round(step * (len(examples) - 1) / 4) for step in range(5)})] if examples else []
    return {
        "counts": dict(counts),
        "left_out": dict(left_out),
        "score_quantiles": _quantiles(scores),
        "share_of_positive_score_quantiles": _quantiles(shares),
        "examples": chosen,
    }


def audit_lines(audit: dict[str, Any]) -> Iterator[str]:
    """The audit as a table for people."""
    counts = audit["counts"]
    candidates, negatives = max(counts["candidates"], 1), max(counts["negatives"], 1)
    yield f"{counts['questions']:>10,}  questions, {counts['questions without negatives']:,} of them without negatives"
    yield f"{counts['candidates']:>10,}  candidates looked at"
    for reason, count in sorted(audit["left_out"].items(), key=lambda item: -item[1]):
        yield f"{count:>10,}  {count / candidates:>6.1%} left out: {reason}"
    yield f"{counts['negatives']:>10,}  negatives written"
    answering = counts["negatives that hold an answer"]
    yield f"{answering:>10,}  {answering / negatives:>6.1%} of them hold an answer"
    known = max(counts["negatives with a known positive score"], 1)
    above = counts["negatives above the positive"]
    yield f"{above:>10,}  {above / known:>6.1%} score above the positive"
    header = " ".join(f"{name:>7}" for name in ("5%", "25%", "50%", "75%", "95%"))
    yield f"  quantiles of                 {header}"
    for key, name in (("score_quantiles", "score"), ("share_of_positive_score_quantiles", "score / positive's score")):
        if audit[key]:
            yield f"    {name:<26} " + " ".join(f"{value:>7.2f}" for value in audit[key])
    for example in audit["examples"]:
        positive = "" if example["positive_score"] is None else f" {example['positive_score']}"
        yield f"  question  {' '.join(example['question'].split())[:140]}"
        yield f"    positive{positive}: {' '.join(example['positive'].split())[:140]}"
        yield f"    negative {example['score']} (rank {example['rank']}): {' '.join(example['negative'].split())[:140]}"


def _quantiles(parts: list[np.ndarray]) -> list[float]:
    values = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
    return [round(float(value), 4) for value in np.quantile(values, _QUANTILES)] if len(values) else []
