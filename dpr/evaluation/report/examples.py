"""Example questions with their first hits: chosen evenly over a question set, and cut so that they fit on a
page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpr.formats.results import RetrievedQuestion

NUM_EXAMPLES = 10
NUM_HITS = 5
TEXT_LIMIT = 500
_TITLE_LIMIT = 120


@dataclass(frozen=True)
class ExampleHit:
    """A hit as shown. ``right``: it is judged relevant or holds an answer; None where nothing was judged."""

    title: str
    text: str
    score: float
    right: bool | None


@dataclass(frozen=True)
class Example:
    """A question with its first hits. ``first_right_rank``: 1 for the first; None where no hit is right."""

    question: str
    id: str
    answers: tuple[str, ...]
    first_right_rank: int | None
    hits: tuple[ExampleHit, ...]


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, at a space where there is one near; white space becomes single spaces."""
    flat = " ".join(text[: 4 * limit + 100].split())
    if len(flat) <= limit:
        return flat
    kept = flat[:limit].rsplit(" ", 1)[0] if " " in flat[max(limit - 30, 1) : limit] else flat[:limit]
    return kept.rstrip() + " ..."


def spread(items: Iterable[Any], number: int) -> list[Any]:
    """Up to ``number`` items at even distances, from a stream of unknown length."""
    kept: list[Any] = []
    stride = 1
    for position, item in enumerate(items):
        if position % stride:
            continue
        kept.append(item)
        if len(kept) == 2 * number:
            kept, stride = kept[::2], 2 * stride
    return [kept[index * len(kept) // number] for index in range(number)] if len(kept) > number else kept


def example_of(result: RetrievedQuestion) -> Example:
    """The example that a results record gives."""
    first = next((rank for rank, hit in enumerate(result.hits, 1) if hit.has_answer), None)
    hits = [
        ExampleHit(hit.title or hit.id, hit.text, hit.score, hit.has_answer) for hit in result.hits[:NUM_HITS]
    ]
    return _cut_example(result.question, result.id, result.answers, first, hits)


def example_record(value: Any) -> Example | None:
    """An example read back from a metrics file; None where it is not one."""
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("hits"), list)
        or not isinstance(value.get("question"), str)
    ):
        return None
    rank, answers = value.get("first_right_rank"), value.get("answers")
    rank = rank if isinstance(rank, int) and not isinstance(rank, bool) else None
    texts = [str(answer) for answer in answers] if isinstance(answers, list) else []
    hits = [_hit(hit) for hit in value["hits"][:NUM_HITS] if isinstance(hit, dict)]
    return _cut_example(value["question"], str(value.get("id", "")), texts, rank, hits)


def _hit(value: dict[str, Any]) -> ExampleHit:
    score, right = value.get("score"), value.get("right")
    return ExampleHit(
        title=str(value.get("title", "")),
        text=str(value.get("text", "")),
        score=float(score) if isinstance(score, int | float) else math.nan,
        right=right if isinstance(right, bool) else None,
    )


def _cut_example(
    question: str, name: str, answers: Sequence[str], rank: int | None, hits: Iterable[ExampleHit]
) -> Example:
    shown = tuple(
        replace(hit, title=cut(hit.title, _TITLE_LIMIT), text=cut(hit.text, TEXT_LIMIT)) for hit in hits
    )
    answers = tuple(cut(answer, _TITLE_LIMIT) for answer in answers[:5])
    return Example(cut(question, TEXT_LIMIT), cut(name, _TITLE_LIMIT), answers, rank, shown)
