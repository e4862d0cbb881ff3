"""Training data that are no files of the user's: rows in memory, data sets of Hugging Face's ``datasets``,
and those of its hub.

The rows are written to the cache as JSON lines for as long as they are read, so that every layout that a file
may have is read by the same code, and the identity of the data is their content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError, OutputError, first_line
from dpr.core.machine import require
from dpr.formats.training_files.rows import chosen_split
from dpr.storage.durable import writing
from dpr.storage.leftovers import open_own, remove, remove_leftovers_once, temporary_beside

HUB = "hf://"
_EXPECTED = (
    "a path, a pattern, a list of these, a list of dictionaries, a data set of the package datasets, or"
    " hf://user/name"
)


def is_hub_name(data: Any) -> bool:
    """Whether this names a data set of the hub: ``hf://user/name``, or ``hf://user/name/configuration``."""
    return isinstance(data, str) and data.startswith(HUB)


def are_files(data: Any) -> bool:
    """Whether this is a path or pattern, or a list of them."""
    listed = data if isinstance(data, list | tuple) else [data]
    return not is_hub_name(data) and all(isinstance(item, str | Path) for item in listed)


@contextmanager
def rows_file(data: Any, *, split: str, cache: Path) -> Iterator[Path]:
    """A file with the rows of ``data``, a JSON object a line, for as long as the block lasts.

    Raises:
        InputError: a value of a row is none of JSON's; and what the block raises about a line of the file,
        which then names the row.
        ConfigError: ``data`` is of another type, or has several splits and none is chosen.
        OutputError: there is no room for the file.
    """
    rows = _hub_rows(data, split) if is_hub_name(data) else _rows(data, split)
    folder = temporary_beside(cache / f"rows-{os.urandom(4).hex()}")
    file = folder / "rows.jsonl"
    try:
        with writing(folder):
            remove_leftovers_once(cache)
            folder.mkdir(parents=True)
        with writing(file, calls_others=True), open_own(file, "xb") as out:
            for number, row in enumerate(rows, 1):
                out.write(_line(number, row))
        yield file
    except OutputError:
        raise
    except InputError as error:
        if error.file != file:
            raise
        where = data if is_hub_name(data) else None
        row = error.found if error.line is None else f"row {error.line}: {error.found}"
        raise InputError(row, file=where, expected=error.expected, hint=error.hint) from None
    finally:
        remove(folder)


def _rows(data: Any, split: str) -> Iterable[Any]:
    """The rows of a list, or of the split of a data set."""
    if (
        isinstance(data, dict) and data and all(hasattr(part, "column_names") for part in data.values())
    ):  # a DatasetDict
        return _rows(data[chosen_split(list(data), split, Path("the data set"))], "")
    if split:
        raise ConfigError(f"split={split} was given with data that have no splits")
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        rows: Iterable[Any] = data.with_format(None)  # otherwise values may be tensors
        return rows
    if (
        isinstance(data, str | bytes | Path | Mapping)
        or not isinstance(data, Iterable)
        or hasattr(data, "columns")
    ):
        hint = (
            "; give a list of dictionaries, such as frame.to_dict('records')"
            if hasattr(data, "to_dict")
            else ""
        )
        raise ConfigError(f"training data of type {type(data).__name__}, expected {_EXPECTED}{hint}")
    return data


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
    except Exception as error:  # of the network, of its client, of the files there
        hint = "is there a network? dpr prepare reads files that were fetched elsewhere"
        raise InputError(f"could not be fetched ({first_line(error)})", file=name, hint=hint) from None
    return _rows(dataset, split)


def _line(number: int, row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise InputError(
            f"row {number}: of type {type(row).__name__}",
            expected="a dictionary, such as {'question': ..., 'positive': ...}",
        )
    for key, value in row.items():
        if not isinstance(key, str):
            raise InputError(
                f"row {number}: the key {key!a} is of type {type(key).__name__}", expected="a text"
            )
        try:
            json.dumps(value, default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"row {number}: {key} cannot be read ({first_line(error)})",
                expected="texts, numbers, lists, objects",
            ) from None
    return (json.dumps(dict(row), default=_plain) + "\n").encode()


def _plain(value: Any) -> Any:
    """A value of numpy or the like as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
