"""SQuAD's JSON (also SQuADShifts and others of its form): every paragraph is a passage, its article's title the title."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.json_records import describe, iter_member_records
from dpr.formats.training_files.rows import ReadOptions, SourceRow, parsed_row
from dpr.formats.training_files.values import text_of, title_of
from dpr.formats.training_records import checked_answers


def read(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """One row per question, article by article. A question without answer in its paragraph (SQuAD 2.0) has no positive.

    Bad rows are named by the line of their article and the place inside it, since most such files are a single line.
    """
    for number, record in enumerate(iter_member_records(path, "data")):
        if record.error is not None:
            yield SourceRow(path, record.line, None, record.error, record.sha256())
        else:
            yield from _article(path, record.line, record.value, f"data[{number}]")


def _article(path: Path, line: int, article: dict[str, Any], where: str) -> Iterator[SourceRow]:
    title = article.get("title")
    # File names of Wikipedia pages have underscores for spaces.
    title = title.replace("_", " ") if isinstance(title, str) else title
    for number, paragraph in enumerate(_objects(article.get("paragraphs"))):
        inside = f"{where}.paragraphs[{number}]"
        if paragraph is None or not isinstance(paragraph.get("qas"), list):
            found = InputError(f"{inside} is not a paragraph", file=path, line=line, expected="an object with context and a list qas")
            yield SourceRow(path, line, None, found)
            continue
        for place, entry in enumerate(_objects(paragraph["qas"])):
            yield parsed_row(path, line, partial(_sample, paragraph, title, inside, place), entry)


def _sample(paragraph: dict[str, Any], title: Any, inside: str, place: int, entry: dict[str, Any] | None) -> TrainingSample:
    where = f"{inside}.qas[{place}]"
    if entry is None:
        raise ValueError(f"{where} is not an object, expected a question with its answers")
    question = text_of(entry.get("question"), f"{where}.question")
    passage = Passage(text_of(paragraph.get("context"), f"{inside}.context"), title_of(title, "title"))
    if entry.get("is_impossible") is True:
        return TrainingSample(question, ())
    listed = entry.get("answers") or []
    if not isinstance(listed, list) or any(not isinstance(answer, dict) for answer in listed):
        raise ValueError(f"{where}.answers is {describe(listed)}, expected a list of objects with text")
    answers = checked_answers(list(dict.fromkeys(str(answer.get("text", "")) for answer in listed)))
    return TrainingSample(question, (passage,), answers=tuple(answer for answer in answers if answer))


def _objects(listed: Any) -> list[dict[str, Any] | None]:
    """The items of a list, None in place of what is not an object; a single None if it is not a list."""
    return [item if isinstance(item, dict) else None for item in (listed if isinstance(listed, list) else [None])]
