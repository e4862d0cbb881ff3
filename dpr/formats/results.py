"""Results of retrieval in DPR's JSON, the input of readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.formats.json_records import indented_record
from dpr.formats.text_output import durable_text


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage. Title and text are empty in results without texts. ``has_answer`` is None if it
    was not judged."""

    id: str
    title: str
    text: str
    score: float
    has_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class RetrievedQuestion:
    """A question with its hits, best first."""

    question: str
    id: str
    answers: tuple[str, ...]
    hits: list[Hit]


def write_results(path: str | Path, results: Iterable[RetrievedQuestion]) -> None:
    """Writes DPR's results JSON (an array, indented by 4, scores as strings) and its checksum; ``.gz`` is
    packed."""
    with durable_text(Path(path), note={}) as out:
        separator = "["
        for result in results:
            record: dict[str, Any] = {
                "question": result.question,
                "id": result.id,
                "answers": list(result.answers),
            }
            record["ctxs"] = [
                {
                    "id": hit.id,
                    "title": hit.title,
                    "text": hit.text,
                    "score": repr(float(hit.score)),
                    "has_answer": hit.has_answer,
                }
                for hit in result.hits
            ]
            out.write(separator + indented_record(record))
            separator = ","
        out.write("[]\n" if separator == "[" else "\n]\n")
