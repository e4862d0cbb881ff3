"""Statistics of mining: how much was left out and why, how negatives compare with positives, five
examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.evaluation.answer_match import has_answer
from dpr.mining.negatives import Candidate, Mined

logger = get_logger(__name__)

_COUNTED = (
    "questions",
    "questions without negatives",
    "questions without candidates",
    "questions whose positive is in the corpus",
    "candidates",
    "candidates above the positive",
    "negatives",
    "negatives that hold an answer",
    "negatives with a known positive score",
    "negatives above the positive",
)
_NOT_FOUND = "questions left out, since no positive is among the first found"
_VALUES = ("score", "share_of_positive_score", "distance_to_positive_score", "cross_encoder_score")
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class BlockAudit:
    """Counts one block of questions; ``record`` is what the final audit is made of."""

    def __init__(self, *, not_found: int = 0) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._counts[_NOT_FOUND] = not_found
        self._left_out: Counter[str] = Counter()
        self._values: dict[str, list[float]] = {name: [] for name in _VALUES}
        self._example: dict[str, Any] | None = None

    def add(
        self, sample: TrainingSample, mined: Mined, positive_score: float | None, *, in_corpus: bool
    ) -> None:
        """Counts one question; ``in_corpus``: one of its positives is in the corpus."""
        self._counts["questions"] += 1
        self._counts["candidates"] += mined.candidates
        self._counts["candidates above the positive"] += mined.above_positive
        self._counts["negatives"] += len(mined.negatives)
        self._counts["questions without negatives"] += not mined.negatives
        self._counts["questions without candidates"] += not mined.candidates
        self._counts["questions whose positive is in the corpus"] += in_corpus
        self._left_out.update(mined.left_out)
        for candidate in mined.negatives:
            self._add_negative(sample, candidate, positive_score)
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

    def _add_negative(
        self, sample: TrainingSample, candidate: Candidate, positive_score: float | None
    ) -> None:
        self._values["score"].append(round(candidate.score, 4))
        if candidate.cross_encoder_score is not None:
            self._values["cross_encoder_score"].append(round(candidate.cross_encoder_score, 4))
        if sample.answers and has_answer(sample.answers, candidate.passage.text):
            self._counts["negatives that hold an answer"] += 1
        if positive_score is None:
            return
        self._counts["negatives with a known positive score"] += 1
        self._counts["negatives above the positive"] += candidate.score > positive_score
        self._values["distance_to_positive_score"].append(round(positive_score - candidate.score, 4))
        if positive_score > 0:  # shares of a negative number say nothing
            self._values["share_of_positive_score"].append(round(candidate.score / positive_score, 4))

    def record(self) -> dict[str, Any]:
        """The counts as JSON."""
        return {
            "counts": dict(self._counts),
            "left_out": dict(self._left_out),
            "values": self._values,
            "example": self._example,
        }


def combine(blocks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The audit of all blocks: counts, quantiles of scores and of how they compare with the positive's, five
    examples from all over the data."""
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    left_out: Counter[str] = Counter()
    values: dict[str, list[np.ndarray]] = {name: [] for name in _VALUES}
    examples: list[Any] = []
    for block in blocks:
        counts.update(block["counts"])
        left_out.update(block["left_out"])
        for name in _VALUES:
            values[name].append(np.array(block["values"][name], dtype=np.float32))
        if block["example"] is not None:
            examples.append(block["example"])
    chosen = (
        [examples[index] for index in sorted({round(step * (len(examples) - 1) / 4) for step in range(5)})]
        if examples
        else []
    )
    of_values = {f"{name}_quantiles": quantiles(parts) for name, parts in values.items()}
    return {"counts": dict(counts), "left_out": dict(left_out), **of_values, "examples": chosen}


def audit_lines(audit: dict[str, Any]) -> Iterator[str]:
    """The audit as a table for people."""
    counts = audit["counts"]

    def share(count: int, whole: str, what: str) -> str:
        return f"{count:>10,}  {count / max(counts[whole], 1):>6.1%} {what}"

    yield (
        f"{counts['questions']:>10,}  questions, {counts['questions without negatives']:,} of them without"
        " negatives"
    )
    if counts.get(_NOT_FOUND):
        yield f"{counts[_NOT_FOUND]:>10,}  {_NOT_FOUND}"
    yield f"{counts['candidates']:>10,}  candidates examined"
    yield share(counts["candidates above the positive"], "candidates", "of them score above the positive")
    for reason, count in sorted(audit["left_out"].items(), key=lambda item: -item[1]):
        yield share(count, "candidates", f"left out: {reason}")
    yield f"{counts['negatives']:>10,}  negatives written"
    yield share(counts["negatives that hold an answer"], "negatives", "of them hold an answer")
    yield share(
        counts["negatives above the positive"],
        "negatives with a known positive score",
        "score above the positive",
    )
    header = " ".join(f"{quantile:>7.0%}" for quantile in _QUANTILES)
    yield f"  quantiles of                 {header}"
    labels = ("score", "score / positive's score", "positive's score - score", "cross-encoder's score")
    for name, label in zip(_VALUES, labels, strict=True):
        if quantiles := audit[f"{name}_quantiles"]:
            yield f"    {label:<26} " + " ".join(f"{value:>7.2f}" for value in quantiles)
    for example in audit["examples"]:
        positive = "" if example["positive_score"] is None else f" {example['positive_score']}"
        yield f"  question  {' '.join(example['question'].split())[:140]}"
        yield f"    positive{positive}: {' '.join(example['positive'].split())[:140]}"
        yield (
            f"    negative {example['score']} (rank {example['rank']}):"
            f" {' '.join(example['negative'].split())[:140]}"
        )


def warn_of_few(audit: dict[str, Any], out: Path) -> None:
    """Warns where at least half of the questions got no negative, or no question is left, and says why."""
    counts = audit["counts"]
    without = counts["questions without negatives"]
    questions = counts["questions"]
    not_found = counts.get(_NOT_FOUND, 0)
    if 2 * without < questions or not (questions or not_found):
        return
    reasons = [f"{counts['candidates']:,} candidates"]
    if counts["questions without candidates"]:
        nothing = (
            "nothing was found at the ranks that are looked at; BM25 finds only passages that share a word"
            " with the question"
        )
        reasons.append(f"for {counts['questions without candidates']:,} {nothing}")
    reasons += [
        f"{count:,} left out: {reason}"
        for reason, count in sorted(audit["left_out"].items(), key=lambda item: -item[1])
    ]
    if not_found:
        reasons.append(f"{not_found:,} {_NOT_FOUND}")
    logger.warning(
        "%s: %s of %s questions have no mined negatives (%s)",
        out,
        f"{without:,}",
        f"{questions:,}",
        "; ".join(reasons),
    )


def quantiles(parts: list[np.ndarray]) -> list[float]:
    """What 5, 25, 50, 75 and 95 % of all values are below; empty where there are none."""
    values = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
    return [round(float(value), 4) for value in np.quantile(values, _QUANTILES)] if len(values) else []
