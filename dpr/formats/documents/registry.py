"""Which reader belongs to which file; the readers of plain text and of tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePath

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.paths import odd_kind
from dpr.formats.delimited import form_of, rows_of
from dpr.formats.documents.converted import read_excel, read_html, read_office, read_pdf
from dpr.formats.documents.document import (
    BELOW_ALL,
    Document,
    DocumentBuilder,
    decoded,
    paragraphs,
    rows_as_sections,
)
from dpr.formats.documents.markdown import read_markdown

MOST_BYTES = 32 * 2**20
_RULE = re.compile(r"\s*([=\-~^*+#\"'`.:_])\1{2,}\s*")
_NOT_LETTERS = re.compile(r"[^A-Za-z]")
_MOST_SHOUTED_WORDS = 10
_ROLE = re.compile(r":[a-z][\w:+.-]*:`[~!.]?([^`<]*?)(?:\s*<[^`>]*>)?`")
_DIRECTIVE = re.compile(r"^\.\. *[\w:-]+::", re.MULTILINE)


def read_text(text: str, *, is_restructured: bool = False) -> Document:
    """Plain text: paragraphs between blank lines.

    A heading is a line over, or between, rows of signs, those that occur first being the outermost, or a line of
    capitals that stands alone. Of reStructuredText the marks of roles and directives are left out, and comments
    and targets.
    """
    builder = DocumentBuilder()
    levels: dict[tuple[str, bool], int] = {}
    if is_restructured:
        text = _DIRECTIVE.sub("", _ROLE.sub(r"\1", text)).replace("`", "").replace("**", "")
    for number, lines in paragraphs(text.split("\n")):
        is_between = len(lines) > 2 and bool(_RULE.fullmatch(lines[0]) and _RULE.fullmatch(lines[2]))
        title, *below = lines[is_between:]
        if below and (rule := _RULE.fullmatch(below[0])) and not _RULE.fullmatch(title):
            level = levels.setdefault((rule[1], is_between), len(levels) + 1)
            builder.heading(level, title, number)
            lines = below[1:]
        elif len(lines) == 1 and _is_shouted(title):
            builder.heading(BELOW_ALL - 1, title.capitalize(), number)
            continue
        if is_restructured and lines and lines[0].startswith(".. "):
            continue
        body = "\n".join(line for line in lines if not _RULE.fullmatch(line))
        builder.add(body.replace("::", ":") if is_restructured else body, line=number)
    return builder.finish()


def read_table(text: str, path: PurePath) -> Document:
    """A section for every row of a CSV or TSV. Rows without a recognised column are written as "column: value".

    Raises:
        InputError: the quoting is broken, or there is no row under the header.
    """
    lines = list(enumerate(text.split("\n"), 1))
    file = Path(path)
    form = form_of(lines, file, commas=path.suffix.lower() == ".csv")
    rows = [(line, row) for line, row in rows_of(lines, form, file) if any(cell.strip() for cell in row)]
    return Document("", tuple(rows_as_sections(rows)))


def _is_shouted(line: str) -> bool:
    return (
        line.isupper() and len(_NOT_LETTERS.sub("", line)) >= 4 and len(line.split()) <= _MOST_SHOUTED_WORDS
    )


def _markdown(data: bytes, path: PurePath) -> Document:
    return read_markdown(decoded(data))


def _text(data: bytes, path: PurePath) -> Document:
    return read_text(decoded(data), is_restructured=path.suffix.lower() == ".rst")


def _table(data: bytes, path: PurePath) -> Document:
    return read_table(decoded(data), path)


READERS: dict[str, Callable[[bytes, PurePath], Document]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _text,
    ".text": _text,
    ".rst": _text,
    ".csv": _table,
    ".tsv": _table,
    ".html": lambda data, path: read_html(data),
    ".htm": lambda data, path: read_html(data),
    ".pdf": lambda data, path: read_pdf(data),
    ".docx": read_office,
    ".pptx": read_office,
    ".epub": read_office,
    ".xlsx": lambda data, path: read_excel(data),
}
"""Reader by the ending of the file's name: bytes, and the path from the folder that is read."""


def read_document(file: Path, name: PurePath) -> Document:
    """The document in a file; ``name`` is its path from the folder that is read.

    Raises:
        InputError: it is too large, not text, damaged, or without any text.
        ConfigError: it needs a package that is not installed.
    """
    try:
        if kind := odd_kind(file):
            raise InputError(f"is {kind}, not a file")
        if (size := file.stat().st_size) > MOST_BYTES:
            raise InputError(f"{size / 2**20:.0f} MB, larger than {MOST_BYTES // 2**20} MB")
        document = READERS[file.suffix.lower()](file.read_bytes(), name)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, MemoryError, AssertionError) as error:
        if isinstance(error, DprError):
            raise
        raise InputError(f"cannot be read: {first_line(error)}") from None
    if not document.sections:
        raise InputError("no text")
    return document
