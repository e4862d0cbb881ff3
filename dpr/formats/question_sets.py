"""Questions for evaluation: DPR's CSV, JSON and JSON lines, BEIR's ``queries.jsonl``, Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.core.records import Question
from dpr.formats.answers import answers_in, checked_answers
from dpr.formats.checked_values import string_of
from dpr.formats.delimited import named_columns, table_form, table_rows, wrong_columns
from dpr.formats.field_names import ANSWERS, QUESTION_IDS, QUESTIONS, name_in, require_name
from dpr.formats.passage_records import first_id
from dpr.formats.record_files import has_records, is_csv_name, read_records
from dpr.formats.text_input import located
from dpr.formats.text_output import write_json_lines

_ASKED = {"questions": (*QUESTIONS, "text")}
_ASKED_WITH = {"ids": QUESTION_IDS, "answers": ANSWERS}
_DEFAULT_COLUMNS = (0, 1, -1)  # columns of question, answers and id, as in DPR


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
    read (``dpr.formats.field_names``, BEIR's ``text``). The row number (from 0) replaces a missing id.

    Raises:
        InputError: a row is invalid, a question empty, or an id used twice; names the file and line.
    """
    file = user_path(path)
    if has_records(file):
        names = (question_attr, answers_attr, id_attr)
        rows = _record_questions(file, names)
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


def _record_questions(path: Path, names: tuple[str, str, str]) -> Iterator[Question]:
    question_attr, answers_attr, id_attr = names
    for index, (line, value) in enumerate(read_records(path)):
        with located(path, line):
            name = require_name(value, (question_attr, *QUESTIONS, "text"), "question")
            text = string_of(value[name], name)
            key = first_id(value, (id_attr, *QUESTION_IDS), default=str(index))
            name = name_in(value, (answers_attr, *ANSWERS))
            answers = checked_answers(value[name] if name else None)
        yield Question(text, key, answers, line)


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
            hint = "a first line that says question, or datasets.<name>.answers_col=-1, reads questions alone"
            raise wrong_columns(path, line, row, form, f"at least {max(columns) + 1}", hint=hint)
        try:
            answers = checked_answers(answers_in(row[answers_col])) if answers_col >= 0 else ()
        except ValueError as error:
            hint = (
                "ids and questions without answers are read with a first row id<TAB>question, or with"
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
