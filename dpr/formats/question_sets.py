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
from dpr.formats.corpora import durable_text, first_id, is_json_name, iter_csv_rows, require_word
from dpr.formats.json_records import iter_json_objects
from dpr.formats.text_input import are_column_names, iter_lines, located, warn_of_header
from dpr.formats.training_records import checked_answers, checked_text

Qrels = dict[str, dict[str, int]]
_LARGEST_GRADE = 2**31 - 1  # of 32 bits, as trec_eval holds them
_GRADES = ("score", "grade", "rel", "relevance", "relevancy", "label", "rating", "judgement", "judgment", "qrel")


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

    CSV: answers are a Python list literal; a negative ``answers_col`` or ``id_col`` means there is none. JSON: if the named key is
    missing, BEIR's ``text`` and ``_id`` and NQ-open's ``answer`` are read. The row number (from 0) replaces a missing id.

    Raises:
        InputError: a row is invalid, a question empty, or an id used twice; names the file and line.
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
    """Writes JSON lines (names in .json/.jsonl) or DPR's CSV, with ids as third column unless they are the row numbers."""
    file = Path(path)
    with durable_text(file) as out:
        if is_json_name(file):
            for question in questions:
                record = {"question": question.text, "answers": list(question.answers), "id": question.id}
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
            return
        rows = list(questions)
        plain = all(question.id == str(index) for index, question in enumerate(rows))
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        for question in rows:
            if "\r" in question.text or "\r" in question.id:
                raise InputError(f"question {question.id!r} holds a carriage return", file=file, hint="write .jsonl instead")
            writer.writerow([question.text, repr(list(question.answers)), *([] if plain else [question.id])])


def read_qrels(path: str | Path) -> Qrels:
    """Judgements (question id -> passage id -> grade) in BEIR's three tab-separated columns (header optional) or TREC's four.

    Raises:
        InputError: another number of columns, a grade that is not an integer, two grades for one pair.
    """
    file = Path(path)
    qrels: Qrels = {}
    for line, _, columns in judgement_lines(file):
        with located(file, line):
            question, passage, grade = judgement(columns)
            if qrels.setdefault(question, {}).setdefault(passage, grade) != grade:
                raise ValueError(f"a second, different grade for ({question!r}, {passage!r})")
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
    with durable_text(file) as out:
        if is_beir:
            out.write("query-id\tcorpus-id\tscore\n")
        for question, grades in qrels.items():
            for passage, grade in grades.items():
                for value in (question, passage):
                    require_word(value, file)
                out.write(f"{question}\t{passage}\t{grade}\n" if is_beir else f"{question} 0 {passage} {grade}\n")


def judgement_lines(file: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Line number, text and columns of every judgement in a file; empty lines and a header are left out."""
    lines = ((line, text) for line, text in iter_lines(file) if text.strip())
    for index, (line, text) in enumerate(lines):
        columns = [column.strip() for column in (text.split("\t") if "\t" in text else text.split())]
        if index or len(columns) != 3 or grade_of(columns[-1]) is not None or not are_column_names(columns):
            yield line, text, columns
        elif columns[-1].lower() not in _GRADES:
            warn_of_header(file, line, tuple(columns))


def judgement(columns: list[str]) -> tuple[str, str, int]:
    """Question id, passage id and grade. Raises ValueError for other columns, an empty id, or a grade that is not an integer."""
    if len(columns) not in (3, 4):
        raise ValueError(f"{len(columns)} columns, expected 3 (question, passage, grade) or 4 (question, 0, passage, grade)")
    question, passage, grade = columns[0], columns[-2], grade_of(columns[-1])
    if grade is None:
        raise ValueError(f"the grade {columns[-1]!a} is not an integer")
    if not question or not passage:
        raise ValueError("an empty id")
    return question, passage, grade


def grade_of(text: str) -> int | None:
    """The grade of a judgement; None if it is not an integer of 32 bits."""
    try:
        number = float(text) if len(text) <= 20 else float("nan")
        return int(number) if number == int(number) and abs(number) <= _LARGEST_GRADE else None
    except (ValueError, OverflowError):
        return None


def _csv_questions(path: Path, question_col: int, answers_col: int, id_col: int) -> Iterator[tuple[int, Question]]:
    needed = max(question_col, answers_col, id_col) + 1
    for index, (line, row) in enumerate(iter_csv_rows(path)):
        if len(row) < needed:
            hint = "columns are separated by tabs; answers_col=-1 reads questions without answers"
            raise InputError(f"{len(row)} columns", file=path, line=line, expected=f"at least {needed}", hint=hint)
        with located(path, line):
            answers = checked_answers(_literal(row[answers_col])) if answers_col >= 0 else ()
        yield line, Question(row[question_col], row[id_col] if id_col >= 0 else str(index), answers, line)


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # regex answers such as '\d' are legal literals for which Python warns
            value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        shown = ascii(text[:60]) + ("..." if len(text) > 60 else "")
        raise ValueError(f"the answers {shown} cannot be read, expected a Python list literal such as ['Paris', 'Paris, France']") from None
    return list(value) if isinstance(value, tuple) else value


def _json_questions(path: Path, question_attr: str, answers_attr: str, id_attr: str) -> Iterator[tuple[int, Question]]:
    for index, (line, value) in enumerate(iter_json_objects(path)):
        with located(path, line):
            text = checked_text(value, question_attr if question_attr in value or "text" not in value else "text")
            key = first_id(value, (id_attr, "_id"), default=str(index))
            question = Question(text, key, checked_answers(value.get(answers_attr, value.get("answer"))), line)
        yield line, question
