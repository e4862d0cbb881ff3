"""Training data that are not files: rows in memory, data sets of Hugging Face's ``datasets`` and of its hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.machine import require
from dpr.core.records import rows_of
from dpr.formats.arrow_files import chosen_split
from dpr.storage.durable import writing
from dpr.storage.leftovers import open_own, remove, remove_leftovers_once, temporary_beside

HUB = "hf://"
_EXPECTED = (
    "a path, a pattern, a list of these, a list of dictionaries or of (question, passage), a frame of pandas, a"
    " data set of the package datasets, or hf://user/name"
)


def is_hub_name(data: Any) -> bool:
    """True for a name of a data set of the hub: ``hf://user/name``, or ``hf://user/name/configuration``."""
    return isinstance(data, str) and data.startswith(HUB)


def are_files(data: Any) -> bool:
    """True for a path or pattern, or a list of them."""
    listed = data if isinstance(data, list | tuple) else [data]
    return not is_hub_name(data) and all(isinstance(item, str | Path) for item in listed)


@contextmanager
def rows_file(data: Any, *, split: str, cache: Path) -> Iterator[Path]:
    """Yields a file with the rows of ``data``, a JSON object a line, for the duration of the block.

    Raises:
        InputError: a value of a row has no type of JSON. Errors of the block about a line of the file name
        the row instead.
        ConfigError: ``data`` is of another type, or has several splits and none is chosen.
        OutputError: there is no room for the file.
    """
    rows = _hub_rows(data, split) if is_hub_name(data) else _rows(data, split)
    folder = temporary_beside(cache / "rows")
    file = folder / "rows.jsonl"
    try:
        with writing(folder):
            remove_leftovers_once(cache)
            folder.mkdir(parents=True)
        with writing(file, calls_others=True), open_own(file, "xb") as out:
            for number, row in enumerate(rows, 1):
                out.write(_line(number, row))
        yield file
    except InputError as error:
        if str(error.file) != str(file):
            raise
        where = data if is_hub_name(data) else None
        row = f"the rows given: {error.found}" if error.line is None else f"row {error.line}: {error.found}"
        raise InputError(row, file=where, expected=error.expected, hint=error.hint) from None
    finally:
        remove(folder)


def _rows(data: Any, split: str) -> Iterable[Any]:
    """Returns the rows of a list, or of the split of a data set."""
    if isinstance(data, dict) and data and all(hasattr(part, "column_names") for part in data.values()):
        return _rows(data[chosen_split(list(data), split, Path("the data set"))], "")  # a DatasetDict
    if split:
        raise ConfigError(f"split={split} was given with data that have no splits")
    rows: Iterable[Any] = rows_of(data)
    if isinstance(rows, str | bytes | Path | Mapping) or not isinstance(rows, Iterable):
        raise ConfigError(f"training data of type {type(data).__name__}, expected {_EXPECTED}")
    return rows


def _hub_rows(name: str, split: str) -> Iterable[Any]:
    datasets = require("datasets", extra="dev", purpose=f"reading {name}")
    owner, _, rest = name.removeprefix(HUB).partition("/")
    title, _, configuration = rest.partition("/")
    if not owner or not title:
        raise ConfigError(
            f"{name} is no name of the hub; expected hf://user/name, or hf://user/name/configuration"
        )
    try:
        dataset = datasets.load_dataset(f"{owner}/{title}", configuration or None)
    except Exception as error:  # errors of the network, its client, or the files there
        hint = "is there a network? dpr prepare reads files that were fetched elsewhere"
        raise InputError(f"could not be fetched ({first_line(error)})", file=name, hint=hint) from None
    return _rows(dataset, split)


def _line(number: int, row: Any) -> bytes:
    texts = getattr(row, "texts", row)  # texts of an InputExample
    if isinstance(texts, list | tuple) and len(texts) > 1 and all(isinstance(text, str) for text in texts):
        row = {"question": texts[0], "positive": texts[1], "negative": texts[2:]}
    if not isinstance(row, Mapping):
        expected = "a dictionary, such as {'question': ..., 'positive': ...}, or (question, passage)"
        raise InputError(f"row {number}: of type {type(row).__name__}", expected=expected)
    try:
        # values of numpy and the like have tolist
        return (json.dumps(dict(row), default=lambda value: value.tolist()) + "\n").encode()
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        expected = "texts, numbers, lists, objects"
        raise InputError(f"row {number}: cannot be read ({first_line(error)})", expected=expected) from None
