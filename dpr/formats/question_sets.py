"""Question sets: questions for evaluation (DPR's CSV, JSON and JSON lines, BEIR's ``queries.jsonl``, Parquet),
and the relevance judgements of their passages (BEIR, TREC)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import Question
from dpr.formats.delimited import named_columns, table_form, table_rows, wrong_columns
from dpr.formats.given_records import made_from, values_by_id
from dpr.formats.passage_records import first_id
from dpr.formats.record_fields import (
    ANSWERS,
    GRADES,
    NAMED_PASSAGE_IDS,
    NAMED_QUESTION_IDS,
    QUESTION_IDS,
    QUESTIONS,
    answers_in,
    checked_answers,
    name_in,
    normal_name,
    require_name,
    string_of,
)
from dpr.formats.record_files import has_records, is_csv_name, read_records
from dpr.formats.text_input import located
from dpr.formats.text_output import durable_text, require_word, write_json_lines
from dpr.storage.untrusted import describe

_ASKED = {"questions": (*QUESTIONS, "text")}
_ASKED_WITH = {"ids": QUESTION_IDS, "answers": ANSWERS}
_DEFAULT_COLUMNS = (0, 1, -1)  # columns of question, answers and id, as in DPR
Qrels = dict[str, dict[str, int]]
Judgement = tuple[str, str, int]
_LARGEST_GRADE = 2**31 - 1  # 32 bits, as in trec_eval
JUDGED = {
    "question": (*NAMED_QUESTION_IDS, "topic", "query", "question"),
    "passage": (*NAMED_PASSAGE_IDS, "doc", "passage", "document"),
    "grade": GRADES,
}


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
    """Reads a question set; names in .json/.jsonl and .parquet hold records, all others are DPR's
    tab-separated CSV.

    CSV: answers are a Python list literal; a negative ``answers_col`` or ``id_col`` means there is none. A
    first row with known names (id, qid; question, query; answers) is a header, and sets the columns unless
    others than the default are given. Records: if the named key is missing, other tools' names for it are
    read (``dpr.formats.record_fields``, BEIR's ``text``). The row number (from 0) replaces a missing id.

    Raises:
        InputError: a row is invalid, a question empty, or an id used twice; names the file and line.
    """
    file = user_path(path)
    if has_records(file):
        rows = _record_questions(file, question_attr, answers_attr, id_attr)
    else:
        rows = _csv_questions(file, (question_col, answers_col, id_col))
    questions = []
    lines: dict[str, int] = {}
    for question in rows:
        line = question.line
        if not question.text.strip():
            raise InputError("empty question", file=file, line=line, expected="some text")
        if (first := lines.setdefault(question.id, line)) != line:
            raise InputError(
                f"question id {question.id!r} is already used at line {first}", file=file, line=line
            )
        questions.append(question)
    if not questions:
        raise InputError("no rows", file=file, expected="at least one question")
    return questions


def _record_questions(path: Path, question_attr: str, answers_attr: str, id_attr: str) -> Iterator[Question]:
    for index, (line, value) in enumerate(read_records(path)):
        with located(path, line):
            question = question_of(value, str(index), question_attr, answers_attr, id_attr)
        yield replace(question, line=line)


def question_of(
    record: Any,
    number: str,
    question_attr: str = "question",
    answers_attr: str = "answers",
    id_attr: str = "id",
) -> Question:
    """Returns the question in a text, a dictionary or a Question, with the id ``number`` if it has none.

    Raises:
        ValueError: it is none of these, or a value of the dictionary cannot be used.
    """
    if isinstance(record, Question):
        return record
    value = {"text": record} if isinstance(record, str) else record
    if not isinstance(value, Mapping):
        raise ValueError(f"{describe(record)}, expected a text, a dictionary with 'text', or a Question")
    name = require_name(value, (question_attr, *QUESTIONS, "text"), "question")
    text = string_of(value[name], name)
    key = first_id(value, (id_attr, *QUESTION_IDS), default=number)
    name = name_in(value, (answers_attr, *ANSWERS))
    return Question(text, key, checked_answers(value[name] if name else None))


def given_questions(given: Any) -> list[Question]:
    """Returns the questions of a file, of a dictionary (texts or records by id), or of a list or table.

    Raises:
        InputError: a question cannot be used, or an id occurs twice.
    """
    if isinstance(given, str | Path):
        return read_questions(given)
    return list(made_from(given, "question", question_of))


def _csv_questions(path: Path, columns: tuple[int, int, int]) -> Iterator[Question]:
    is_default = columns == _DEFAULT_COLUMNS
    form = table_form(path, commas=is_csv_name(path) and max(columns) > 0)
    header = None
    named = named_columns(form.first, _ASKED, _ASKED_WITH, path)
    if named is not None and (is_default or named["questions"] == columns[0]):
        header = form.first
        if is_default:
            columns = named["questions"], named.get("answers", -1), named.get("ids", -1)
    question_col, answers_col, id_col = columns
    rows = (item for item in table_rows(path, form) if item[1] != header)
    for index, (line, row) in enumerate(rows):
        if len(row) <= max(columns):
            hint = "questions without answers need the first line question, or datasets.<name>.answers_col=-1"
            raise wrong_columns(path, line, row, form, f"at least {max(columns) + 1}", hint=hint)
        try:
            answers = checked_answers(answers_in(row[answers_col])) if answers_col >= 0 else ()
        except ValueError as error:
            hint = (
                "ids and questions without answers need the first row id<TAB>question, or"
                " datasets.<name>.id_col=0 question_col=1 answers_col=-1"
            )
            raise InputError(str(error), file=path, line=line, hint=hint) from None
        yield Question(row[question_col], row[id_col] if id_col >= 0 else str(index), answers, line)


def write_questions(path: str | Path, questions: Iterable[Question]) -> None:
    """Writes questions as JSON lines."""
    write_json_lines(
        user_path(path),
        (
            {"question": question.text, "answers": list(question.answers), "id": question.id}
            for question in questions
        ),
    )


def read_qrels(path: str | Path) -> Qrels:
    """Returns judgements (question id -> passage id -> grade) from BEIR's three columns or TREC's four, or in
    the order that a header names.

    Raises:
        InputError: another number of columns, a grade that is not an integer, two grades for one pair.
    """
    file = user_path(path)
    qrels: Qrels = {}
    for line, found in judgement_rows(file):
        if isinstance(found, str):
            raise InputError(found, file=file, line=line)
        question, passage, grade = found
        if qrels.setdefault(question, {}).setdefault(passage, grade) != grade:
            raise InputError(
                f"a second, different grade for ({question!r}, {passage!r})", file=file, line=line
            )
    if not qrels:
        raise InputError("no rows", file=file, expected="at least one judgement")
    return qrels


def given_qrels(given: Any) -> Qrels:
    """Returns the judgements of a file; of a dictionary from question ids to ids of relevant passages, or to
    grades by passage id; or of a list or table of questions, passages and maybe grades.

    Raises:
        InputError: a judgement cannot be used.
    """
    if isinstance(given, str | Path):
        return read_qrels(given)
    found = values_by_id(given)
    qrels: Qrels = {}
    for row in _graded(found) if isinstance(found, Mapping) else found:
        values = [row] if isinstance(row, str | int | None) else row
        if isinstance(row, Mapping):
            named = {normal_name(str(name)): value for name, value in row.items()}
            values = [named.get(name_in(named, names), 1) for names in JUDGED.values()]
        number = None
        if len(values) > 1:
            question, *_, passage, grade = values if len(values) > 2 else (*values, 1)
            number = grade_of(str(grade))
        if number is None:
            expected = "question, passage and an integer grade"
            raise InputError(f"the judgement {' '.join(repr(row).split()):.100}", expected=expected)
        qrels.setdefault(str(question), {})[str(passage)] = number
    return qrels


def _graded(by_question: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for question, relevant in by_question.items():
        listed = [relevant] if isinstance(relevant, str | int) else relevant
        grades = listed if isinstance(listed, Mapping) else dict.fromkeys(listed, 1)
        for passage, grade in grades.items():
            yield question, passage, grade


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Writes BEIR's layout for names in .tsv, else TREC's.

    Raises:
        InputError: an id that is empty or holds white space.
    """
    file = user_path(path)
    is_beir = file.name.removesuffix(".gz").endswith(".tsv")
    with durable_text(file) as out:
        if is_beir:
            out.write("query-id\tcorpus-id\tscore\n")
        for question, grades in qrels.items():
            for passage, grade in grades.items():
                for value in (question, passage):
                    require_word(value, file)
                out.write(
                    f"{question}\t{passage}\t{grade}\n" if is_beir else f"{question} 0 {passage} {grade}\n"
                )


def judgement_rows(file: Path) -> Iterator[tuple[int, Judgement | str]]:
    """Yields the line and either question id, passage id and grade of every judgement in a file, or a
    description of the error. Empty lines and a header of known names are left out; the header sets the order
    of the columns."""
    order: dict[str, int] | None = None
    width = 0
    for line, row in table_rows(file, table_form(file)):
        columns = [column.strip() for column in (row if len(row) > 1 else row[0].split())]
        if not any(columns):
            continue
        if not width:
            width = len(columns)
            order = named_columns(columns, JUDGED, {}, file)
            if order is not None:
                continue
        count = len(columns)
        if order is not None:
            columns = [columns[place] for place in order.values()] if count == width else []
        if len(columns) not in (3, 4) or not columns[0] or not columns[-2]:
            yield (
                line,
                f"{count} columns, expected 3 (question, passage, grade) or 4 (question, 0, passage, grade),"
                " separated by tabs or spaces, none empty; a header can name another order",
            )
        elif (grade := grade_of(columns[-1])) is None:
            found = f"the grade {columns[-1]!a} is not an integer"
            yield line, f"{found}; a header names the columns if their order differs"
        else:
            yield line, (columns[0], columns[-2], grade)


def require_judged(questions: Sequence[str], qrels: Qrels, *, file: str | Path, of: str) -> None:
    """Raises InputError if no judgement is about one of these questions (ids; read from ``of``)."""
    if qrels.keys() & {*questions}:
        return
    raise InputError(
        f"no question of {of} has judgements: one of its ids is {next(iter(questions), '')!r}, one of the"
        f" judgements' is {next(iter(qrels))!r}",
        file=file,
        expected="question, passage, grade",
        hint=(
            "name the columns: those of judgements in a first row such as corpus-id<TAB>query-id<TAB>score,"
            " those of questions in one such as id<TAB>question, or by datasets.<name>.id_col; JSON lines keep ids"
        ),
    )


def grade_of(text: str) -> int | None:
    """Returns the grade of a judgement; None if it is not an integer of 32 bits."""
    try:
        number = float(text) if len(text) <= 20 else float("nan")
        return int(number) if number == int(number) and abs(number) <= _LARGEST_GRADE else None
    except (ValueError, OverflowError):
        return None
