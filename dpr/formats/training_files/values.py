"""Checks values of records and makes questions and passages of them; errors name the place inside the
record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpr.core.records import Passage
from dpr.formats.column_names import PASSAGE_IDS, PASSAGE_TEXTS, name_in, require_name
from dpr.formats.json_records import is_finite_number
from dpr.formats.training_files.lookup import Lookup
from dpr.formats.training_records import (
    TEACHER_KEYS,
    checked_score,
    id_of,
    teacher_score_in,
    text_of,
    title_in,
)
from dpr.storage.strict_json import describe

# In Tevatron's lists, and only there, ``score`` is a teacher's.
_SCORE_KEYS = dict.fromkeys(("positive_passages", "negative_passages"), (*TEACHER_KEYS, "score"))


def passages_of(
    value: Any, where: str, corpus: Lookup | None = None, *, title: str = ""
) -> tuple[Passage, ...]:
    """Passages given as a text, an object with a text (and title, id), or a list of these; with ``corpus``,
    ids in place of texts.

    Objects may have a teacher's score. Raises ValueError for anything else.
    """
    if value is None:
        return ()
    keys = _SCORE_KEYS.get(where, TEACHER_KEYS)
    if isinstance(value, list | tuple):
        return tuple(
            _passage(item, f"{where}[{index}]", corpus, title, keys) for index, item in enumerate(value)
        )
    return (_passage(value, where, corpus, title, keys),)


def with_scores(passages: tuple[Passage, ...], value: Any, where: str) -> tuple[Passage, ...]:
    """The passages with a list of a teacher's scores, one for each or null. Raises ValueError for anything
    else."""
    scores = [
        checked_score(score, f"{where}[{index}]")
        for index, score in enumerate(_one_for_each(passages, value, where))
    ]
    return tuple(
        replace(passage, teacher_score=score) for passage, score in zip(passages, scores, strict=True)
    )


def with_ids(passages: tuple[Passage, ...], value: Any, where: str) -> tuple[Passage, ...]:
    """The passages with a list of ids, one for each or null. Raises ValueError for anything else."""
    ids = [
        None if key is None else id_of(key, f"{where}[{index}]")
        for index, key in enumerate(_one_for_each(passages, value, where))
    ]
    return tuple(replace(passage, id=key) for passage, key in zip(passages, ids, strict=True))


def _one_for_each(passages: tuple[Passage, ...], value: Any, where: str) -> list[Any]:
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if len(listed) != len(passages):
        raise ValueError(
            f"{where} has {len(listed)} values for {len(passages)} passages, expected one for each"
        )
    return listed


def number_of(value: Any) -> float | None:
    """A grade, label or score as a finite number, read from text too; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if len(value) <= 40 else None
        except ValueError:
            return None
    return float(value) if isinstance(value, bool) or is_finite_number(value) else None


def split_by_grade(
    passages: tuple[Passage, ...], value: Any, where: str, min_grade: float | None
) -> tuple[tuple[Passage, ...], tuple[Passage, ...]]:
    """Positives and hard negatives among ``passages``, by a label or score for all of them or one for each
    (``ReadOptions.min_grade``).

    Raises:
        ValueError: a value is not a number, or is a fraction although ``min_grade`` is None.
    """
    grades = []
    for item in _one_for_each(
        passages, value if isinstance(value, list | tuple) else [value] * len(passages), where
    ):
        grade = number_of(item)
        if grade is None:
            raise ValueError(
                f"{where} is {describe(item)}, expected a number: 0 for a negative, 1 or more for a positive"
            )
        if min_grade is None and grade != int(grade):
            advice = "dpr prepare FILE min_grade=X out=train.jsonl makes positives of those from X on"
            raise ValueError(
                f"{where} is the score {grade:g}, expected a whole grade, or a bound that says which are"
                f" positives; {advice}"
            )
        grades.append(grade)
    least = 1 if min_grade is None else min_grade
    graded = list(zip(passages, grades, strict=True))
    return tuple(item for item, grade in graded if grade >= least), tuple(
        item for item, grade in graded if grade < least and grade <= 0
    )


def _passage(
    item: Any, where: str, corpus: Lookup | None, title: str, score_keys: tuple[str, ...]
) -> Passage:
    if isinstance(item, dict):
        key = name_in(item, PASSAGE_IDS)
        name = id_of(item[key], f"{where}.{key}") if key and item[key] is not None else None
        score = teacher_score_in(item, where, score_keys)
        if corpus is not None and name is not None and not item.get(name_in(item, PASSAGE_TEXTS)):
            return replace(corpus.passage(name), teacher_score=score)
        text = require_name(item, PASSAGE_TEXTS, f"text of {where}")
        return Passage(
            text_of(item[text], f"{where}.{text}"),
            title_in(item, f"{where}.title"),
            name,
            teacher_score=score,
        )
    if corpus is not None:
        return corpus.passage(id_of(item, where))
    return Passage(text_of(item, where), title)
