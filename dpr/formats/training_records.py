"""Checked values of records (texts, ids, answers, passages, scores) and the records of DPR training files.
Errors name the place inside the record."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dpr.core.records import Passage, TrainingSample
from dpr.formats.delimited import PASSAGE_IDS, PASSAGE_TEXTS, TITLES, keys_of, name_in, require_name
from dpr.formats.json_records import is_finite_number
from dpr.formats.text_input import has_lone_surrogate
from dpr.storage.untrusted import describe

TEACHER_KEYS = ("teacher_score", "cross_encoder_score")
"""Keys of a passage that may hold a teacher's score; the first one present counts."""
_DPR_IDS = ("passage_id", *PASSAGE_IDS)
TEVATRON_LISTS = ("positive_passages", "negative_passages")
_LARGEST_SCORE = 3.4e38  # training computes in float32
_PRINTED_LIST = re.compile(r"""\s*(\[\s*(['"\]]|np\.str_\()|(np\.|numpy\.)?array\(|\{\s*['"]text['"]\s*:)""")
_SIDE_BY_SIDE = re.compile(r"""['"]\s*['"]""")


PassageById = Callable[[str], Passage]
"""Function that returns the passage with an id; raises ValueError if there is none."""


def sample_from_json(record: dict[str, Any]) -> TrainingSample:
    """Returns the sample in a record. Other keys are ignored. An empty ``positive_ctxs`` is accepted; the
    caller drops such rows, as DPR does.

    Raises:
        ValueError: states what was found, what is expected, and the place inside the record.
    """
    for key, expected in (("question", "a string"), ("positive_ctxs", "a list of passages")):
        if record.get(key) is None:
            found = "null" if key in record else "missing"
            raise ValueError(f"{key} is {found}, expected {expected}; the keys are {keys_of(record)}")
    return TrainingSample(
        question=text_of(record["question"], "question"),
        positives=_passages(record, "positive_ctxs"),
        hard_negatives=_passages(record, "hard_negative_ctxs"),
        other_negatives=_passages(record, "negative_ctxs"),
        answers=checked_answers(record.get("answers")),
    )


def sample_to_json(sample: TrainingSample) -> dict[str, Any]:
    """Returns the record of a sample. DPR's ``score`` is written as null, since only its presence is
    known."""
    return {
        "question": sample.question,
        "answers": list(sample.answers),
        "positive_ctxs": [passage_to_json(passage) for passage in sample.positives],
        "negative_ctxs": [passage_to_json(passage) for passage in sample.other_negatives],
        "hard_negative_ctxs": [passage_to_json(passage) for passage in sample.hard_negatives],
    }


def _passages(record: dict[str, Any], key: str) -> tuple[Passage, ...]:
    listed = record.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise ValueError(f"{key} is {describe(listed)}, expected a list of passages")
    return tuple(passage_from_json(item, f"{key}[{index}]") for index, item in enumerate(listed))


def passage_from_json(item: Any, where: str) -> Passage:
    """Returns the passage in an object of DPR's. The ValueError of a wrong one says what was found ``where``,
    and what is expected."""
    if not isinstance(item, dict):
        raise ValueError(f"{where} is {describe(item)}, expected an object with text and title")
    return _passage(item, where, id_names=_DPR_IDS, has_score="score" in item)


def passages_of(
    value: Any, where: str, find: PassageById | None = None, *, title: str = ""
) -> tuple[Passage, ...]:
    """Returns passages given as a text, an object with a text (and title, id), or a list of these; with
    ``find``, ids may take the place of texts.

    Objects may have a teacher's score. Raises ValueError for anything else.
    """
    if value is None:
        return ()
    listed = isinstance(value, list | tuple)
    passages = []
    # In Tevatron's lists, and only there, ``score`` is a teacher's.
    score_names = (*TEACHER_KEYS, "score") if where in TEVATRON_LISTS else TEACHER_KEYS
    for index, item in enumerate(value if listed else [value]):
        place = f"{where}[{index}]" if listed else where
        if isinstance(item, dict):
            passages.append(_passage(item, place, find, score_names=score_names))
        elif find is not None:
            passages.append(find(id_of(item, place)))
        else:
            passages.append(Passage(text_of(item, place), title))
    return tuple(passages)


def _passage(
    item: dict[str, Any],
    where: str,
    find: PassageById | None = None,
    *,
    id_names: tuple[str, ...] = PASSAGE_IDS,
    score_names: tuple[str, ...] = TEACHER_KEYS,
    has_score: bool = False,
) -> Passage:
    key = name_in(item, id_names)
    name = checked_id(item[key], f"{where}.{key}") if key and item[key] is not None else None
    score_name = name_in(item, score_names)
    score = checked_score(item[score_name], f"{where}.{score_name}") if score_name else None
    if find is not None and name is not None and not item.get(name_in(item, PASSAGE_TEXTS)):
        return replace(find(name), teacher_score=score)
    text_name = require_name(item, PASSAGE_TEXTS, f"text of {where}")
    text = text_of(item[text_name], f"{where}.{text_name}")
    return Passage(text, title_in(item, f"{where}.title"), name, has_score, score)


def title_in(holder: Mapping[str, Any], where: str = "") -> str:
    """Returns the title of a passage under any of its known names; empty if there is none."""
    name = name_in(holder, TITLES)
    return title_of(holder.get(name), where or name)


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


def with_scores(passages: tuple[Passage, ...], value: Any, where: str) -> tuple[Passage, ...]:
    """Returns the passages with a list of a teacher's scores, one for each passage or null. Raises ValueError
    for anything else."""
    scores = _one_for_each(passages, value, where)
    return tuple(
        replace(passage, teacher_score=checked_score(scores[index], f"{where}[{index}]"))
        for index, passage in enumerate(passages)
    )


def _one_for_each(passages: tuple[Passage, ...], value: Any, where: str) -> list[Any]:
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if len(listed) != len(passages):
        raise ValueError(
            f"{where} has {len(listed)} values for {len(passages)} passages, expected one for each"
        )
    return listed


def number_of(value: Any) -> float | None:
    """Returns a grade, label or score as a finite number, read from text, too; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if len(value) <= 40 else None
        except ValueError:
            return None
    return float(value) if isinstance(value, bool) or is_finite_number(value) else None


def split_by_grade(
    passages: tuple[Passage, ...], value: Any, where: str, min_grade: float | None
) -> tuple[tuple[Passage, ...], tuple[Passage, ...]]:
    """Splits ``passages`` into positives and hard negatives, by a label or score for all of them or one for
    each (``ReadOptions.min_grade``).

    Raises:
        ValueError: a value is not a number, or is a fraction although ``min_grade`` is None.
    """
    least = 1 if min_grade is None else min_grade
    positives = []
    negatives = []
    listed = value if isinstance(value, list | tuple) else [value] * len(passages)
    for passage, item in zip(passages, _one_for_each(passages, listed, where), strict=True):
        grade = number_of(item)
        if grade is None:
            raise ValueError(
                f"{where} is {describe(item)}, expected a number: 0 for a negative, 1 or more for a positive"
            )
        if min_grade is None and grade != int(grade):
            raise ValueError(
                f"{where} is the score {grade:g}, expected a whole grade, or a bound that says which are"
                " positives; dpr prepare FILE min_grade=X out=train.jsonl makes positives of those from X on"
            )
        if grade >= least:
            positives.append(passage)
        elif grade <= 0:
            negatives.append(passage)
    return tuple(positives), tuple(negatives)


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


def passage_to_json(passage: Passage) -> dict[str, Any]:
    """Returns the object of a passage."""
    record: dict[str, Any] = {"title": passage.title, "text": passage.text}
    if passage.id is not None:
        record["passage_id"] = passage.id
    if passage.has_score:
        record["score"] = None
    if passage.teacher_score is not None:
        record["teacher_score"] = passage.teacher_score
    return record
