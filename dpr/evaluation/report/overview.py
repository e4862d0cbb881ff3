"""What a report says first: one sentence, one picture, and the questions on which a model and BM25 differ
most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpr.evaluation.report.charts import Point
from dpr.evaluation.report.examples import cut, spread
from dpr.evaluation.report.reading import Retrieval
from dpr.evaluation.significance import HIGHER, TOO_FEW, estimate

NUM_QUESTIONS = 10
_DEPTHS = (20, 10, 5, 100, 1)
_Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
_LABEL = 40
_QUESTION = 160


def interval(share: float, count: int) -> Point:
    """The 95 % interval of a share observed over ``count`` questions (Wilson's)."""
    if not count:
        return 0.0, 1.0
    middle = share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(max(share * (1 - share), 0.0) / count + _Z**2 / (4 * count**2))
    whole = 1 + _Z**2 / count
    return max((middle - half) / whole, 0.0), min((middle + half) / whole, 1.0)


def headline(runs: Sequence[Retrieval]) -> dict[str, Any] | None:
    """Sentence, note and bars about runs over the same questions; None where they have no accuracy in
    common."""
    depth = next((k for k in _DEPTHS if runs and all(f"accuracy@{k}" in one.metrics for one in runs)), None)
    if depth is None:
        return None
    name = f"accuracy@{depth}"
    best = max(runs, key=lambda one: one.metrics[name])
    rival = _rival(runs, best, name)
    place = f"among its first {depth}" if depth > 1 else "first"
    sentence = (
        f"Of 100 questions, {_label(best)} has a right passage {place} for {_of_hundred(best.metrics[name])}"
    )
    bars = []
    for style, one in enumerate(runs):
        low, high = interval(one.metrics[name], one.num_judged)
        bars.append(
            {
                "label": _label(one),
                "style": style % 6,
                "share": one.metrics[name],
                "low": low,
                "high": high,
                "is_best": one is best,
            }
        )
    return {
        "sentence": sentence
        + (f", {_label(rival)} for {_of_hundred(rival.metrics[name])}." if rival else "."),
        "note": _difference(best, rival, name) if rival else "",
        "title": f"Questions with a right passage {place}, with 95 % intervals",
        "bars": bars,
    }


def duel(runs: Sequence[Retrieval]) -> dict[str, Any] | None:
    """BM25, or else the first run, against the best model alone, question by question; None where values of
    questions are missing."""
    first = next((one for one in runs if one.way == "bm25"), runs[0])
    others = [one for one in runs if one is not first and one.each is not None]
    model = max(others, key=lambda one: (one.way == "dense", one.metrics.get("mrr@10", 0.0)), default=None)
    if model is None or model.each is None or first.each is None:
        return None
    name = max(
        (key for key in first.each.values if key.startswith("mrr@") and key in model.each.values),
        key=_depth,
        default=None,
    )
    if name is None:
        return None
    ours, theirs = first.each.judged(name), model.each.judged(name)
    texts = dict(zip(first.each.ids, first.each.texts, strict=True))
    gains = [(theirs[key] - value, key) for key, value in ours.items() if key in theirs]

    def lines(sign: int) -> list[tuple[str, str, str]]:
        keys = _most([(sign * gain, key) for gain, key in gains if sign * gain > 0])
        return [(cut(texts[key], _QUESTION), _rank(ours[key]), _rank(theirs[key])) for key in keys]

    better, worse = (sum(sign * gain > 0 for gain, _ in gains) for sign in (1, -1))
    return {
        "first": _label(first),
        "model": _label(model),
        "counts": (better, worse, len(gains) - better - worse),
        "depth": _depth(name),
        "sides": [(f"{_label(model)} is ahead", lines(1)), (f"{_label(first)} is ahead", lines(-1))],
    }


def _rival(runs: Sequence[Retrieval], best: Retrieval, name: str) -> Retrieval | None:
    """Whom the best one is compared with: BM25, or else the next best."""
    others = [one for one in runs if one is not best]
    lexical = [one for one in others if one.way == "bm25"]
    return max(lexical or others, key=lambda one: one.metrics[name], default=None)


def _difference(best: Retrieval, rival: Retrieval, name: str) -> str:
    """How sure the difference is, by the values of each question."""
    if (
        best.each is None
        or rival.each is None
        or not {name} <= best.each.values.keys() & rival.each.values.keys()
    ):
        return ""
    ours, theirs = best.each.judged(name), rival.each.judged(name)
    changes = [value - theirs[key] for key, value in ours.items() if key in theirs]
    if not changes:
        return ""
    one = estimate(changes)
    sentence = (
        f"{_label(best)} against {_label(rival)} on {len(changes):,} questions: {100 * one.mean:+.1f} points"
    )
    if one.outcome == TOO_FEW:
        return f"{sentence}; {TOO_FEW} to tell whether that is chance."
    sentence += f", 95 % interval {100 * one.low:+.1f} to {100 * one.high:+.1f}"
    return sentence + ("." if one.outcome == HIGHER else "; so small a difference can be chance.")


def _most(gains: Sequence[tuple[float, str]]) -> list[str]:
    """The questions with the largest gains; of those that tie for the last places some from everywhere."""
    ordered = sorted(gains, key=lambda item: -item[0])
    if len(ordered) <= NUM_QUESTIONS:
        return [key for _, key in ordered]
    last = ordered[NUM_QUESTIONS - 1][0]
    sure = [key for gain, key in ordered if gain > last]
    return sure + spread([key for gain, key in ordered if gain == last], NUM_QUESTIONS - len(sure))


def _label(one: Retrieval) -> str:
    return cut(one.label, _LABEL)


def _of_hundred(share: float) -> str:
    return f"{100 * share:.0f}"


def _depth(name: str) -> int:
    digits = name.partition("@")[2]
    return int(digits) if digits.isdigit() else 0


def _rank(reciprocal: float) -> str:
    return f"{1 / reciprocal:.0f}" if reciprocal > 0 else "-"
