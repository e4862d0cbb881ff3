"""Relevance judgements of BEIR and TREC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.paths import user_path
from dpr.formats.delimited import named_columns, table_form, table_rows
from dpr.formats.field_names import GRADES, NAMED_PASSAGE_IDS, NAMED_QUESTION_IDS
from dpr.formats.text_output import durable_text, require_word

Qrels = dict[str, dict[str, int]]
Judgement = tuple[str, str, int]
_LARGEST_GRADE = 2**31 - 1  # 32 bits, as in trec_eval
JUDGED = {
    "question": (*NAMED_QUESTION_IDS, "topic", "query", "question"),
    "passage": (*NAMED_PASSAGE_IDS, "doc", "passage", "document"),
    "grade": GRADES,
}


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
                " separated by tabs or spaces, none empty; a header names them in another order",
            )
        elif (grade := grade_of(columns[-1])) is None:
            found = f"the grade {columns[-1]!a} is not an integer"
            yield line, f"{found}; a header names the columns in another order"
        else:
            yield line, (columns[0], columns[-2], grade)


def require_judged(questions: Sequence[str], qrels: Qrels, *, file: str | Path, of: str) -> None:
    """Raises InputError if no judgement is about one of these questions (ids; read from ``of``)."""
    if qrels.keys() & {*questions}:
        return
    raise InputError(
        f"no question of {of} has judgements: a question's id is {next(iter(questions), '')!r}, a judged one's"
        f" {next(iter(qrels))!r}",
        file=file,
        expected="question, passage, grade",
        hint=(
            "a first row such as corpus-id<TAB>query-id<TAB>score names the columns of judgements, one such as"
            " id<TAB>question or datasets.<name>.id_col those of questions; JSON lines keep ids"
        ),
    )


def grade_of(text: str) -> int | None:
    """Returns the grade of a judgement; None if it is not an integer of 32 bits."""
    try:
        number = float(text) if len(text) <= 20 else float("nan")
        return int(number) if number == int(number) and abs(number) <= _LARGEST_GRADE else None
    except (ValueError, OverflowError):
        return None
