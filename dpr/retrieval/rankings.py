"""Rankings of ``dense``, ``bm25`` and their hybrid that an evaluation judges, and what its metrics file states about
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpr.core.records import Question
from dpr.evaluation.evaluator import without_own_ids
from dpr.indexer.ranking import Ranking
from dpr.retrieval.sides import Fusion, Side


def rankings_of(
    systems: Sequence[str],
    sides: Mapping[str, Side],
    questions: Sequence[Question],
    queries: Sequence[str],
    *,
    fusion: Fusion,
    k: int,
    skip_same_id: bool,
) -> dict[str, list[Ranking]]:
    """Returns the ``k`` best passages of each question by system: ``dense``, ``bm25``, or the hybrid of both. Each
    side is searched once.

    Args:
        queries: the questions as sides get them.
        skip_same_id: leaves out hits with the question's own id, before the fusion.
    """
    depth = max(k, fusion.depth) if "hybrid" in systems else k
    found: dict[str, list[Ranking]] = {}
    for name, side in sides.items():
        found[name] = side.retrieve(queries, depth + skip_same_id)
        if skip_same_id:
            found[name] = without_own_ids(questions, found[name], depth)
    if "hybrid" in systems:
        found["hybrid"] = fusion.fuse(found["dense"], found["bm25"], k)
    return {system: [hits[:k] for hits in found[system]] for system in systems}


def facts_of(system: str, question_set: str, fusion: Fusion, kind: str = "exact") -> dict[str, Any]:
    """Returns the facts of a search that its metrics file states. ``kind`` is that of the index over vectors."""
    facts: dict[str, Any] = {"question_set": question_set, "indexer": "bm25" if system == "bm25" else kind}
    if system == "hybrid":
        facts |= {"hybrid": "linear", "hybrid_weight": fusion.weight}
    return facts
