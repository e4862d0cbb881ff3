"""Tables: question and passage, with a label or score or without, and MS MARCO's triples (question, positive,
negative); texts or ids.

Consecutive rows with the same question become one sample. A header may name the columns; comma-separated
files need one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.column_names import (
    GRADES,
    NEGATIVES,
    PASSAGE_IDS,
    POSITIVES,
    QUESTION_IDS,
    QUESTIONS,
    are_names,
    named_columns,
    normal_name,
    warn_of_header,
)
from dpr.formats.delimited import table_form, table_rows
from dpr.formats.text_input import open_input
from dpr.formats.training_files.lookup import Lookup, open_lookups
from dpr.formats.training_files.rows import ReadOptions, SourceRow, joined, parsed_row, preparing
from dpr.formats.training_files.values import number_of, split_by_grade, text_of

HEAD_BYTES = 2**16
_ROLES = {
    "question": (*QUESTIONS, *QUESTION_IDS),
    "positive": (*POSITIVES, "text", "answer", *PASSAGE_IDS),
    "negative": NEGATIVES,
}


def read_pairs(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question and passage, or of question, passage and a label or score
    (``ReadOptions.min_grade``)."""
    return joined(_rows(path, options, 2))


def read_triples(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question, positive and negative passage."""
    return joined(_rows(path, options, 3))


def head_of(path: Path) -> str:
    """The beginning of a text file, without a byte order mark."""
    with open_input(path) as stream:
        return stream.peek(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")


def is_table(path: Path) -> bool:
    """Whether a text file holds something else than JSON."""
    return not head_of(path).lstrip().startswith(("{", "["))


def training_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of every row that is not blank, with the line that the row ends on.

    Raises:
        InputError: quotes that can be read in two ways, or what ``iter_lines`` raises.
    """
    return (
        (line, fields)
        for line, fields in table_rows(path, table_form(path))
        if any(field.strip() for field in fields)
    )


def _rows(path: Path, options: ReadOptions, width: int) -> Iterator[SourceRow]:
    queries, corpus = open_lookups(options)
    if (queries is None) != (corpus is None):
        raise ConfigError(
            "rows of ids need both, the questions and the passages: queries=queries.tsv corpus=collection.tsv"
        )
    parse = partial(_sample, width, queries, corpus, options.min_grade)
    roles = dict(islice(_ROLES.items(), width))
    order: dict[str, int] | None = None
    num_columns = 0
    for index, (line, fields) in enumerate(training_rows(path)):
        if not index:
            order = named_columns(fields, roles, {"label": GRADES}, file=path, line=line)
            num_columns = len(fields)
            if order is not None:
                continue
            if normal_name(fields[0]) in QUESTIONS and are_names(fields):
                warn_of_header(path, line, fields)
                continue
        if order is not None and len(fields) == num_columns:
            fields = [fields[place] for place in order.values()]
        yield parsed_row(path, line, parse, fields)


def _sample(
    width: int, queries: Lookup | None, corpus: Lookup | None, min_grade: float | None, fields: list[str]
) -> TrainingSample:
    is_graded = width == 2 and len(fields) == 3 and number_of(fields[2]) is not None
    if len(fields) != width + is_graded:
        raise ValueError(f"{len(fields)} columns, expected {width}, separated by tabs")
    passages = fields[1:width]
    if queries is not None and corpus is not None:
        question, answers = queries.question(fields[0].strip())
        first, *negatives = (corpus.passage(field.strip()) for field in passages)
        question = text_of(question, "the question")
    else:
        question, answers = text_of(fields[0], "the question"), ()
        if width == 3 and number_of(fields[2]) is not None:
            advice = f"{preparing('format=pairs')} reads it as label or score"
            raise ValueError(f"column 3 is the number {fields[2]}, expected a negative passage; {advice}")
        first, *negatives = (
            Passage(text_of(field, f"column {number}")) for number, field in enumerate(passages, 2)
        )
    positives, hard = (
        ((first,), tuple(negatives))
        if not is_graded
        else split_by_grade((first,), fields[2], "column 3", min_grade)
    )
    return TrainingSample(question, positives, hard, answers=answers)
