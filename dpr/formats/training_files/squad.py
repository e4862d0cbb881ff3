"""SQuAD's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.record_fields import checked_answers, text_of, title_of
from dpr.formats.record_files import read_json_object
from dpr.formats.text_input import located
from dpr.formats.training_files.rows import ReadOptions, SourceRow
from dpr.storage.untrusted import describe


def read_squad(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields the rows of SQuAD's JSON (also SQuADShifts and others of its form): one per question, article by
    article. Passages get the title of their article.

    A question without answer in its paragraph (SQuAD 2.0) has no positive. A bad row ends its article. The
    error names its place in the object, since most such files are a single line. The whole file is held in
    memory.
    """
    articles = read_json_object(path).get("data")
    if not isinstance(articles, list):
        raise InputError("no list 'data' in the object", file=path)
    for index, article in enumerate(articles):
        try:
            with located(path, 1):
                for sample in _squad_samples(article, f"data[{index}]"):
                    yield SourceRow(path, 1, sample)
        except InputError as problem:
            yield SourceRow(path, 1, None, problem)


def _squad_samples(article: Any, where: str) -> Iterator[TrainingSample]:
    if not isinstance(article, dict):
        raise ValueError(f"{where} is {describe(article)}, expected an object")
    # File names of Wikipedia pages have underscores for spaces.
    title = title_of(article.get("title"), f"{where}.title").replace("_", " ")
    for inside, paragraph in _objects(article.get("paragraphs"), f"{where}.paragraphs"):
        passage = Passage(text_of(paragraph.get("context"), f"{inside}.context"), title)
        for place, entry in _objects(paragraph.get("qas"), f"{inside}.qas"):
            question = text_of(entry.get("question"), f"{place}.question")
            listed = _objects(entry.get("answers") or [], f"{place}.answers")
            texts = dict.fromkeys(str(answer.get("text", "")) for _, answer in listed)
            answers = checked_answers([text for text in texts if text])
            if entry.get("is_impossible") is True:
                yield TrainingSample(question, ())
            else:
                yield TrainingSample(question, (passage,), answers=answers)


def _objects(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the objects of a list, each with its place."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{where} is {describe(value)}, expected a list of objects")
    return [(f"{where}[{number}]", item) for number, item in enumerate(value)]
