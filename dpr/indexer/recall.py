"""How much of the exact result an approximate index finds, on questions that it was not set by: measured
once, kept with the index.

``recall@k`` is the mean share of the ``k`` passages of exact search that are among the first ``k`` of the
index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from dpr.indexer.ranking import SearchResult

DEPTH = 100
"""Passages that are compared for each question."""
AT = (10, DEPTH)
NUM_QUESTIONS = 400
"""Questions that are compared at a build, at most."""
_NEARLY = 0.005


class Searched(Protocol):
    """An index whose searches can be made broader: slower, with a higher recall."""

    def search(self, questions: Any, k: int) -> SearchResult: ...

    def breadths(self, k: int) -> Sequence[int]: ...

    def search_with(self, breadth: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Recall:
    """Of an index as it was built: ``values`` by name, ``questions`` that they are means over, and the
    setting of the search's breadth."""

    values: dict[str, float]
    questions: int
    breadth: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Any) -> Recall | None:
        """What ``as_dict`` gave; None where there is none, or it is damaged."""
        if not isinstance(stored, Mapping) or not isinstance(stored.get("questions"), int):
            return None
        values, breadth = stored.get("values"), stored.get("breadth", {})
        kinds = ((values, (int, float)), (breadth, int))
        if not all(
            isinstance(part, Mapping) and all(isinstance(value, kind) for value in part.values())
            for part, kind in kinds
        ):
            return None
        return cls(dict(values), stored["questions"], dict(breadth))  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.3f}" for name, value in self.values.items())
        breadth = "".join(f", {name}={value}" for name, value in self.breadth.items())
        return f"{values} ({self.questions} held-back questions{breadth})"


def held_back(count: int, most: int = NUM_QUESTIONS) -> np.ndarray:
    """Rows of at most ``most`` of ``count`` questions, spread evenly."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
        if count
        else np.zeros(0, dtype=np.int64)
    )


def recall_values(results: Iterable[Sequence[str]], truth: Sequence[Sequence[str]]) -> dict[str, float]:
    """Recall by name, e.g. recall@10, over questions of which each has a true passage."""
    pairs = list(zip(results, truth, strict=True))
    return {
        f"recall@{k}": float(
            np.mean([len({*ours[:k]} & {*best[:k]}) / len(best[:k]) for ours, best in pairs])
        )
        for k in AT
    }


def least_breadth(
    index: Searched, queries: np.ndarray, truth: Sequence[Sequence[str]], target: float
) -> float:
    """Leaves the index with the least of its breadths that reaches ``target`` at DEPTH; returns what it
    reaches.

    Where none does, it is the least that comes within ``_NEARLY`` of the best.
    """
    reached: dict[int, float] = {}
    for breadth in index.breadths(DEPTH):
        index.search_with(breadth)
        reached[breadth] = recall_values(index.search(queries, DEPTH)[1], truth)[f"recall@{DEPTH}"]
        if reached[breadth] >= target:
            break
    best = max(reached.values())
    enough = target if best >= target else best - _NEARLY
    breadth = next(breadth for breadth, value in reached.items() if value >= enough)
    index.search_with(breadth)
    return reached[breadth]
