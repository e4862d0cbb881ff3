"""Values of records, checked: texts, ids, titles, numbers. Errors name the place inside the record."""

from __future__ import annotations

import sys
from typing import Any

from dpr.storage.untrusted import describe


def has_lone_surrogate(text: str) -> bool:
    """True if JSON escapes left half of a character, which no UTF-8 file can hold."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def is_finite_number(value: Any) -> bool:
    """True if a JSON value is a number that a float can hold; JSON's integers are unbounded."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_LARGEST_SCORE = 3.4e38  # training computes in float32


def checked_score(value: Any, where: str) -> float | None:
    """Returns a teacher's score; None for null. Raises ValueError for anything else: text, a boolean, NaN, or
    a number that float32 cannot hold."""
    if value is None:
        return None
    if not is_finite_number(value) or abs(value) > _LARGEST_SCORE:
        raise ValueError(
            f"{where} is {describe(value)}, expected a teacher's score: a finite number of 32 bits, or null"
        )
    return float(value)


def number_of(value: Any) -> float | None:
    """Returns a grade, label or score as a finite number, read from text, too; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if len(value) <= 40 else None
        except ValueError:
            return None
    return float(value) if isinstance(value, bool) or is_finite_number(value) else None


def text_of(value: Any, where: str) -> str:
    """Returns a string that holds more than spaces. Raises ValueError for anything else, or half a
    character."""
    text = string_of(value, where)
    if not text.strip():
        raise ValueError(f"{where} is empty, expected some text")
    return text


def checked_id(value: Any, where: str) -> str:
    """Returns an id as a string, maybe empty. Raises ValueError unless it is a string or an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return string_of(value, where, "an id (a string or an integer)")


def id_of(value: Any, where: str) -> str:
    """Returns an id as ``checked_id`` does. Refuses an empty one, too."""
    key = checked_id(value, where)
    if not key:
        raise ValueError(f"{where} is empty, expected an id (a string or an integer)")
    return key


def title_of(value: Any, where: str) -> str:
    """Returns a title; empty for null. Raises ValueError for anything but a string."""
    return "" if value is None else string_of(value, where)


def string_of(value: Any, where: str, expected: str = "a string") -> str:
    """Returns a string, maybe empty. Raises ValueError for anything else, or half a character."""
    if not isinstance(value, str):
        raise ValueError(f"{where} is {describe(value)}, expected {expected}")
    if has_lone_surrogate(value):
        raise ValueError(f"{where} holds half of a character (a lone surrogate), expected valid Unicode")
    return value
