"""How much of the exact result an index finds: measured when it is built, and kept with it.

``recall@k`` is the mean share of the ``k`` passages of exact search that are among the first ``k`` of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

DEPTH = 100
"""Passages that are compared for each question."""
AT = (10, DEPTH)
NUM_QUESTIONS = 400
"""Questions that are compared at a build, at most."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Of an index as it was built: ``values`` by name, over so many ``questions``, which may be ``stored`` vectors of its own, searched
    with the ``breadth`` that its settings had then."""

    values: dict[str, float]
    questions: int
    breadth: dict[str, Any] = field(default_factory=dict)
    stored: bool = False

    @classmethod
    def read(cls, stored: Any) -> Recall | None:
        """What ``as_dict`` gave; None where there is none, or it is damaged."""
        if not isinstance(stored, Mapping) or not isinstance(stored.get("questions"), int):
            return None
        values, breadth = stored.get("values"), stored.get("breadth", {})
        if not isinstance(breadth, Mapping) or not isinstance(values, Mapping):
            return None
        if not all(isinstance(value, int | float) for value in values.values()):
            return None
        return cls(dict(values), stored["questions"], dict(breadth), stored.get("stored") is True)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.3f}" for name, value in self.values.items())
        asked = f"{self.questions} {'stored vectors' if self.stored else 'questions'}"
        return f"{values} ({', '.join([asked, *breadth_in_words(self.breadth)])})"


def breadth_in_words(breadth: Mapping[str, Any]) -> list[str]:
    """Settings of a search, as people write them."""
    return [str(value) if name == "search" else f"{name}={value}" for name, value in breadth.items()]


def held_back(count: int, most: int = NUM_QUESTIONS) -> np.ndarray:
    """Rows of at most ``most`` of ``count`` questions, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)) if count else np.zeros(0, dtype=np.int64)


def recall_values(results: Iterable[Sequence[str]], truth: Sequence[Sequence[str]]) -> dict[str, float]:
    """Recall by name, e.g. recall@10, over questions of which each has a true passage."""
    pairs = list(zip(results, truth, strict=True))
    return {f"recall@{k}": float(np.mean([len({*ours[:k]} & {*best[:k]}) / len(best[:k]) for ours, best in pairs])) for k in AT}
