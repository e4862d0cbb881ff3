"""What a search of ``dpr.Retriever`` finds."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpr.core.records import Origin, Passage
from dpr.retrieval.explaining import EXCERPT, QuestionWords


@dataclass(frozen=True, slots=True)
class Place:
    """Where one side of a search has a passage; rank 1 is the first."""

    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found, rank 1 first. One that the corpus does not have comes without texts."""

    rank: int
    score: float
    passage: Passage
    sides: Mapping[str, Place | None] = field(default_factory=dict)
    """Its place on the sides asked, ``dense`` and ``bm25``; None where a side does not list it."""
    file: Path | None = None
    """The corpus, where it is one file."""

    @property
    def id(self) -> str:
        return str(self.passage.id)

    @property
    def title(self) -> str:
        return self.passage.title

    @property
    def text(self) -> str:
        return self.passage.text

    @property
    def origin(self) -> Origin | None:
        """The document that the passage was taken from, where its corpus says so."""
        return self.passage.origin

    @property
    def dense(self) -> float | None:
        """Its score by vectors; None where they were not asked, or do not list it."""
        return place.score if (place := self.sides.get("dense")) else None

    @property
    def bm25(self) -> float | None:
        """Its score by words; None as for ``dense``."""
        return place.score if (place := self.sides.get("bm25")) else None


class Hits(list[Hit]):
    """The hits of a question, best first. A notebook shows them as a table."""

    def __init__(self, question: str, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)
        self.question = question

    def _repr_html_(self) -> str:
        words = QuestionWords(self.question)
        sides = [name for name in ("dense", "bm25") if len(self) and len(self[0].sides) > 1]
        names = ["", "score", *({"bm25": "BM25"}.get(name, name) for name in sides), "id", "passage"]
        rows = []
        for hit in self:
            places = [hit.sides.get(name) for name in sides]
            cells = [
                str(hit.rank),
                f"{hit.score:.4f}",
                *(f"{place.score:.4g} (#{place.rank})" if place else "" for place in places),
                hit.id,
            ]
            title = f"<b>{html.escape(hit.title)}</b><br>" if hit.title else ""
            pieces = [html.escape(piece) for piece in words.excerpt(hit.text, EXCERPT)]
            text = "".join(
                f"<mark>{piece}</mark>" if index % 2 else piece for index, piece in enumerate(pieces)
            )
            rows.append(
                "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
                + f"<td style='text-align:left'>{title}{text}</td>"
            )
        head = "".join(f"<th>{name}</th>" for name in names)
        caption = f"<caption>{html.escape(self.question)}{'' if self else ': nothing found'}</caption>"
        return f"<table>{caption}<tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
