"""Markitdown and the other libraries of the extra ``documents``. Nothing is fetched: the converters get bytes and no
address, and a document's link to another file is text."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from typing import Any

from dpr.core.machine import require
from dpr.formats.documents.document import Document


def converted(data: io.BytesIO, suffix: str) -> tuple[str, str]:
    """Returns the Markdown of a document and the title that it states."""
    markitdown = package("markitdown", suffix[1:])
    # Its own choice of a converter would look at the content and might take another, such as one of pictures.
    converter = getattr(markitdown.converters, f"{suffix[1:].capitalize()}Converter")()
    about = markitdown.StreamInfo(extension=suffix, charset="utf-8")
    with warnings.catch_warnings(action="ignore"):
        found = converter.convert(
            data, about, autolinks=False, escape_misc=True, style_map="p[style-name='Title'] => h1:fresh"
        )
    return found.markdown, found.title or ""


def package(name: str, kind: str) -> Any:
    return require(name, extra="documents", purpose=f"reading {kind}")


def without_lines(document: Document) -> Document:
    """Removes line numbers, since lines of the Markdown are not those of the file."""
    return replace(document, sections=tuple(replace(section, line=0) for section in document.sections))
