"""Plain text: paragraphs between blank lines, and the headings that are recognisable without any markup."""

from __future__ import annotations

import re

from dpr.formats.documents.document import Document, DocumentBuilder, paragraphs

_UNDERLINE = re.compile(r"\s*([=\-~*#])\1{2,}\s*")
_NOT_LETTERS = re.compile(r"[^A-Za-z]")
_MOST_WORDS = 10


def read_text(text: str) -> Document:
    """A heading is a line over a row of ``=`` (outer) or of other signs (inner), or a line of capitals that stands alone."""
    builder = DocumentBuilder()
    for number, lines in paragraphs(text.split("\n")):
        if len(lines) >= 2 and (rule := _UNDERLINE.fullmatch(lines[1])) and not _UNDERLINE.fullmatch(lines[0]):
            builder.heading(1 if rule[1] == "=" else 2, lines[0], number)
            lines = lines[2:]
        elif len(lines) == 1 and _is_shouted(lines[0]):
            builder.heading(3, lines[0].capitalize(), number)
            continue
        builder.add(" ".join(line for line in lines if not _UNDERLINE.fullmatch(line)), line=number)
    return builder.finish()


def _is_shouted(line: str) -> bool:
    return line.isupper() and len(_NOT_LETTERS.sub("", line)) >= 4 and len(line.split()) <= _MOST_WORDS
