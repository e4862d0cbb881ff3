"""Documents that libraries of the extra ``documents`` read: HTML, Word, PowerPoint and EPUB, which markitdown
writes as Markdown; Excel row by row; PDF page by page. Nothing is fetched: the converters get bytes and no
address, and a link to another file is text.

An archive may unpack to ``MOST_UNPACKED`` bytes; bounded_reading bounds the other resources of a document.
"""

from __future__ import annotations

import html
import io
import logging
import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

from dpr.core.errors import InputError
from dpr.core.machine import require
from dpr.formats.documents.document import Block, Document, Section, one_line, paragraphs
from dpr.formats.documents.markdown import read_markdown
from dpr.formats.documents.plain_text import decoded
from dpr.formats.documents.tables import rows_as_sections

_NOT_CONTENT = (
    "script style input noscript template svg nav footer aside:not([class*=note],[role^=doc-])"
    " form:not(:has(h1,h2,h3,[name=__VIEWSTATE],p:not(:has(label,input,select,textarea,button))))"
    " form.comment-form select button head a.headerlink"
)
"""A form with headings or paragraphs, or that ASP.NET puts around a page, is content."""
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
_HYPHEN = re.compile(r"(\w)-\n(?=[a-z])")


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


def read_html(data: bytes) -> Document:
    """Returns the text of a page as its readers see it, without navigation, forms and scripts, in the charset
    that the page declares."""
    bs4 = package("bs4", "HTML")
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
    for tag in soup(["dt", "summary"]):  # a defined term, and a question that can be opened
        tag.name = "h6"
    for tag in soup("dd"):
        tag.name = "p"
    markdown, _ = converted(io.BytesIO(str(soup).encode(errors="replace")), ".html")
    return without_lines(read_markdown(markdown, title))


def read_office(data: bytes, path: PurePath) -> Document:
    """Reads Word without page headers and footers, comments and deleted text; PowerPoint without diagrams;
    EPUB."""
    suffix = path.suffix.lower()
    content = _archive(data, r"word/\w+\.xml", _with_all_texts) if suffix == ".docx" else _archive(data)
    markdown, title = converted(content, suffix)
    if suffix == ".epub":
        markdown = markdown.partition("\n\n")[2]  # title, authors and dates come first
    elif suffix == ".pptx":
        markdown = re.sub(r"(?<!\\)<(?!!--)", r"\\<", markdown)  # texts as they are, between comments
    return without_lines(read_markdown(markdown, title))


def _with_all_texts(part: bytes) -> bytes:
    """Returns a part of a Word file in which content that mammoth would leave out with its texts, such as
    moved text, fields and drawings, is an insertion."""
    etree = package("lxml.etree", "docx")
    root = etree.fromstring(part, etree.XMLParser(resolve_entities=False))
    for fallback in root.iter("{*}Fallback"):  # repeats a drawing for older programs
        fallback.clear()
    space = root.tag.partition("}")[0]
    for holder in root.iter("*"):
        name = holder.tag.rpartition("}")[2]
        if name not in _READ_BY_MAMMOTH and holder.find(f".//{space}}}t") is not None:
            holder.tag = f"{space}}}{'pict' if name in ('inline', 'anchor') else 'ins'}"
    written: bytes = etree.tostring(root)
    return written


def read_excel(data: bytes) -> Document:
    """Returns a section for every row under the header of its sheet, as in a CSV file. Several sheets become
    headings. A formula that was never computed is the text of its cell."""
    openpyxl = package("openpyxl", "Excel")
    sections: list[Section] = []
    content = _archive(data, ".*worksheets/.*", partial(_WITHOUT_VALUE.sub, _AS_TEXT))
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


def _archive(data: bytes, parts: str = "", changed: Callable[[bytes], bytes] = bytes) -> io.BytesIO:
    """Returns an archive that does not unpack to too much, with those parts changed whose names match."""
    content = io.BytesIO(data)
    members = zipfile.ZipFile(content).infolist()  # raises if it is no archive, which "a" would begin
    # No member gives more than it states: zipfile ends there.
    if sum(member.file_size for member in members) > MOST_UNPACKED:
        raise InputError(f"unpacks to more than {MOST_UNPACKED // 2**20} MB")
    # If two parts have one name, it warns and the later is read.
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(content, "a") as archive:
        for name in archive.namelist():
            if re.fullmatch(parts, name):
                archive.writestr(name, changed(archive.read(name)))
    return content


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
