"""Passages in the records of this and other toolkits. Errors name the place inside the record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpr.core.records import Origin, Passage, json_value
from dpr.formats.record_fields import (
    PASSAGE_IDS,
    PASSAGE_TEXTS,
    TITLES,
    checked_id,
    checked_score,
    has_lone_surrogate,
    id_of,
    name_in,
    number_of,
    require_name,
    string_of,
    text_of,
    title_of,
)
from dpr.storage.untrusted import describe

TEACHER_KEYS = ("teacher_score", "cross_encoder_score")
"""Keys of a passage that may hold a teacher's score; the first one present counts."""
_PLAIN = {"_id", "id", "title", "text"}
_DPR_IDS = ("passage_id", *PASSAGE_IDS)
TEVATRON_LISTS = ("positive_passages", "negative_passages")
PassageById = Callable[[str], Passage]
"""Function that returns the passage with an id; raises ValueError if there is none."""
_WEB_ADDRESS = re.compile(r"https?://[^\s/?#\[][^\s]*", re.IGNORECASE)


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
                f"{where} is the score {grade:g}, expected a whole grade; dpr prepare FILE min_grade=X"
                " out=train.jsonl counts scores of at least X as positive"
            )
        if grade >= least:
            positives.append(passage)
        elif grade <= 0:
            negatives.append(passage)
    return tuple(positives), tuple(negatives)


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


def passage_of(record: Any, number: str = "") -> Passage:
    """Returns the passage in a text, a dictionary or a Passage, with the id ``number`` if it has none.

    Raises:
        ValueError: it is none of these, or a value of the dictionary cannot be used.
    """
    if isinstance(record, Passage):
        return replace(record, id=record.id or number, metadata=json_value(record.metadata))
    if isinstance(record, str):
        return Passage(string_of(record, "text"), "", number)
    if not isinstance(record, Mapping):
        raise ValueError(f"{describe(record)}, expected a text, a dictionary with 'text', or a Passage")
    return passage_in(record, PASSAGE_IDS, PASSAGE_TEXTS, number)


def passage_in(
    record: Mapping[str, Any], ids: Sequence[str], texts: Sequence[str], number: str | None = None
) -> Passage:
    """Returns the passage in a record, with its source. ``number`` is the id of one without an id.

    Raises:
        ValueError: there is no usable id or text, or the title is no text.
    """
    key = first_id(record, ids, number)
    name = require_name(record, texts, "text")
    metadata = None if record.keys() <= _PLAIN else fields_of(record)  # the most common record, said at once
    text = string_of(record[name], name)
    return Passage(text, title_in(record), key, origin=origin_of(record), metadata=metadata or None)


def first_id(value: Mapping[str, Any], names: Sequence[str], default: str | None = None) -> str:
    """Returns the id under the first of ``names`` that the record has, as a string; ``default`` if there is
    none or it is null.

    Raises:
        ValueError: there is no usable id.
    """
    name = name_in(value, names)
    if default is not None and (not name or value[name] is None):
        return default
    name = name or require_name(value, names, "id")
    return id_of(value[name], name)


def field_of(record: Mapping[str, Any], name: str) -> Any:
    """Returns a field of a record, or of BEIR's object ``metadata`` in it; None if neither has it."""
    value = record.get(name)
    inner = record.get("metadata")
    return inner.get(name) if value is None and isinstance(inner, Mapping) else value


def fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a passage's record besides id, title and text, including those of BEIR's object
    ``metadata``, each as ``json_value``."""
    read = {name_in(record, names) for names in (PASSAGE_IDS, PASSAGE_TEXTS, TITLES)}
    read |= {"_id", "id", "title", "text", "metadata"}
    found = {name: json_value(value) for name, value in record.items() if name not in read}
    if isinstance(inner := record.get("metadata"), Mapping):
        found |= json_value(inner)
    return found


def origin_of(record: Mapping[str, Any]) -> Origin | None:
    """Returns the source of a passage, from ``file``, ``heading``, ``line`` and ``url`` of its record.
    Returns None if the record names neither file nor address. Values of other types count as absent."""
    if not record.get("metadata") and "file" not in record and "url" not in record:
        return None  # the most common record, said at once

    def text(name: str) -> str:
        value = field_of(record, name)
        return value if isinstance(value, str) and not has_lone_surrogate(value) else ""

    file = text("file")
    url = text("url")
    if not _WEB_ADDRESS.fullmatch(url) or not url.isprintable():
        url = ""
    if not file and not url:
        return None
    line = field_of(record, "line")
    return Origin(file, text("heading"), line if type(line) is int and 0 <= line < 2**63 else None, url)


def origin_record(origin: Origin) -> dict[str, Any]:
    """Returns the object ``metadata`` that ``origin_of`` reads back."""
    record: dict[str, Any] = {}
    if origin.file:
        record = {"file": origin.file, "heading": origin.heading, "line": origin.line}
    if origin.url:
        record["url"] = origin.url
    return record
