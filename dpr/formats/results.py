"""Retrieval results: DPR's JSON (the input of readers) and TREC run files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.corpora import write_text
from dpr.formats.json_records import JsonRecord, describe, indented_record, iter_json_records
from dpr.formats.text_input import has_lone_surrogate, iter_lines


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage; title and text are empty where results were written without. ``has_answer`` is None where it was not judged."""

    id: str
    title: str
    text: str
    score: float
    has_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class RetrievedQuestion:
    """A question with its hits, best first."""

    question: str
    id: str
    answers: tuple[str, ...]
    hits: list[Hit]


def write_results(path: str | Path, results: Iterable[RetrievedQuestion], *, with_texts: bool = True) -> None:
    """Writes DPR's results JSON: an array, indented by 4, scores as strings, and its checksum. Packed where the name ends in ``.gz``.

    Without texts a hit has neither ``title`` nor ``text``, which takes about a tenth of the space.
    """
    with write_text(Path(path), note={}) as out:
        separator = "["
        for result in results:
            out.write(separator + indented_record(_to_json(result, with_texts)))
            separator = ","
        out.write("[]\n" if separator == "[" else "\n]\n")


def read_results(path: str | Path) -> list[RetrievedQuestion]:
    """Reads a results JSON of this toolkit or of DPR (which has no question ids: the position stands in).

    Raises:
        InputError: names the file and the line where the record starts.
    """
    return list(iter_results(path))


def iter_results(path: str | Path) -> Iterator[RetrievedQuestion]:
    """As ``read_results``, one question at a time."""
    file = Path(path)
    for number, record in enumerate(iter_json_records(file)):
        yield _from_json(record, file, number)


def write_trec_run(path: str | Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "dpr") -> None:
    """Writes ``question Q0 passage rank score tag`` lines, ranks from 1, in the order given, and the file's checksum.

    Raises:
        InputError: an id that is empty or holds white space, which the format cannot carry.
    """
    file = Path(path)
    with write_text(file, note={}) as out:
        for question, hits in run.items():
            for rank, (passage, score) in enumerate(hits, 1):
                for name, value in (("question id", question), ("passage id", passage), ("tag", tag)):
                    if not value or value.split() != [value]:
                        raise InputError(f"the {name} {value!r} is empty or holds white space; a TREC run cannot carry it", file=file)
                out.write(f"{question} Q0 {passage} {rank} {float(score)!r} {tag}\n")


def read_trec_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """Hits of each question, best first: by score, equal scores by passage id. The rank column is not used.

    Raises:
        InputError: a line without six columns, a score that is no number, a passage listed twice for one question.
    """
    file = Path(path)
    run: dict[str, dict[str, float]] = {}
    for line, text in iter_lines(file):
        columns = text.split()
        if not columns:
            continue
        if len(columns) != 6:
            expected = "6: question, Q0, passage, rank, score, tag"
            raise InputError(f"{len(columns)} columns", file=file, line=line, expected=expected)
        question, _, passage, _, score, _ = columns
        hits = run.setdefault(question, {})
        if passage in hits:
            raise InputError(f"passage {passage!r} is listed twice for question {question!r}", file=file, line=line)
        hits[passage] = _number(score, file, line)
    return {question: sorted(hits.items(), key=lambda hit: (-hit[1], hit[0])) for question, hits in run.items()}


def _to_json(result: RetrievedQuestion, with_texts: bool) -> dict[str, Any]:
    hits = [
        {
            "id": hit.id,
            **({"title": hit.title, "text": hit.text} if with_texts else {}),
            "score": repr(float(hit.score)),
            "has_answer": hit.has_answer,
        }
        for hit in result.hits
    ]
    return {"question": result.question, "id": result.id, "answers": list(result.answers), "ctxs": hits}


def _from_json(record: JsonRecord, file: Path, number: int) -> RetrievedQuestion:
    if record.error is not None:
        raise record.error
    value, line = record.value, record.line
    answers, contexts = value.get("answers") or [], value.get("ctxs")
    if not isinstance(answers, list) or not isinstance(contexts, list):
        raise InputError("answers and ctxs are not both lists", file=file, line=line, expected="a DPR results record")
    question_id = value.get("id", number)
    return RetrievedQuestion(
        question=_string(value, "question", file, line),
        id=str(question_id) if isinstance(question_id, int) else _string(value, "id", file, line),
        answers=tuple(_string({"answers[]": answer}, "answers[]", file, line) for answer in answers),
        hits=[_hit(context, file, line) for context in contexts],
    )


def _hit(context: Any, file: Path, line: int) -> Hit:
    if not isinstance(context, dict):
        raise InputError(f"an entry of ctxs is {describe(context)}", file=file, line=line, expected="an object")
    has_answer = context.get("has_answer")
    if has_answer is not None and not isinstance(has_answer, bool):
        raise InputError(f"has_answer is {describe(has_answer)}", file=file, line=line, expected="true, false or null")
    key = context.get("id")
    return Hit(
        id=str(key) if isinstance(key, int) else _string(context, "id", file, line),
        title="" if context.get("title") is None else _string(context, "title", file, line),
        text="" if "text" not in context else _string(context, "text", file, line),
        score=_number(context.get("score"), file, line),
        has_answer=has_answer,
    )


def _string(value: dict[str, Any], key: str, file: Path, line: int) -> str:
    found = value.get(key)
    if not isinstance(found, str) or has_lone_surrogate(found):
        raise InputError(f"{key} is {describe(found)}", file=file, line=line, expected="a string")
    return found


def _number(value: Any, file: Path, line: int) -> float:
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise InputError(f"the score is {describe(value)}", file=file, line=line, expected="a number")
    return number
