"""Where sentences end."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z(\[\"'*<])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|resp|approx|[A-Z])\.$")


def first_sentence(text: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    for end in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text[: end.end()]):
            return text[: end.end()], text[end.end() :].strip()
    return text, ""


def sentences(text: str) -> list[str]:
    """All sentences of a paragraph, in order."""
    found, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        if not _ABBREVIATION.search(text[max(0, end.end() - 12) : end.end()]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [*found, *([rest] if (rest := text[start:].strip()) else [])]
