"""Answers of questions: lists, or lists that Python, JSON, numpy or pandas printed as a text."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from typing import Any

from dpr.formats.checked_values import has_lone_surrogate, is_finite_number
from dpr.storage.untrusted import describe

_PRINTED_LIST = re.compile(r"""\s*(\[\s*(['"\]]|np\.str_\()|(np\.|numpy\.)?array\(|\{\s*['"]text['"]\s*:)""")
_SIDE_BY_SIDE = re.compile(r"""['"]\s*['"]""")


def checked_answers(value: Any) -> tuple[str, ...]:
    """Returns answers given as a string, a list of strings and numbers, such a list as text, or SQuAD's
    object with a list ``text``.

    The ValueError of any other value says what was found.
    """
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
    if isinstance(value, str):
        value = answers_in(value) if is_printed_list(value) else [value]
    answers = [] if value is None else value
    if not isinstance(answers, list):
        raise ValueError(f"answers is {describe(value)}, expected a list of strings")
    for index, answer in enumerate(answers):
        if not is_finite_number(answer) and (not isinstance(answer, str) or has_lone_surrogate(answer)):
            raise ValueError(f"answers[{index}] is {describe(answer)}, expected a string")
    return tuple(str(answer) for answer in answers)


def is_printed_list(text: str) -> bool:
    """True if a text begins as a list of texts that Python, JSON, numpy or pandas printed."""
    return _PRINTED_LIST.match(text) is not None


def answers_in(text: str) -> Any:
    """Returns the value of a literal of Python or JSON, or of a list as numpy prints it, with spaces between
    its items. Tuples become lists.

    ``['a' 'b']`` is a list of two texts, although Python would join them.

    Raises:
        ValueError: the text is no such literal.
    """
    try:
        # regex answers such as '\d' are legal literals for which Python warns
        with warnings.catch_warnings(action="ignore"):
            value = ast.literal_eval(_with_commas(text.strip()))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, tokenize.TokenError):
        shown = ascii(text[:60]) + ("..." if len(text) > 60 else "")
        raise ValueError(
            f"the answers {shown} cannot be read, expected a Python list literal such as ['Paris', 'Paris,"
            " France']"
        ) from None
    return list(value) if isinstance(value, tuple) else value


def _with_commas(literal: str) -> str:
    """Returns a literal with a comma between texts that only white space separates, as numpy prints them."""
    if not _SIDE_BY_SIDE.search(literal):
        return literal
    parts: list[str] = []
    end_of_text = None
    for token in tokenize.generate_tokens(io.StringIO(literal).readline):
        if token.type not in (tokenize.STRING, tokenize.OP, tokenize.NAME, tokenize.NUMBER):
            continue
        if token.type == tokenize.STRING and end_of_text is not None:
            if token.start == end_of_text:
                raise ValueError("two texts without anything between them")  # a doubled quote, perhaps
            parts.append(",")
        end_of_text = token.end if token.type == tokenize.STRING else None
        parts.append(token.string)
    return " ".join(parts)
