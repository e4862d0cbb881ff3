"""Checked values of JSON records, and the records of DPR training files."""

from __future__ import annotations

from typing import Any

from dpr.core.records import Passage, TrainingSample
from dpr.formats.json_records import is_finite_number
from dpr.formats.text_input import has_lone_surrogate
from dpr.storage.strict_json import describe

_ID_KEYS = ("passage_id", "id", "psg_id")
TEACHER_KEYS = ("teacher_score", "cross_encoder_score")
"""Where a passage has a teacher's score, the first that is there."""
_LARGEST_SCORE = 3.4e38  # training computes in float32


def sample_from_json(record: dict[str, Any]) -> TrainingSample:
    """The sample in a record. Other keys are ignored. An empty ``positive_ctxs`` is accepted: the caller drops such rows, as DPR does.

    Raises:
        ValueError: what was found and what is expected, with the place inside the record.
    """
    question = checked_text(record, "question")
    if not question.strip():
        raise ValueError("question is empty, expected some text")
    if record.get("positive_ctxs") is None:
        raise ValueError(f"positive_ctxs is {'null' if 'positive_ctxs' in record else 'missing'}, expected a list of passages")
    return TrainingSample(
        question=question,
        positives=_passages(record, "positive_ctxs"),
        hard_negatives=_passages(record, "hard_negative_ctxs"),
        other_negatives=_passages(record, "negative_ctxs"),
        answers=checked_answers(record.get("answers")),
    )


def sample_to_json(sample: TrainingSample) -> dict[str, Any]:
    """The record of a sample. DPR's ``score`` is written as null, since only its presence is known."""
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
    """The passage in an object; ValueError says what was found ``where``, and what is expected."""
    if not isinstance(item, dict):
        raise ValueError(f"{where} is {describe(item)}, expected an object with text and title")
    text = checked_text(item, "text", f"{where}.text")
    if not text.strip():
        raise ValueError(f"{where} has an empty text, expected some text")
    title = "" if item.get("title") is None else checked_text(item, "title", f"{where}.title")
    key = next((key for key in _ID_KEYS if item.get(key) is not None), None)
    name = None if key is None else checked_id(item, key, f"{where}.{key}")
    return Passage(text, title, name, "score" in item, teacher_score_in(item, where))


def teacher_score_in(item: dict[str, Any], where: str, keys: tuple[str, ...] = TEACHER_KEYS) -> float | None:
    """The teacher's score of a passage under the first of ``keys`` that holds more than null; None where there is none."""
    key = next((key for key in keys if item.get(key) is not None), None)
    return None if key is None else checked_score(item[key], f"{where}.{key}")


def checked_score(value: Any, where: str) -> float | None:
    """A teacher's score; None for null. ValueError says what else was found: text, a boolean, NaN, or what float32 cannot hold."""
    if value is None:
        return None
    if not is_finite_number(value) or abs(value) > _LARGEST_SCORE:
        raise ValueError(f"{where} is {describe(value)}, expected a teacher's score: a finite number of 32 bits, or null")
    return float(value)


def checked_text(holder: dict[str, Any], key: str, where: str = "") -> str:
    """The string under ``key``; ValueError says what is there instead."""
    value = holder.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{where or key} is {describe(value) if key in holder else 'missing'}, expected a string")
    if has_lone_surrogate(value):
        raise ValueError(f"{where or key} holds half of a character (a lone surrogate), expected valid Unicode")
    return value


def checked_id(holder: dict[str, Any], key: str, where: str = "") -> str:
    """As ``checked_text``; integers become strings."""
    value = holder.get(key)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else checked_text(holder, key, where)


def checked_answers(value: Any) -> tuple[str, ...]:
    """Answers given as a string or a list of strings and numbers; ValueError says what else was found."""
    answers = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(answers, list):
        raise ValueError(f"answers is {describe(value)}, expected a list of strings")
    for index, answer in enumerate(answers):
        is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and abs(answer) < 10**1000  # neither too long nor inf
        if not is_number and (not isinstance(answer, str) or has_lone_surrogate(answer)):
            raise ValueError(f"answers[{index}] is {describe(answer)}, expected a string")
    return tuple(str(answer) for answer in answers)


def passage_to_json(passage: Passage) -> dict[str, Any]:
    """The object of a passage."""
    record: dict[str, Any] = {"title": passage.title, "text": passage.text}
    if passage.id is not None:
        record["passage_id"] = passage.id
    if passage.has_score:
        record["score"] = None
    if passage.teacher_score is not None:
        record["teacher_score"] = passage.teacher_score
    return record
