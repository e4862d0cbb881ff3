"""The text in the bytes of a document."""

from __future__ import annotations

import re

from dpr.core.errors import InputError

_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MOST_ACCENTS = 0.3


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
            raise InputError(f"{byte} is not {encoding}, which the file says it is in") from None
        text = data.decode("cp1252", errors="replace")
        letters = [sign for sign in text if sign.isalpha() or sign == "\ufffd"]
        accents = sum(not sign.isascii() for sign in letters)
        if accents > _MOST_ACCENTS * len(letters):  # Cyrillic, Chinese ... would become gibberish
            found = "neither UTF-8 nor Western European text"
            raise InputError(found, hint="save the file as UTF-8") from None
    if match := _BINARY.search(text):
        raise InputError(f"not text: it holds the byte 0x{ord(match[0]):02x}")
    return text.replace("\r\n", "\n").replace("\r", "\n")
