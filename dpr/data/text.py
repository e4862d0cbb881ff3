"""Text clean-up as in DPR, which checkpoints were trained with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TYPOGRAPHIC_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"


def normalize_question(text: str) -> str:
    """Replaces the typographic apostrophe by the plain one. Applied to questions, in training and in
    retrieval, unless a model says otherwise (``encoder.plain_apostrophes``)."""
    return text.replace(TYPOGRAPHIC_APOSTROPHE, "'")


def normalize_passage(text: str) -> str:
    """Newlines to spaces, typographic apostrophes to plain ones, one leading and one trailing double quote
    removed. Off by default."""
    text = text.replace("\n", " ").replace(TYPOGRAPHIC_APOSTROPHE, "'")
    text = text.removeprefix('"')
    return text.removesuffix('"')


def plain(text: str) -> str:
    """A text without differences of case and spacing, by which equal texts are told."""
    return " ".join(text.casefold().split())


def decorate_question(
    text: str, *, prefix: str | None = None, suffix: str | None = None, plain_apostrophes: bool = True
) -> str:
    """Appends ``suffix`` unless the question ends with it, then puts the ``prefix`` before it as it is."""
    text = normalize_question(text) if plain_apostrophes else text
    if suffix and not text.endswith(suffix):
        text += suffix
    return f"{prefix or ''}{text}"


def decorate_passage(title: str, text: str, *, prefix: str) -> tuple[str, str]:
    """Title and text of a passage with ``prefix`` at its beginning: before the title or, without one, before
    the text."""
    return (prefix + title, text) if title else ("", prefix + text.strip())


def checked_items(given: Any, kinds: tuple[type, ...], method: str, expected: str) -> list[Any]:
    """One item, or several, as a list. Raises TypeError for anything of another kind."""
    if isinstance(given, kinds):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise TypeError(f"{method} takes {expected} or a list of them, not {type(given).__name__}")
    items = list(given)
    for index, item in enumerate(items):
        if not isinstance(item, kinds):
            raise TypeError(
                f"{method} takes {expected} or a list of them, but item {index} is of type"
                f" {type(item).__name__}"
            )
    return items
