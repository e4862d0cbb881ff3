"""PDF, page by page, with the package pypdf (extra ``pdf``)."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from dpr.core.errors import InputError, first_line
from dpr.core.lazy import require
from dpr.formats.documents.document import Block, Document, Section, one_line, paragraphs

_HYPHEN = re.compile(r"(\w)-\n(?=[a-z])")


def read_pdf(data: bytes) -> Document:
    """A section for every page that has text, headed by its number. Words that a line end cut in two are joined.

    Raises:
        ConfigError: pypdf is not installed.
        InputError: it is damaged or needs a password.
    """
    pypdf = require("pypdf", extra="pdf", purpose="reading a PDF")
    try:
        with _quiet():
            reader = pypdf.PdfReader(io.BytesIO(data))
            texts = [page.extract_text() or "" for page in reader.pages]
            title = str((reader.metadata and reader.metadata.title) or "")
    except Exception as error:  # a damaged file ends its parser in many ways
        raise InputError(f"not a readable PDF: {first_line(error)}") from None
    sections = []
    for number, text in enumerate(texts, 1):
        joined = [one_line(_HYPHEN.sub(r"\1", "\n".join(lines))) for _, lines in paragraphs(text.split("\n"))]
        if blocks := tuple(Block(part) for part in joined if part):
            sections.append(Section((f"page {number}",), blocks, number))
    return Document(one_line(title), tuple(sections), has_written_headings=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Its remarks on files that it repairs are of no use to anyone here."""
    logger = logging.getLogger("pypdf")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
