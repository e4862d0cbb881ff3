"""All formats of training data, and recognition of a file's format by its content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import TrainingSample
from dpr.formats.arrow_files import column_names, is_arrow
from dpr.formats.delimited import named_columns, table_form
from dpr.formats.question_sets import JUDGED, grade_of
from dpr.formats.record_fields import is_printed_list, number_of
from dpr.formats.record_files import iter_json_records
from dpr.formats.text_output import Note
from dpr.formats.training_files import columns
from dpr.formats.training_files.beir import read_beir, write_beir
from dpr.formats.training_files.columns import write_flag_embedding, write_tevatron
from dpr.formats.training_files.dpr import read_dpr, write_training_set
from dpr.formats.training_files.rows import ReadOptions, SourceRow, preparing
from dpr.formats.training_files.squad import read_squad

READERS: dict[str, Callable[[Path, ReadOptions], Iterator[SourceRow]]] = {
    "dpr": read_dpr,
    "beir": read_beir,
    "tevatron": columns.read_lists,
    "flagembedding": columns.read_lists,
    "squad": read_squad,
    "triples": partial(columns.read_in_order, roles=("question", "positive", "negative")),
    "pairs": partial(columns.read_in_order, roles=("question", "positive")),
    "columns": columns.read,
}
"""Readers by the names of formats."""
WRITERS: dict[str, Callable[[Path, Iterable[TrainingSample], Note], int]] = {
    "dpr": write_training_set,
    "beir": write_beir,
    "tevatron": write_tevatron,
    "flagembedding": write_flag_embedding,
}


def look_at(path: Path) -> tuple[tuple[str, ...], str]:
    """Returns the names of the formats that fit the beginning of a file, or a folder's names; and a
    description of the content, for messages. A file without content fits DPR's."""
    if (path / "qrels").is_dir():
        return ("beir",), "folder"
    if is_arrow(path):
        keys = set(column_names(path))
        return _fitting_records(keys) or ("columns",), _shown_keys(keys)
    if path.is_dir():
        return (), "folder"
    head = columns.head_of(path).lstrip()
    if not head:
        return ("dpr",), ""
    if head[0] not in "{[":
        fields = tuple(table_form(path).first)
        return _fitting_table(fields, path), f"{len(fields)} columns"
    try:
        record = next(iter_json_records(path), None)
    except InputError:
        record = None
    if record is not None and record.error is None:
        keys = set(record.value)
    else:  # one object over many lines, or longer than a line may be: its keys as far as they are in sight
        keys = set(re.findall(r'"(\w+)"\s*:', head))
    if not keys:
        return ("dpr",), ""
    fit = _fitting_records(keys)
    if "data" in keys and "positive_ctxs" not in keys:
        fit = (*(name for name in fit if name != "columns"), "squad")
    return fit, _shown_keys(keys)


def _shown_keys(keys: set[str]) -> str:
    return f"keys {', '.join(sorted(keys)[:12])}"


def _fitting_records(keys: set[str]) -> tuple[str, ...]:
    """Returns the names of the formats that fit; "columns", whose keys have many names, only if no other
    does."""
    names = {
        "dpr": "positive_ctxs" in keys,
        "tevatron": bool(keys & {"positive_passages", "positive_document_ids"}),
        "flagembedding": {"query", "pos"} <= keys,
    }
    fit = tuple(name for name, fits in names.items() if fits)
    return fit or (("columns",) if columns.has_columns(keys) else ())


def _fitting_table(fields: tuple[str, ...], path: Path) -> tuple[str, ...]:
    if columns.has_columns(name.strip().lower() for name in fields):
        return ("columns",)
    if named_columns(fields, JUDGED, {}, path) is not None:
        return ("beir",)
    grade = grade_of(fields[-1])
    # With spaces in a text, or no whole number, these are not the ids and the grade of a judgement.
    is_text = any(" " in field.strip() for field in fields[:2])
    if len(fields) == 3 and number_of(fields[2]) is not None and (is_text or grade is None):
        return ("pairs",)
    names = {
        "beir": len(fields) in (3, 4) and grade is not None,
        "triples": len(fields) == 3 and fields[0].strip().lower() != "id",
        # DPR's questions have their answers in the second column
        "pairs": len(fields) == 2 and not is_printed_list(fields[1]),
    }
    return tuple(name for name, fits in names.items() if fits)


def format_of(path: Path, options: ReadOptions, *, name: str = "") -> str:
    """Returns the name of the format that is given, else of the one that the content shows; DPR's for a file
    without content.

    Raises:
        ConfigError: no format has this name.
        InputError: the content fits none, or more than one.
    """
    if name or options.columns:
        name = name or "columns"
        if name not in READERS:
            raise ConfigError(f"format {name} is not known; choose one of {', '.join(READERS)}")
        return name
    fit, found = look_at(path)
    if len(fit) == 1:
        return fit[0]
    if fit:
        hint = f"say which, e.g. {preparing(f'format={fit[0]}')}"
        raise InputError(f"fits the formats {' and '.join(fit)} ({found})", file=path, hint=hint)
    hint = (
        "for a table, separate columns by tabs, or by commas under a header such as question,passage; else"
        f" name columns: open_training_set(..., columns={{'positive': 'NAME'}}), {preparing('question=... positive=...')}"
    )
    expected = f"one of the formats {', '.join(READERS)} (dpr prepare --help shows them)"
    raise InputError(
        f"not training data of a known format ({found})", file=path, expected=expected, hint=hint
    )


def read_rows(path: Path, options: ReadOptions) -> Iterator[SourceRow]:
    """Yields the rows of a file in the format that ``format_of`` finds."""
    return READERS[format_of(path, options)](path, options)
