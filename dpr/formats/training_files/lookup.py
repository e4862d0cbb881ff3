"""Passages and questions by id, from a file of any length that is stored once in the cache.

rows.arrow   id, text, title, answers, as an Arrow stream of record batches
index.npy    (n, 2) uint64: hash of the id and row, sorted by hash

Both are mapped, so memory does not grow with the file; storing it takes 24 bytes per passage and one batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpr.core.errors import InputError
from dpr.core.hashes import text_hash
from dpr.core.records import Passage
from dpr.formats.arrow_batches import MappedBatches, write_batches
from dpr.formats.column_names import PASSAGE_IDS, PASSAGE_TEXTS, QUESTION_IDS, QUESTIONS, require_name
from dpr.formats.corpora import first_id, is_json_name, read_passages
from dpr.formats.sorted_hashes import HashIndex
from dpr.formats.text_input import located
from dpr.formats.training_files.arrow_rows import is_arrow
from dpr.formats.training_files.records import source_records
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_records import checked_answers, checked_text, title_in
from dpr.storage.checksums import cache_root
from dpr.storage.durable import durable_folder
from dpr.storage.outputs import cache_key, ensure_built

_VERSION = 4
_ROWS, _INDEX = "rows.arrow", "index.npy"
_SCHEMA = pa.schema(
    {"id": pa.string(), "text": pa.string(), "title": pa.string(), "answers": pa.list_(pa.string())}
)
_IDS = (*PASSAGE_IDS, *QUESTION_IDS)
_TEXTS = (*PASSAGE_TEXTS, *QUESTIONS)
Entry = tuple[str, str, str, tuple[str, ...]]


class Lookup(MappedBatches):
    """The texts of one file by id."""

    def __init__(self, folder: Path, path: Path) -> None:
        super().__init__(folder / _ROWS)
        self.path = path
        self._index = HashIndex(folder / _INDEX)

    def passages(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        """Passages ``start`` to ``stop``, in the order of the file."""
        stop = len(self) if stop is None else min(stop, len(self))
        while start < stop:
            batch, index = self.find(start)
            taken = min(batch.num_rows - index, stop - start)
            columns = (batch.column(name).slice(index, taken).to_pylist() for name in ("text", "title", "id"))
            yield from (Passage(*values) for values in zip(*columns, strict=True))
            start += taken

    def ids(self) -> Iterator[str]:
        """All ids, in the order of the file."""
        for batch in self.batches:
            yield from batch.column("id").to_pylist()

    def id_at(self, row: int) -> str:
        """The id of the ``row``-th record of the file."""
        batch, index = self.find(row)
        return str(batch.column("id")[index].as_py())

    def __contains__(self, key: str) -> bool:
        """Whether a record has this id."""
        return self._row(key) is not None

    def passage(self, key: str) -> Passage:
        """The passage with this id. Raises ValueError if there is none."""
        batch, index = self._with_id(key, "passage")
        return Passage(batch.column("text")[index].as_py(), batch.column("title")[index].as_py(), key)

    def question(self, key: str) -> tuple[str, tuple[str, ...]]:
        """The question with this id and its answers. Raises ValueError if there is none."""
        batch, index = self._with_id(key, "question")
        return batch.column("text")[index].as_py(), tuple(batch.column("answers")[index].as_py())

    def refuse_repeats(self) -> None:
        """Raises InputError where an id occurs twice."""
        hashes, rows = self._index.pairs.T
        for index in np.flatnonzero(hashes[1:] == hashes[:-1]):
            first, second = (self.id_at(int(row)) for row in rows[index : index + 2])
            if first == second:
                raise InputError(f"the id {first!a} occurs twice", file=self.path, expected="unique ids")

    def _row(self, key: str) -> int | None:
        return next((row for row in self._index.rows(text_hash(key)) if self.id_at(row) == key), None)

    def _with_id(self, key: str, what: str) -> tuple[pa.RecordBatch, int]:
        row = self._row(key)
        if row is None:
            raise ValueError(f"the {what} id {key!a} is not in {self.path}")
        return self.find(row)


def open_lookup(path: Path, cache_dir: Path | None) -> Lookup:
    """Opens a corpus or a file of questions: a table as ``read_passages`` reads it, JSON lines, or Parquet.

    The first call stores it under ``cache_dir``; later calls reuse that while name and content of the file
    are the same.

    Raises:
        InputError: the file is missing, a row is bad, or an id occurs twice.
    """
    if not path.exists():
        raise InputError("no such file", file=path, expected="passages or questions with ids")
    folder = cache_root(cache_dir) / f"lookup-{cache_key([path], [_VERSION])}"
    ensure_built(folder, lambda target: _store(path, target))
    return Lookup(folder, path)


def open_lookups(options: ReadOptions) -> tuple[Lookup | None, Lookup | None]:
    """Questions and passages that rows name by id, where they are given."""
    queries, corpus = (
        open_lookup(path, options.cache_dir) if path else None for path in (options.queries, options.corpus)
    )
    return queries, corpus


def _entries(path: Path) -> Iterator[Entry]:
    """Id, text, title and answers of every record of a file."""
    if is_arrow(path) or is_json_name(path):
        for file, record in source_records(path):
            if record.error is not None:
                raise record.error
            yield _entry(record.value, file, record.line)
    else:
        for passage in read_passages(path):
            yield str(passage.id), passage.text, passage.title, ()


def _entry(value: dict[str, Any], path: Path, line: int) -> Entry:
    with located(path, line):
        key = first_id(value, _IDS)
        text = checked_text(value, require_name(value, _TEXTS, "text"))
        metadata = value.get("metadata")
        answers = value.get("answers") or (metadata.get("answers") if isinstance(metadata, dict) else None)
        return key, text, title_in(value), checked_answers(answers)


def _store(path: Path, folder: Path) -> None:
    hashes = array("Q")
    with durable_folder(
        folder, overwrite=True, metadata={"kind": "lookup", "file": str(path), "cache": folder.name}
    ) as temporary:

        def entries() -> Iterator[Entry]:
            for entry in _entries(path):
                hashes.append(text_hash(entry[0]))
                yield entry

        write_batches(temporary / _ROWS, _SCHEMA, entries(), lambda entry: len(entry[1]) + len(entry[2]))
        HashIndex.write(temporary / _INDEX, hashes)
        Lookup(temporary, path).refuse_repeats()
