"""Training data (files in DPR's format or another that ``training_files`` reads, rows in memory, data sets of
Hugging Face's ``datasets`` and of its hub) read once into a memory-mapped Arrow file.

Rows that do not come from a file are first written to a temporary file of JSON lines in the cache. So the
same code reads every layout that a file may have, and the identity of the data is their content.

1. Every record is parsed and checked by the reader of its format; bad ones are refused with file and line, or
   set aside.
2. Good ones go, in batches, into a folder of the cache named by the files' content. Ranks that start together
   build it once.
3. ``TrainingSet`` maps that folder: memory does not grow with the file, and workers reopen it by its path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.core.machine import require
from dpr.core.records import TrainingSample, rows_of
from dpr.formats.arrow_files import chosen_split
from dpr.formats.stored_training_set import TrainingSet, write_rows
from dpr.formats.text_input import expand_files
from dpr.formats.text_store import open_store
from dpr.formats.training_files.beir import files_read
from dpr.formats.training_files.dpr import sample_to_json
from dpr.formats.training_files.registry import READERS, format_of
from dpr.formats.training_files.rows import ReadOptions, UsableRows, shown
from dpr.storage.checksums import cache_root, content_sha256
from dpr.storage.durable import durable_folder, writing
from dpr.storage.leftovers import open_own, remove, remove_leftovers_once, temporary_beside
from dpr.storage.outputs import cache_key, ensure_built

logger = get_logger(__name__)
_CACHE_VERSION = 9  # changes with what is read out of a file, so that old cache folders are not used
_FINGERPRINT = b"training set, parser 1"  # runs are resumed where the fingerprint is the same
HUB = "hf://"
_EXPECTED = (
    "a path, a pattern, a list of these, a list of dictionaries or of (question, passage), a frame of pandas, a"
    " data set of the package datasets, or hf://user/name"
)


def open_training_set(
    data: Any,
    *,
    name: str,
    split: str = "",
    columns: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
    on_bad_row: str = "fail",
    max_bad_rows: int = 100,
) -> TrainingSet:
    """Opens training data as one set: files, in the order given (patterns are expanded, ``.gz`` is unpacked),
    or rows.

    The first opening parses the data into ``cache_dir`` (default: $DPR_CACHE, else ~/.cache/dpr), later ones
    reuse the result as long as the content is the same; a file is read again only if its times have changed.
    ``on_bad_row="skip"`` sets up to ``max_bad_rows`` bad rows aside in ``rejected-<fingerprint>.jsonl`` in
    the cache folder. An array that breaks off or is not JSON cannot be skipped.

    Args:
        data: a path, a pattern or a list of these; a list of dictionaries in any layout that JSON lines may
        have, or of texts: a question, its passage, and negatives; a frame of pandas; a ``datasets.Dataset``
        or ``DatasetDict``; ``hf://user/name``, which ``datasets`` fetches; or an opened set, which is returned.
        split: split of a folder or ``DatasetDict``; empty = train, or the only split.
        columns: names of columns by role: question, positive, negative, title, answers, label.

    Raises:
        InputError: a file is missing or a row is bad (names file and line, or the row); no usable rows.
        ConfigError: ``data`` is of another type.
        OutputError: the cache folder cannot be written.
    """
    if isinstance(data, TrainingSet):
        return data
    if on_bad_row not in ("fail", "skip"):
        raise ConfigError(f"on_bad_row={on_bad_row} is not known; choose one of fail, skip")
    cache = cache_root(cache_dir)
    options = ReadOptions(partial(open_store, cache_dir=cache), split=split, columns=dict(columns or {}))
    limit = max_bad_rows if on_bad_row == "skip" else None
    if are_files(data):
        paths = expand_files(data)
        if split and not any(path.is_dir() for path in paths):
            raise ConfigError(
                f"split={split} was given, but {shown(paths)} is a file; folders and data sets have splits"
            )
        folder = _built(paths, options, limit, cache)
    else:
        origin = data if is_hub_name(data) else "rows in memory"
        with rows_file(data, split=split, cache=cache) as file:
            folder = _built([file], replace(options, split=""), limit, cache, origin=origin)
    opened = TrainingSet(folder, name)
    counts = opened.counts
    told = "%s: read %d records, kept %d, dropped %d without positives, rejected %d"
    logger.info(told, name, counts.read, counts.kept, counts.dropped, counts.rejected)
    for note in opened.unread.values():
        logger.warning("%s", note)
    return opened


def _built(
    paths: list[Path], options: ReadOptions, limit: int | None, cache: Path, *, origin: str = ""
) -> Path:
    """Returns the cache folder of the rows of these files, up to ``limit`` of which may be bad. ``origin``
    names the source of rows that were written to a temporary file."""
    usable = UsableRows(limit, file=cache / "rejected-too-many.jsonl")
    digest = hashlib.sha256(_FINGERPRINT)

    def folder_name() -> str:
        read = [file for path in paths for file in files_read(path)]
        told = [_CACHE_VERSION, limit, options.split, options.columns]
        return f"training-{cache_key(read, told)}"

    def samples() -> Iterator[TrainingSample]:
        for path in paths:
            content = hashlib.sha256()
            name = format_of(path, options)
            is_native = name == "dpr"
            for sample in usable.samples(READERS[name](path, options)):
                if not is_native:
                    content.update(json.dumps(sample_to_json(sample)).encode())
                yield sample
            digest.update(bytes.fromhex(content_sha256(path)) if is_native else content.digest())

    def named(note: str) -> str:
        if not origin:
            return note
        return note.replace(f"{paths[0]}: ", f"{origin}: ", 1).replace(f"{paths[0]}:", f"{origin}, row ", 1)

    def build(folder: Path) -> None:
        metadata: dict[str, Any] = {}
        with durable_folder(folder, overwrite=True, metadata=metadata) as temporary:
            write_rows(temporary, samples())
            usable.require_some(paths)
            if folder_name() != folder.name:
                again = "rerun the same command when it is complete"
                raise InputError("changed while it was read", file=shown(paths), hint=again)
            metadata.update(
                cache=folder.name,
                fingerprint=digest.hexdigest(),
                counts=asdict(usable.counts),
                files=[origin or str(path) for path in paths],
                unread={key: named(note) for key, note in options.unread.warnings.items()},
            )
        usable.list_rejected(cache / f"rejected-{digest.hexdigest()[:16]}.jsonl")

    folder = cache / folder_name()
    ensure_built(folder, build)
    return folder


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
            f"{name} is not the name of a data set on the hub; expected hf://user/name, or hf://user/name/configuration"
        )
    try:
        dataset = datasets.load_dataset(f"{owner}/{title}", configuration or None)
    except Exception as error:  # errors of the network, its client, or the files there
        hint = "check the network; dpr prepare also reads files that were downloaded elsewhere"
        raise InputError(f"could not be downloaded ({first_line(error)})", file=name, hint=hint) from None
    return _rows(dataset, split)


def _line(number: int, row: Any) -> bytes:
    texts = getattr(row, "texts", row)  # texts of an InputExample
    if isinstance(texts, list | tuple) and len(texts) > 1 and all(isinstance(text, str) for text in texts):
        row = {"question": texts[0], "positive": texts[1], "negative": texts[2:]}
    if not isinstance(row, Mapping):
        expected = "a dictionary, such as {'question': ..., 'positive': ...}, or (question, passage)"
        raise InputError(f"row {number}: {row!r:.100} of type {type(row).__name__}", expected=expected)
    try:
        # values of numpy and the like have tolist
        return (json.dumps(dict(row), default=lambda value: value.tolist()) + "\n").encode()
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        expected = "texts, numbers, lists, objects"
        raise InputError(f"row {number}: cannot be read ({first_line(error)})", expected=expected) from None
