"""Word, PowerPoint and EPUB, which markitdown writes as Markdown; Excel row by row.

An archive may unpack to ``MOST_UNPACKED`` bytes; dpr/formats/documents/bounded_reading.py bounds the other
resources of a document.
"""

from __future__ import annotations

import io
import re
import warnings
import zipfile
from dataclasses import replace
from pathlib import PurePath

from dpr.core.errors import InputError
from dpr.formats.documents.converters import converted, package, without_lines
from dpr.formats.documents.document import Document, Section, one_line
from dpr.formats.documents.markdown import read_markdown
from dpr.formats.documents.tables import rows_as_sections

MOST_UNPACKED = 256 * 2**20
# Texts that mammoth reads, or leaves out because they are deleted.
_READ_BY_MAMMOTH = frozenset(
    "document body footnotes footnote endnotes endnote p r t tbl tr tc hyperlink ins smartTag drawing txbxContent"
    " pict object sdt sdtContent group rect roundrect shape textbox del moveFrom".split()
)
_WITHOUT_VALUE = re.compile(
    rb"<((?:\w+:)?)c\b(?![^>]*\bt=.str)(?=(?:[^>]*?(\sr=.\w+.))?)[^>]*>\s*"
    rb"<(?:\w+:)?f\b(?:[^>]*/>|[^>]*>([^<]*)</(?:\w+:)?f>)\s*"
    rb"(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v>\s*</(?:\w+:)?v>)?\s*</(?:\w+:)?c>"
)
"""A formula of Excel that was never computed; a computed text may be empty."""
_AS_TEXT = rb'<\1c\2 t="str"><\1v>=\3</\1v></\1c>'


def read_office(data: bytes, path: PurePath) -> Document:
    """Reads Word without page headers and footers, comments and deleted text; PowerPoint without diagrams;
    EPUB."""
    suffix = path.suffix.lower()
    _require_small_archive(data)
    markdown, title = converted(_with_all_texts(data) if suffix == ".docx" else io.BytesIO(data), suffix)
    if suffix == ".epub":
        markdown = markdown.partition("\n\n")[2]  # title, authors and dates come first
    elif suffix == ".pptx":
        markdown = re.sub(r"(?<!\\)<(?!!--)", r"\\<", markdown)  # texts as they are, between comments
    return without_lines(read_markdown(markdown, title))


def _with_all_texts(data: bytes) -> io.BytesIO:
    """Returns a Word file in which content that mammoth would leave out with its texts, such as moved text,
    fields and drawings, is an insertion."""
    etree = package("lxml.etree", "docx")
    content = io.BytesIO(data)
    # If two parts have one name, it warns and the later is read.
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(content, "a") as archive:
        for part in archive.namelist():
            if not re.fullmatch(r"word/\w+\.xml", part):
                continue
            root = etree.fromstring(archive.read(part), etree.XMLParser(resolve_entities=False))
            for fallback in root.iter("{*}Fallback"):  # repeats a drawing for older programs
                fallback.clear()
            space = root.tag.partition("}")[0]
            for holder in root.iter("*"):
                name = holder.tag.rpartition("}")[2]
                if name not in _READ_BY_MAMMOTH and holder.find(f".//{space}}}t") is not None:
                    holder.tag = f"{space}}}{'pict' if name in ('inline', 'anchor') else 'ins'}"
            archive.writestr(part, etree.tostring(root))
    return content


def read_excel(data: bytes) -> Document:
    """Returns a section for every row under the header of its sheet, as in a CSV file. Several sheets become
    headings. A formula that was never computed is the text of its cell."""
    openpyxl = package("openpyxl", "Excel")
    sections: list[Section] = []
    _require_small_archive(data)
    content = io.BytesIO(data)
    # If two parts have one name, it warns and the later is read.
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(content, "a") as archive:
        for name in archive.namelist():
            if "worksheets/" in name:
                archive.writestr(name, _WITHOUT_VALUE.sub(_AS_TEXT, archive.read(name)))
    workbook = openpyxl.load_workbook(content, read_only=True, data_only=True)
    for sheet in workbook.worksheets:
        sheet.reset_dimensions()  # the size that a file states may be wrong
        rows = []
        for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
            cells = ["" if cell is None else str(cell) for cell in row]
            if any(cells):
                rows.append((number, cells))
        above = (one_line(sheet.title),) if len(workbook.worksheets) > 1 else ()
        for section in rows_as_sections(rows):
            sections.append(replace(section, headings=above + section.headings))
    return Document("", tuple(sections))


def _require_small_archive(data: bytes) -> None:
    members = zipfile.ZipFile(io.BytesIO(data)).infolist()
    # No member gives more than it states: zipfile ends there.
    if sum(member.file_size for member in members) > MOST_UNPACKED:
        raise InputError(f"unpacks to more than {MOST_UNPACKED // 2**20} MB")
