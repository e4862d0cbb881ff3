"""Example questions with their first hits: chosen evenly over a question set, and cut so that they fit on a
page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpr.formats.results import RetrievedQuestion

NUM_EXAMPLES = 10
NUM_HITS = 5
TEXT_LIMIT = 500
_TITLE_LIMIT = 120


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
            kept = kept[::2]
            stride *= 2
    return [kept[index * len(kept) // number] for index in range(number)] if len(kept) > number else kept


def example_of(result: RetrievedQuestion) -> dict[str, Any]:
    """The example that a results record gives, as metrics files hold it. ``first_right_rank``: 1 for the
    first; None where no hit is right. ``right`` is None where nothing was judged."""
    return {
        "question": cut(result.question, TEXT_LIMIT),
        "id": cut(result.id, _TITLE_LIMIT),
        "answers": [cut(answer, _TITLE_LIMIT) for answer in result.answers[:5]],
        "first_right_rank": next((rank for rank, hit in enumerate(result.hits, 1) if hit.has_answer), None),
        "hits": [
            {
                "title": cut(hit.title or hit.id, _TITLE_LIMIT),
                "text": cut(hit.text, TEXT_LIMIT),
                "score": hit.score,
                "right": hit.has_answer,
            }
            for hit in result.hits[:NUM_HITS]
        ],
    }


def is_example(value: Any) -> bool:
    """Whether a value of a metrics file, which somebody may have changed, is an example."""
    try:
        hits = [(hit["title"] + hit["text"], hit["score"], hit["right"]) for hit in value["hits"]]
        texts = [value["question"] + value["id"], *value["answers"], *(text for text, _, _ in hits)]
        return all(isinstance(text, str) for text in texts) and "first_right_rank" in value
    except (TypeError, KeyError):
        return False
