"""The text in the bytes of a document; plain text and reStructuredText as a document."""

from __future__ import annotations

import re

from dpr.core.errors import InputError
from dpr.formats.documents.document import BELOW_ALL, Document, DocumentBuilder, paragraphs

_RULE_OF_SIGNS = re.compile(r"\s*([=\-~^*+#\"'`.:_])\1{2,}\s*")
_NOT_LETTERS = re.compile(r"[^A-Za-z]")
_MOST_SHOUTED_WORDS = 10
_ROLE = re.compile(r":[a-z][\w:+.-]*:`[~!.]?([^`<]*?)(?:\s*<[^`>]*>)?`")
_DIRECTIVE = re.compile(r"^\.\. *(?:[\w:-]+::|(?=\[))", re.MULTILINE)
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MOST_ACCENTS = 0.3


def read_text(text: str, *, is_restructured: bool = False) -> Document:
    """Returns the document of a plain text: paragraphs between blank lines.

    A heading is a line over, or between, rows of signs, or a line of capitals that stands alone. Signs that
    occur first mark the outermost headings. In reStructuredText the marks of roles and directives are left
    out, and so are comments and targets.
    """
    builder = DocumentBuilder()
    levels: dict[tuple[str, bool], int] = {}
    if is_restructured:
        text = _DIRECTIVE.sub("", _ROLE.sub(r"\1", text)).replace("`", "").replace("**", "")
    for number, lines in paragraphs(text.split("\n")):
        is_between = len(lines) > 2 and bool(
            _RULE_OF_SIGNS.fullmatch(lines[0]) and _RULE_OF_SIGNS.fullmatch(lines[2])
        )
        title, *below = lines[is_between:]
        if below and (rule := _RULE_OF_SIGNS.fullmatch(below[0])) and not _RULE_OF_SIGNS.fullmatch(title):
            level = levels.setdefault((rule[1], is_between), len(levels) + 1)
            builder.heading(level, title, number)
            lines = below[1:]
        elif (
            len(lines) == 1
            and title.isupper()
            and len(_NOT_LETTERS.sub("", title)) >= 4
            and len(title.split()) <= _MOST_SHOUTED_WORDS
        ):
            builder.heading(BELOW_ALL - 1, title.capitalize(), number)
            continue
        if is_restructured and lines and lines[0].startswith(".. "):
            continue
        body = "\n".join(line for line in lines if not _RULE_OF_SIGNS.fullmatch(line))
        builder.add(body.replace("::", ":") if is_restructured else body, line=number)
    return builder.finish()


def decoded(data: bytes, charset: str = "") -> str:
    """Decodes the bytes of a file: by its byte order mark, else in ``charset``, else as UTF-8, else as the
    Western European encoding of Windows.

    Raises:
        InputError: the bytes are not in ``charset``, include some that no text has, or are neither UTF-8 nor
        Western European.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), charset or "utf-8")
    try:
        text = data.decode(encoding)
    except LookupError:
        found = f"declares the charset {charset[:40]!a}, which is not known"
        raise InputError(found, hint="save the file as UTF-8") from None
    except UnicodeDecodeError as error:
        if encoding != "utf-8" or charset:
            byte = f"byte {error.start + 1} (0x{data[error.start]:02x})"
            raise InputError(f"{byte} is not valid {encoding}, the encoding that the file declares") from None
        text = data.decode("cp1252", errors="replace")
        letters = [sign for sign in text if sign.isalpha() or sign == "\ufffd"]
        accents = sum(not sign.isascii() for sign in letters)
        if accents > _MOST_ACCENTS * len(letters):  # Cyrillic, Chinese ... would become gibberish
            found = "neither UTF-8 nor Western European text"
            raise InputError(found, hint="save the file as UTF-8") from None
    if match := _BINARY.search(text):
        raise InputError(f"not text: it holds the byte 0x{ord(match[0]):02x}")
    return text.replace("\r\n", "\n").replace("\r", "\n")
