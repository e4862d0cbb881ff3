"""Fields of records: the names that this and other toolkits give them, and their values, checked: texts, ids,
titles, numbers, answers. Errors name the place inside the record."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from dpr.storage.untrusted import describe

_LARGEST_SCORE = 3.4e38  # training computes in float32
_PRINTED_LIST = re.compile(r"""\s*(\[\s*(['"\]]|np\.str_\()|(np\.|numpy\.)?array\(|\{\s*['"]text['"]\s*:)""")
_SIDE_BY_SIDE = re.compile(r"""['"]\s*['"]""")
# The first one that is there counts. A passage's own id stands before that of the document it was cut from:
# MS MARCO's have pid and docid.
ROW_IDS = ("_id", "id")
NAMED_PASSAGE_IDS = tuple("passage_id psg_id pid docid doc_id document_id docno corpus_id".split())
PASSAGE_IDS = (*ROW_IDS, *NAMED_PASSAGE_IDS)
PASSAGE_TEXTS = tuple(
    "text contents content passage passage_text document_text doc_text segment body document "
    "paragraph context".split()
)
TITLES = ("title", "passage_title", "document_title", "doc_title")
NAMED_QUESTION_IDS = ("query_id", "qid", "question_id", "topic_id")
QUESTION_IDS = (*ROW_IDS, *NAMED_QUESTION_IDS)
QUESTIONS = ("question", "query", "anchor", "query_text", "question_text")
ANSWERS = ("answers", "answer")
POSITIVES = tuple(
    "positive positives pos positive_passages positive_ctxs pos_doc pos_docs passage context document".split()
)
NEGATIVES = tuple(
    "negative negatives neg negs hard_negative hard_negatives hard_neg hard_negs neg_doc neg_docs "
    "negative_passages hard_negative_passages negative_ctxs hard_negative_ctxs".split()
)
GRADES = tuple("score grade rel relevance relevancy label rating judgement judgment qrel".split())
LABELS = tuple(
    "label labels relevance is_relevant relevant grade rating score scores similarity "
    "similarity_score".split()
)
ALL_NAMES = {
    *PASSAGE_IDS,
    *PASSAGE_TEXTS,
    *TITLES,
    *QUESTION_IDS,
    *QUESTIONS,
    *ANSWERS,
    *POSITIVES,
    *NEGATIVES,
    *GRADES,
}


def has_lone_surrogate(text: str) -> bool:
    """True if JSON escapes left half of a character, which no UTF-8 file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def is_finite_number(value: Any) -> bool:
    """True if a JSON value is a number that a float can hold; JSON's integers are unbounded."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


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


def keys_of(record: Mapping[str, Any]) -> str:
    """Returns the keys of a record, as messages show them."""
    shown = ", ".join(map(str, list(record)[:12]))
    return shown + (" ..." if len(record) > 12 else "") if record else "none"


def name_in(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns the first of ``names`` under which the record has a value other than null; else the first that
    it has at all; else an empty text."""
    filled = next((name for name in names if record.get(name) is not None), "")
    return filled or next((name for name in names if name in record), "")


def require_name(record: Mapping[str, Any], names: Sequence[str], what: str) -> str:
    """Returns a name as ``name_in`` does. If the record has none of ``names``, raises ValueError with the
    keys that it has."""
    if name := name_in(record, names):
        return name
    listed = ", ".join(dict.fromkeys(names))
    raise ValueError(
        f"no {what} among the keys {keys_of(record)}, expected {'one of ' if ',' in listed else ''}{listed}"
    )


def normal_name(field: str) -> str:
    """Returns the name of a column in small letters, words joined by underscores: ``Query-ID`` gives
    ``query_id``."""
    return field.strip().lower().replace("-", "_").replace(" ", "_")
