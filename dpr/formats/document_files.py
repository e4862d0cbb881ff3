"""The files of documents: which reader belongs to which, and those that libraries read, all of the extra
``documents``: HTML, Word, PowerPoint and EPUB, which markitdown writes as Markdown; Excel row by row; PDF page by page.

Nothing is fetched: the converters are given bytes and no address, and the link to another file in a document is
text. An archive, or the streams of a PDF, may unpack to ``MOST_UNPACKED`` bytes.
"""

from __future__ import annotations

import html
import io
import logging
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.machine import require
from dpr.core.paths import odd_kind
from dpr.formats.documents import (
    Block,
    Document,
    Section,
    decoded,
    one_line,
    paragraphs,
    read_markdown,
    read_table,
    read_text,
    rows_as_sections,
)

MOST_BYTES = 32 * 2**20
MOST_UNPACKED = 256 * 2**20
MOST_CELLS = 5_000_000
_CHUNK = 2**16
_CONVERTERS = {
    ".docx": "DocxConverter",
    ".epub": "EpubConverter",
    ".html": "HtmlConverter",
    ".pptx": "PptxConverter",
}
_NOT_CONTENT = (
    "script style input noscript template svg nav footer aside form select button head a.headerlink"
)
# Browsers take some names for a larger encoding; what could be searched for its charset is not UTF-16.
_AS_IN_BROWSERS = {
    "us-ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
    "utf-16": "utf-8",
}
_HYPHEN = re.compile(r"(\w)-\n(?=[a-z])")
_STREAM = re.compile(rb"(?<!end)stream\r?\n")


def read_html(data: bytes) -> Document:
    """What a reader of a page sees, without its navigation, forms and scripts, in the charset that it declares."""
    bs4 = _package("bs4", "HTML")
    with warnings.catch_warnings(action="ignore"):
        declared = bs4.dammit.EncodingDetector.find_declared_encoding(data, is_html=True) or ""
        charset = _AS_IN_BROWSERS.get(declared.lower(), declared)
        soup = bs4.BeautifulSoup(decoded(data, charset), "lxml")
    has_heading = soup.find("h1") is not None
    title = soup.title.get_text() if soup.title is not None and not has_heading else ""
    for node in soup.find_all(string=lambda node: isinstance(node, bs4.element.PreformattedString)):
        node.extract()  # comments and declarations
    for tag in soup.select(", ".join(_NOT_CONTENT.split())):
        tag.decompose()
    for tag in soup("a"):
        tag.unwrap()
    for node in soup.find_all(string=re.compile("[<&]|```")):
        if node.find_parent("pre") is None:
            node.replace_with(html.escape(node, quote=False))  # its signs are no tags of the Markdown
        else:
            node.replace_with(node.replace("```", "'''"))  # nor the end of the code
    for tag in soup(["dt", "summary"]):  # what is defined, and a question that can be opened
        tag.name = "h6"
    for tag in soup("dd"):
        tag.name = "p"
    markdown, _ = _markdown(str(soup).encode(errors="replace"), ".html")
    return _without_lines(read_markdown(markdown, title))


def read_office(data: bytes, path: PurePath) -> Document:
    """Word, PowerPoint and EPUB."""
    suffix = path.suffix.lower()
    _require_small_archive(data, suffix)
    markdown, title = _markdown(data, suffix)
    if suffix == ".epub":
        markdown = markdown.partition("\n\n")[2]  # title, authors and dates come first
    return _without_lines(read_markdown(markdown, title))


def read_excel(data: bytes) -> Document:
    """A section for every row under the header of its sheet, as in a CSV file; several sheets are headings."""
    _require_small_archive(data, ".xlsx")
    openpyxl = _package("openpyxl", "Excel")
    sections: list[Section] = []
    num_cells = 0
    try:
        workbook = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        for sheet in workbook.worksheets:
            sheet.reset_dimensions()  # what a file says of its size need not be so
            rows = []
            for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
                num_cells += 1 + len(row)
                if num_cells > MOST_CELLS:
                    raise InputError(f"more than {MOST_CELLS:,} cells")
                if any(cell is not None for cell in row):
                    rows.append((number, ["" if cell is None else str(cell) for cell in row]))
            above = (one_line(sheet.title),) if len(workbook.worksheets) > 1 else ()
            for section in rows_as_sections(rows) if len(rows) > 1 else ():
                sections.append(replace(section, headings=above + section.headings))
    except Exception as error:  # a damaged file ends its parser in many ways
        raise _unreadable(error, "Excel file") from None
    return Document("", tuple(sections))


def read_pdf(data: bytes) -> Document:
    """A section for every page that has text, headed by its number. Words that a line end cut in two are
    joined."""
    left = MOST_UNPACKED
    for stream in _STREAM.finditer(data):
        inflate = zlib.decompressobj()
        for start in range(stream.end(), len(data), _CHUNK):
            try:
                left -= len(inflate.decompress(data[start : start + _CHUNK], left + 1))
            except zlib.error:
                break  # not compressed, or by other means
            if left < 0:
                raise InputError(f"unpacks to more than {MOST_UNPACKED // 2**20} MB")
            if inflate.eof:
                break
    pdfminer = _package("pdfminer.high_level", "PDF")
    logging.getLogger("pdfminer").setLevel(logging.CRITICAL)  # its remarks on files that it repairs
    try:
        texts = pdfminer.extract_text(io.BytesIO(data)).split("\f")
    except Exception as error:
        raise _unreadable(error, "PDF") from None
    sections = []
    for number, text in enumerate(texts, 1):
        joined = [one_line(_HYPHEN.sub(r"\1", "\n".join(lines))) for _, lines in paragraphs(text.split("\n"))]
        if blocks := tuple(Block(part) for part in joined if part):
            sections.append(Section((f"page {number}",), blocks, number))
    return Document("", tuple(sections), has_written_headings=False)


def _markdown(data: bytes, suffix: str) -> tuple[str, str]:
    """The Markdown of a document and the title that it states."""
    markitdown = _package("markitdown", suffix[1:])
    converters = _package("markitdown.converters", suffix[1:])
    # Its own choice of a converter would look at the content and might take another, such as one of pictures.
    converter = getattr(converters, _CONVERTERS[suffix])()
    information = markitdown.StreamInfo(extension=suffix, charset="utf-8")
    options: dict[str, Any] = {"autolinks": False, "escape_misc": True}
    if suffix == ".docx":
        options["style_map"] = "p[style-name='Title'] => h1:fresh"
    try:
        with warnings.catch_warnings(action="ignore"):
            found = converter.convert(io.BytesIO(data), information, **options)
    except Exception as error:  # a damaged file ends its parser in many ways
        raise _unreadable(error, f"{suffix[1:]} file") from None
    return found.markdown, found.title or ""


def _require_small_archive(data: bytes, suffix: str) -> None:
    try:
        members = zipfile.ZipFile(io.BytesIO(data)).infolist()
    except (zipfile.BadZipFile, ValueError) as error:
        raise _unreadable(error, f"{suffix[1:]} file") from None
    # No member gives more than it states: zipfile ends there.
    if sum(member.file_size for member in members) > MOST_UNPACKED:
        raise InputError(f"unpacks to more than {MOST_UNPACKED // 2**20} MB")


def _package(name: str, kind: str) -> Any:
    return require(name, extra="documents", purpose=f"reading {kind}")


def _unreadable(error: Exception, kind: str) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError(f"not a readable {kind}: {first_line(error)}")


def _without_lines(document: Document) -> Document:
    """Lines of the Markdown are not those of the file."""
    return replace(document, sections=tuple(replace(section, line=0) for section in document.sections))


READERS: dict[str, Callable[[bytes, PurePath], Document]] = {
    ".md": lambda data, path: read_markdown(decoded(data)),
    ".markdown": lambda data, path: read_markdown(decoded(data)),
    ".txt": lambda data, path: read_text(decoded(data)),
    ".text": lambda data, path: read_text(decoded(data)),
    ".rst": lambda data, path: read_text(decoded(data), is_restructured=True),
    ".csv": lambda data, path: read_table(decoded(data), path),
    ".tsv": lambda data, path: read_table(decoded(data), path),
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
