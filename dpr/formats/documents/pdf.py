"""PDF, page by page."""

from __future__ import annotations

import io
import logging
import re

from dpr.formats.documents.converters import package
from dpr.formats.documents.document import Block, Document, Section, one_line, paragraphs

_HYPHEN = re.compile(r"(\w)-\n(?=[a-z])")


def read_pdf(data: bytes) -> Document:
    """Returns a section for every page that has text, headed by its number. Words that a line end cut in two
    are joined."""
    pdfminer = package("pdfminer.high_level", "PDF")
    logging.getLogger("pdfminer").setLevel(logging.CRITICAL)  # its remarks on files that it repairs
    sections = []
    for number, text in enumerate(pdfminer.extract_text(io.BytesIO(data)).split("\f"), 1):
        joined = [one_line(_HYPHEN.sub(r"\1", "\n".join(lines))) for _, lines in paragraphs(text.split("\n"))]
        if blocks := tuple(Block(part) for part in joined if part):
            sections.append(Section((f"page {number}",), blocks, number))
    return Document("", tuple(sections), has_written_headings=False)
