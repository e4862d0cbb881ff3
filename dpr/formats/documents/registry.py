"""Which reader belongs to which file, and how bytes become text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath

from dpr.core.errors import DprError, InputError, first_line
from dpr.formats.documents.document import Document
from dpr.formats.documents.html_pages import read_html
from dpr.formats.documents.markdown import read_markdown
from dpr.formats.documents.pdf import read_pdf
from dpr.formats.documents.plain_text import read_text
from dpr.formats.documents.python_source import read_python
from dpr.formats.documents.restructured_text import read_restructured_text
from dpr.formats.documents.tables import read_table

MOST_BYTES = 32 * 2**20
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def _of_text(read: Callable[[str], Document]) -> Callable[[bytes, PurePath], Document]:
    return lambda data, path: read(decoded(data))


_markdown, _html, _plain = _of_text(read_markdown), _of_text(read_html), _of_text(read_text)
READERS: dict[str, Callable[[bytes, PurePath], Document]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _plain,
    ".text": _plain,
    ".rst": _of_text(read_restructured_text),
    ".html": _html,
    ".htm": _html,
    ".py": read_python,
    ".pdf": lambda data, path: read_pdf(data),
    ".csv": _of_text(partial(read_table, delimiter=",")),
    ".tsv": _of_text(partial(read_table, delimiter="\t")),
}
"""Reader by the ending of the file's name: bytes, and the path from the folder that is read."""


def read_document(file: Path, name: PurePath) -> Document:
    """The document in a file; ``name`` is its path from the folder that is read.

    Raises:
        InputError: it is too large, not text, damaged, or without any text.
        ConfigError: it needs a package that is not installed.
    """
    try:
        if (size := file.stat().st_size) > MOST_BYTES:
            raise InputError(f"{size / 2**20:.0f} MB, larger than {MOST_BYTES // 2**20} MB")
        document = READERS[file.suffix.lower()](file.read_bytes(), name)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError, AssertionError) as error:
        if isinstance(error, DprError):
            raise
        raise InputError(f"cannot be read: {first_line(error)}") from None
    if not document.sections:
        raise InputError("no docstrings" if file.suffix.lower() == ".py" else "no text")
    return document


def decoded(data: bytes) -> str:
    """The text of a file: UTF-8, UTF-16 with its mark, or else the Western European of Windows.

    Raises:
        InputError: it holds bytes that no text has.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    if found := _BINARY.search(text):
        raise InputError(f"not text: it holds the byte 0x{ord(found[0]):02x}")
    return text.replace("\r\n", "\n").replace("\r", "\n")
