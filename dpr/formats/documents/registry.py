"""Which reader belongs to which file, and how bytes become text; the reader of plain text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePath

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.paths import odd_kind
from dpr.formats.documents.converted import read_excel, read_html, read_office, read_pdf
from dpr.formats.documents.document import BELOW_ALL, Document, DocumentBuilder, paragraphs
from dpr.formats.documents.markdown import read_markdown
from dpr.formats.documents.python_source import clean_markup, read_python
from dpr.formats.documents.tables import read_table

MOST_BYTES = 32 * 2**20
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_RULE = re.compile(r"\s*([=\-~^*+#\"'`.:_])\1{2,}\s*")
_NOT_LETTERS = re.compile(r"[^A-Za-z]")
_MOST_SHOUTED_WORDS = 10
_MOST_ACCENTS = 0.3
_HEAD_BYTES = 2**14
_HTML_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_XML_ENCODING = re.compile(rb"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']\s*([\w.:-]+)""", re.IGNORECASE)
_META_CHARSET = re.compile(rb"""<meta\s[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_CHARSETS = re.compile(
    r"utf-8|utf-16(-[bl]e)?|ascii|cp\d+|iso8859-\d+|koi8-\w|mac-\w+|gb\w+|hz|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+|tis-620"
)
_BROWSER_NAMES = {
    "x-sjis": "shift_jis",
    "x-gbk": "gbk",
    "x-euc-jp": "euc_jp",
    "x-cp1251": "cp1251",
    "x-cp1252": "cp1252",
    "unicode": "utf-8",
}
# Browsers take some names for the larger encoding that pages of this name are in. What could be searched for
# <meta is not UTF-16.
_AS_IN_BROWSERS = {
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    **dict.fromkeys(("utf-16", "utf-16-le", "utf-16-be"), "utf-8"),
    **dict.fromkeys(("tis-620", "iso8859-11"), "cp874"),
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def read_text(text: str, *, is_restructured: bool = False) -> Document:
    """Plain text: paragraphs between blank lines.

    A heading is a line over, or between, rows of signs, those that occur first being the outermost, or a line of
    capitals that stands alone. Of reStructuredText the marks of roles and directives are left out, and comments
    and targets.
    """
    builder = DocumentBuilder()
    levels: dict[tuple[str, bool], int] = {}
    for number, lines in paragraphs(text.split("\n")):
        is_between = len(lines) > 2 and bool(_RULE.fullmatch(lines[0]) and _RULE.fullmatch(lines[2]))
        title, *below = lines[is_between:]
        if below and (rule := _RULE.fullmatch(below[0])) and not _RULE.fullmatch(title):
            level = levels.setdefault((rule[1], is_between), len(levels) + 1)
            builder.heading(level, clean_markup(title) if is_restructured else title, number)
            lines = below[1:]
        elif len(lines) == 1 and _is_shouted(title):
            builder.heading(BELOW_ALL - 1, title.capitalize(), number)
            continue
        if is_restructured and lines and lines[0].startswith(".. ") and "::" not in lines[0]:
            continue
        body = "\n".join(line for line in lines if not _RULE.fullmatch(line))
        builder.add(
            clean_markup(body).replace("**", "").replace("::", ":") if is_restructured else body, line=number
        )
    return builder.finish()


def _is_shouted(line: str) -> bool:
    return (
        line.isupper() and len(_NOT_LETTERS.sub("", line)) >= 4 and len(line.split()) <= _MOST_SHOUTED_WORDS
    )


def _of_text(read: Callable[[str], Document]) -> Callable[[bytes, PurePath], Document]:
    return lambda data, path: read(decoded(data))


def _page(data: bytes, path: PurePath) -> Document:
    return read_html(decoded(data, declared_charset(data)))


def _office(data: bytes, path: PurePath) -> Document:
    return read_office(data, path.suffix.lower())


READERS: dict[str, Callable[[bytes, PurePath], Document]] = {
    ".md": _of_text(read_markdown),
    ".markdown": _of_text(read_markdown),
    ".txt": _of_text(read_text),
    ".text": _of_text(read_text),
    ".rst": _of_text(partial(read_text, is_restructured=True)),
    ".html": _page,
    ".htm": _page,
    ".py": read_python,
    ".csv": _of_text(partial(read_table, delimiter=",")),
    ".tsv": _of_text(partial(read_table, delimiter="\t")),
    ".pdf": lambda data, path: read_pdf(data),
    ".docx": _office,
    ".pptx": _office,
    ".epub": _office,
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
    except (SyntaxError, ValueError, RecursionError, MemoryError, AssertionError) as error:
        if isinstance(error, DprError):
            raise
        raise InputError(f"cannot be read: {first_line(error)}") from None
    if not document.sections:
        raise InputError("no docstrings" if file.suffix.lower() == ".py" else "no text")
    return document


def decoded(data: bytes, charset: str = "") -> str:
    """The text of a file: by its byte order mark, else in ``charset``, else UTF-8, or else the Western
    European of Windows.

    Raises:
        InputError: it is not in ``charset``, holds bytes that no text has, or is neither UTF-8 nor Western
        European.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), charset or "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8" or charset:
            raise InputError(
                f"byte {error.start + 1} (0x{data[error.start]:02x}) is not {encoding}, which the file says"
                " it is in"
            ) from None
        text = data.decode("cp1252", errors="replace")
        letters = [sign for sign in text if sign.isalpha() or sign == "\ufffd"]
        if sum(not sign.isascii() for sign in letters) > _MOST_ACCENTS * len(
            letters
        ):  # Cyrillic, Chinese ... would become gibberish
            raise InputError(
                "neither UTF-8 nor Western European text", hint="save the file as UTF-8"
            ) from None
    if match := _BINARY.search(text):
        raise InputError(f"not text: it holds the byte 0x{ord(match[0]):02x}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def declared_charset(data: bytes) -> str:
    """The encoding that a page declares, as browsers read the name; empty where it declares none, or has a
    byte order mark.

    Raises:
        InputError: nothing of this name is known.
    """
    head = _HTML_COMMENT.sub(b"", data[:_HEAD_BYTES])
    found = _XML_ENCODING.match(head) or _META_CHARSET.search(head)
    if found is None or any(data.startswith(mark) for mark, _ in _MARKS):
        return ""
    label = found[1].decode("latin-1").lower()
    try:
        name = codecs.lookup(_BROWSER_NAMES.get(label, label)).name
    except (LookupError, ValueError):
        name = ""
    if not _CHARSETS.fullmatch(name):
        raise InputError(
            f"declares the charset {label[:40]!a}, which is not known", hint="save the file as UTF-8"
        )
    return _AS_IN_BROWSERS.get(name, name)
