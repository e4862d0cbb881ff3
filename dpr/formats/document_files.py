"""Document files and their readers. Formats of the extra ``documents`` are read by libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.paths import odd_kind
from dpr.formats.documents.converted import read_excel, read_html, read_office, read_pdf
from dpr.formats.documents.document import Document
from dpr.formats.documents.markdown import read_markdown
from dpr.formats.documents.plain_text import decoded, read_text
from dpr.formats.documents.tables import read_table

MOST_BYTES = 32 * 2**20
READERS: dict[str, Callable[[bytes, PurePath], Document]] = {
    **dict.fromkeys((".md", ".markdown"), lambda data, path: read_markdown(decoded(data))),
    **dict.fromkeys((".txt", ".text"), lambda data, path: read_text(decoded(data))),
    ".rst": lambda data, path: read_text(decoded(data), is_restructured=True),
    **dict.fromkeys((".csv", ".tsv"), lambda data, path: read_table(decoded(data), path)),
    **dict.fromkeys((".html", ".htm"), lambda data, path: read_html(data)),
    ".pdf": lambda data, path: read_pdf(data),
    **dict.fromkeys((".docx", ".pptx", ".epub"), read_office),
    ".xlsx": lambda data, path: read_excel(data),
}
"""Readers by the ending of the file's name. They take the bytes, and the path from the folder that is
read."""


def read_document(file: Path, name: PurePath) -> Document:
    """Returns the document in a file; ``name`` is its path from the folder that is read.

    Raises:
        InputError: it is too large, not text, damaged, without any text.
        ConfigError: it needs a package that is not installed.
        MemoryError: it needs more than is available.
    """
    try:
        if kind := odd_kind(file):
            raise InputError(f"is {kind}, not a file")
        if (size := file.stat().st_size) > MOST_BYTES:
            raise InputError(f"{size / 2**20:.0f} MB, larger than {MOST_BYTES // 2**20} MB")
        data = file.read_bytes()
        document = READERS[file.suffix.lower()](data, name)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None
    except (DprError, MemoryError):
        raise
    except Exception as error:  # a damaged file ends its parser in many ways
        raise InputError(f"not a readable {name.suffix[1:]} file: {first_line(error)}") from None
    if not document.sections:
        raise InputError("no text")
    return document
