"""Tab-separated files: question and passage, and MS MARCO's triples (question, positive, negative), as texts or as ids.

Rows that follow each other with the same question become one sample. Nothing is quoted: a tab ends a field, a newline ends a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.text_input import iter_lines
from dpr.formats.training_files.lookup import Lookup, open_lookup
from dpr.formats.training_files.rows import ReadOptions, SourceRow, good_row, joined
from dpr.formats.training_files.values import text_of

_HEADERS = {"question", "query", "anchor"}


def read_pairs(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question and passage."""
    return joined(_rows(path, options, 2))


def read_triples(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Rows of question, positive and negative passage."""
    return joined(_rows(path, options, 3))


def _rows(path: Path, options: ReadOptions, width: int) -> Iterator[SourceRow]:
    queries = open_lookup(options.queries, options.cache_dir) if options.queries else None
    corpus = open_lookup(options.corpus, options.cache_dir) if options.corpus else None
    if (queries is None) != (corpus is None):
        raise ConfigError("rows of ids need both, the questions and the passages: queries=queries.tsv corpus=collection.tsv")
    for line, text in iter_lines(path):
        fields = text.split("\t")
        if not text.strip() or (line == 1 and fields[0].strip().lower() in _HEADERS):
            continue

        def parse(fields: list[str] = fields) -> TrainingSample:
            return _sample(fields, width, queries, corpus)

        yield good_row(path, line, parse, lambda text=text: text)  # type: ignore[misc]


def _sample(fields: list[str], width: int, queries: Lookup | None, corpus: Lookup | None) -> TrainingSample:
    if len(fields) != width:
        raise ValueError(f"{len(fields)} columns, expected {width}, separated by tabs")
    if queries is not None and corpus is not None:
        question, answers = queries.question(fields[0].strip())
        positive, *negatives = (corpus.passage(field.strip()) for field in fields[1:])
        return TrainingSample(text_of(question, "the question"), (positive,), tuple(negatives), answers=answers)
    question = text_of(fields[0], "the question")
    positive, *negatives = (Passage(text_of(field, f"column {number}")) for number, field in enumerate(fields[1:], 2))
    return TrainingSample(question, (positive,), tuple(negatives))
