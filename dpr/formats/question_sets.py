"""Questions for evaluation (DPR's CSV, JSON and JSON lines, BEIR's ``queries.jsonl``) and relevance judgements (BEIR, TREC)."""

from __future__ import annotations

import ast
import csv
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.records import Question
from dpr.formats.corpora import is_json_name, iter_csv_rows, json_id, write_text
from dpr.formats.json_records import JsonRecord, describe, iter_json_records
from dpr.formats.text_input import has_lone_surrogate, iter_lines

Qrels = dict[str, dict[str, int]]


def read_questions(
    path: str | Path,
    *,
    question_col: int = 0,
    answers_col: int = 1,
    id_col: int = -1,
    question_attr: str = "question",
    answers_attr: str = "answers",
    id_attr: str = "id",
) -> list[Question]:
    """Reads a question set; names in .json/.jsonl are JSON, all others DPR's tab-separated CSV without header.

    CSV: answers are a Python list literal; a negative ``answers_col`` or ``id_col`` says that there is none. JSON: where the named key is
    missing, BEIR's ``text`` and ``_id`` and NQ-open's ``answer`` are taken. Without ids the row number (from 0) stands in.

    Raises:
        InputError: names the file and line; also for an empty question and an id used twice.
    """
    file = Path(path)
    if is_json_name(file):
        rows = _json_questions(file, question_attr, answers_attr, id_attr)
    else:
        rows = _csv_questions(file, question_col, answers_col, id_col)
    questions = []
    lines: dict[str, int] = {}
    for line, question in rows:
        if not question.text.strip():
            raise InputError("empty question", file=file, line=line, expected="some text")
        if lines.setdefault(question.id, line) != line:
            raise InputError(f"question id {question.id!r} is already used at line {lines[question.id]}", file=file, line=line)
        questions.append(question)
    if not questions:
        raise InputError("no rows", file=file, expected="at least one question")
    return questions


def write_questions(path: str | Path, questions: Iterable[Question]) -> None:
    """Writes JSON lines (names in .json/.jsonl) or DPR's CSV. The CSV gets ids as third column where they are not the row numbers."""
    file = Path(path)
    with write_text(file) as out:
        if is_json_name(file):
            for question in questions:
                record = {"question": question.text, "answers": list(question.answers), "id": question.id}
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
            return
        rows = list(questions)
        plain = all(question.id == str(number) for number, question in enumerate(rows))
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        for question in rows:
            if "\r" in question.text or "\r" in question.id:
                raise InputError(f"question {question.id!r} holds a carriage return", file=file, hint="write .jsonl instead")
            writer.writerow([question.text, repr(list(question.answers)), *([] if plain else [question.id])])


def read_qrels(path: str | Path) -> Qrels:
    """Judgements as question id -> passage id -> grade: BEIR's three tab-separated columns (header optional) or TREC's four.

    Raises:
        InputError: another number of columns, a grade that is no integer, two grades for one pair.
    """
    file = Path(path)
    qrels: Qrels = {}
    is_first = True
    for line, text in iter_lines(file):
        columns = text.split("\t") if "\t" in text else text.split()
        if not text.strip():
            continue
        if len(columns) not in (3, 4):
            expected = "3 (question, passage, grade) or 4 (question, 0, passage, grade)"
            raise InputError(f"{len(columns)} columns", file=file, line=line, expected=expected)
        question, passage, grade = columns[0].strip(), columns[-2].strip(), columns[-1].strip()
        value = grade_of(grade)
        if value is None:
            if is_first and len(columns) == 3:
                is_first = False
                continue  # header
            raise InputError(f"the grade {grade!a} is no integer", file=file, line=line)
        is_first = False
        if not question or not passage:
            raise InputError("an empty id", file=file, line=line)
        if qrels.setdefault(question, {}).setdefault(passage, value) != value:
            raise InputError(f"a second, different grade for ({question!r}, {passage!r})", file=file, line=line)
    if not qrels:
        raise InputError("no rows", file=file, expected="at least one judgement")
    return qrels


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Writes BEIR's layout for names in .tsv, else TREC's.

    Raises:
        InputError: an id that is empty or holds white space.
    """
    file = Path(path)
    is_beir = file.name.removesuffix(".gz").endswith(".tsv")
    with write_text(file) as out:
        if is_beir:
            out.write("query-id\tcorpus-id\tscore\n")
        for question, grades in qrels.items():
            for passage, grade in grades.items():
                for value in (question, passage):
                    if not value or value.split() != [value]:
                        raise InputError(f"the id {value!r} is empty or holds white space", file=file)
                out.write(f"{question}\t{passage}\t{grade}\n" if is_beir else f"{question} 0 {passage} {grade}\n")


def grade_of(text: str) -> int | None:
    """The grade of a judgement; None for what is no integer."""
    try:
        number = float(text) if len(text) <= 20 else float("nan")
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _csv_questions(path: Path, question_col: int, answers_col: int, id_col: int) -> Iterator[tuple[int, Question]]:
    needed = max(question_col, answers_col, id_col) + 1
    for number, (line, row) in enumerate(iter_csv_rows(path)):
        if len(row) < needed:
            hint = "columns are separated by tabs; answers_col=-1 reads questions without answers"
            raise InputError(f"{len(row)} columns", file=path, line=line, expected=f"at least {needed}", hint=hint)
        answers = _literal_answers(row[answers_col], path, line) if answers_col >= 0 else ()
        yield line, Question(row[question_col], row[id_col] if id_col >= 0 else str(number), answers)


def _literal_answers(text: str, path: Path, line: int) -> tuple[str, ...]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # regex answers such as '\d' are legal literals that Python warns of
            value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        shown = ascii(text[:60]) + ("..." if len(text) > 60 else "")
        expected = "a Python list literal such as ['Paris', 'Paris, France']"
        raise InputError(f"the answers {shown} cannot be read", file=path, line=line, expected=expected) from None
    return _answers(list(value) if isinstance(value, tuple) else value, path, line)


def _answers(value: Any, path: Path, line: int) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InputError("the answers are not a list", file=path, line=line, expected="a list of strings")
    for answer in value:
        is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and abs(answer) < 10**300
        if not is_number and (not isinstance(answer, str) or has_lone_surrogate(answer)):
            raise InputError(f"an answer is of type {type(answer).__name__}", file=path, line=line, expected="a string or a number")
    return tuple(str(answer) for answer in value)


def _json_questions(path: Path, question_attr: str, answers_attr: str, id_attr: str) -> Iterator[tuple[int, Question]]:
    for number, record in enumerate(iter_json_records(path)):
        if record.error is not None:
            raise record.error
        value = record.value
        keys = tuple(key for key in (id_attr, "_id") if key in value)
        yield (
            record.line,
            Question(
                _question_text(record, path, question_attr),
                json_id(record, path, keys) if keys and value[keys[0]] is not None else str(number),
                _answers(value.get(answers_attr, value.get("answer")), path, record.line),
            ),
        )


def _question_text(record: JsonRecord, path: Path, question_attr: str) -> str:
    text = record.value.get(question_attr, record.value.get("text"))
    if not isinstance(text, str) or has_lone_surrogate(text):
        found = f"no {question_attr!r}" if text is None else f"{question_attr} is {describe(text)}"
        raise InputError(found, file=path, line=record.line, expected="a string")
    return text
