"""Recall against time: what an approximate index finds, and how fast, at each breadth of its search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from dpr.indexer.ranking import SearchResult
from dpr.indexer.recall import DEPTH, recall_values
from dpr.indexer.registry import Index

_ROUNDS = 3
_ALONE = 50
_ENOUGH = 0.9995


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds per question: ``together``, all asked at once (the best of some rounds), and ``alone``, one at a time (the median)."""

    together: float
    alone: float

    @property
    def per_second(self) -> float:
        return 1 / self.together


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One breadth. ``chosen_on`` is the recall over every other question, ``recall`` that over the rest, ``time`` that of all."""

    breadth: int
    time: Timed
    chosen_on: dict[str, float]
    recall: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def timed(index: Index, queries: np.ndarray) -> tuple[Timed, SearchResult]:
    """The times of an index, and what it found for all questions (Q, D)."""
    found = index.search(queries, DEPTH)  # reads what the first search reads
    together, alone = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        index.search(queries, DEPTH)
        together.append((time.perf_counter() - start) / len(queries))
    for query in queries[:_ALONE]:
        start = time.perf_counter()
        index.search(query[None], DEPTH)
        alone.append(time.perf_counter() - start)
    return Timed(min(together), median(alone)), found


def measure_curve(index: Index, queries: np.ndarray, truth: Sequence[Sequence[str]]) -> list[CurvePoint]:
    """A point for each breadth, ascending, up to the first that finds everything. The index is left with the last of them."""
    points = []
    for breadth in index.breadths(DEPTH):
        index.search_with(breadth)
        taken, (_, found) = timed(index, queries)
        halves = [recall_values(found[half], truth[half]) for half in (slice(0, None, 2), slice(1, None, 2))]
        points.append(CurvePoint(breadth, taken, *halves))
        if min(values[f"recall@{DEPTH}"] for values in halves) >= _ENOUGH:
            break
    return points


def least_that_reaches(points: Sequence[CurvePoint], target: float) -> CurvePoint | None:
    """The first point with this recall on the questions to choose on; None where no point has it."""
    return next((point for point in points if point.chosen_on[f"recall@{DEPTH}"] >= target), None)
