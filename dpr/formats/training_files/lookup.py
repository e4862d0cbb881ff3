"""Passages and questions by id, from a file of any length that is stored once in the cache.

rows.arrow   id, text, title, answers, as an Arrow stream of record batches
index.npy    (n, 2) uint64: hash of the id and row, sorted by hash

Both are mapped, so memory does not grow with the file; storing it takes 24 bytes per passage and one batch.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.formats.checksums import cache_root
from dpr.formats.corpora import is_json_name, read_passages
from dpr.formats.durable import durable_folder
from dpr.formats.json_records import iter_json_records
from dpr.formats.outputs import cache_key, ensure_built
from dpr.formats.text_input import has_lone_surrogate, iter_lines
from dpr.formats.training_files.arrow_rows import arrow_rows, is_arrow
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_records import checked_answers

_VERSION = 1
_ROWS, _INDEX = "rows.arrow", "index.npy"
_SCHEMA = pa.schema({"id": pa.string(), "text": pa.string(), "title": pa.string(), "answers": pa.list_(pa.string())})
_BATCH_CHARACTERS = 4 * 2**20
_IDS = ("_id", "docid", "query_id", "passage_id", "id", "qid", "pid")
_TEXTS = ("text", "document_text", "query_text", "query", "question", "passage", "contents")
Entry = tuple[str, str, str, tuple[str, ...]]


class Lookup:
    """The texts of one file by id."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.path = path
        with pa.memory_map(str(folder / _ROWS)) as source, pa.ipc.open_stream(source) as stream:
            self._batches = list(stream)
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)
        # A plain view: taking an element of a memmap makes another memmap, which costs some microseconds.
        self._index = np.load(folder / _INDEX, mmap_mode="r", allow_pickle=False).view(np.ndarray)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def passages(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        """Passages ``start`` to ``stop``, in the order of the file."""
        stop = len(self) if stop is None else min(stop, len(self))
        while start < stop:
            batch, place = self._place(start)
            taken = min(batch.num_rows - place, stop - start)
            columns = (batch.column(name).slice(place, taken).to_pylist() for name in ("text", "title", "id"))
            yield from (Passage(*values) for values in zip(*columns, strict=True))
            start += taken

    def ids(self) -> Iterator[str]:
        """All ids, in the order of the file."""
        for batch in self._batches:
            yield from batch.column("id").to_pylist()

    def id_at(self, row: int) -> str:
        """The id of the ``row``-th record of the file."""
        batch, place = self._place(row)
        return str(batch.column("id")[place].as_py())

    def passage(self, key: str) -> Passage:
        """The passage with this id. Raises ValueError if there is none."""
        batch, place = self._find(key, "passage")
        return Passage(batch.column("text")[place].as_py(), batch.column("title")[place].as_py(), key)

    def question(self, key: str) -> tuple[str, tuple[str, ...]]:
        """The question with this id and its answers. Raises ValueError if there is none."""
        batch, place = self._find(key, "question")
        return batch.column("text")[place].as_py(), tuple(batch.column("answers")[place].as_py())

    def _find(self, key: str, what: str) -> tuple[pa.RecordBatch, int]:
        wanted = _hash(key)
        start = int(np.searchsorted(self._index[:, 0], np.uint64(wanted)))
        while start < len(self._index) and self._index[start, 0] == wanted:
            batch, place = self._place(int(self._index[start, 1]))
            if batch.column("id")[place].as_py() == key:
                return batch, place
            start += 1
        raise ValueError(f"the {what} id {key!a} is not in {self.path}")

    def _place(self, row: int) -> tuple[pa.RecordBatch, int]:
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._batches[number], row - (int(self._ends[number - 1]) if number else 0)


def open_lookup(path: Path, cache_dir: Path | None) -> Lookup:
    """Opens a corpus or a file of questions: DPR's TSV, two columns (id, text; no quoting), JSON lines, or Parquet.

    The first call stores it under ``cache_dir``; later calls reuse that while name and content of the file are the same.

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
    queries, corpus = (open_lookup(path, options.cache_dir) if path else None for path in (options.queries, options.corpus))
    return queries, corpus


def _entries(path: Path) -> Iterator[Entry]:
    """Id, text, title and answers of every record of a file."""
    if is_arrow(path):
        for file, number, value in arrow_rows(path):
            yield _entry(value, file, number)
    elif is_json_name(path):
        for record in iter_json_records(path):
            if record.error is not None:
                raise record.error
            yield _entry(record.value, path, record.line)
    elif next(iter_lines(path), (1, ""))[1].count("\t") == 1:  # MS MARCO's collection and queries: no header, no titles, no quoting
        for line, text in iter_lines(path):
            fields = text.split("\t")
            if text and (len(fields) != 2 or not fields[0]):
                raise InputError(f"{len(fields)} columns", file=path, line=line, expected="2: id and text, separated by a tab")
            if text:
                yield fields[0], fields[1], "", ()
    else:
        for passage in read_passages(path):
            yield str(passage.id), passage.text, passage.title, ()


def _entry(value: dict[str, Any], path: Path, line: int) -> Entry:
    key = next((value[name] for name in _IDS if value.get(name) is not None), None)
    text = next((value[name] for name in _TEXTS if value.get(name) is not None), None)
    title = value.get("title") or ""
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str) or not key or not isinstance(text, str) or not isinstance(title, str):
        raise InputError("no id or no text", file=path, line=line, expected="strings under _id (docid, query_id ...) and text (query ...)")
    if any(has_lone_surrogate(part) for part in (key, text, title)):
        raise InputError("half of a character (lone surrogate)", file=path, line=line, expected="valid Unicode")
    metadata = value.get("metadata")
    answers = value.get("answers") or (metadata.get("answers") if isinstance(metadata, dict) else None)
    try:
        return key, text, title, checked_answers(answers)
    except ValueError as error:
        raise InputError(str(error), file=path, line=line) from None


def _store(path: Path, folder: Path) -> None:
    hashes = array("Q")
    with durable_folder(folder, overwrite=True, metadata={"kind": "lookup", "file": str(path), "cache": folder.name}) as temporary:
        with pa.OSFile(str(temporary / _ROWS), "wb") as sink, pa.ipc.new_stream(sink, _SCHEMA) as writer:
            rows: list[Entry] = []
            characters = 0
            for entry in _entries(path):
                hashes.append(_hash(entry[0]))
                rows.append(entry)
                characters += len(entry[1]) + 50
                if characters >= _BATCH_CHARACTERS:
                    _write_batch(writer, rows)
                    rows, characters = [], 0
            _write_batch(writer, rows)
        index = np.empty((len(hashes), 2), dtype=np.uint64)
        unsorted = np.frombuffer(hashes, dtype=np.uint64)
        index[:, 1] = np.argsort(unsorted, kind="stable")
        index[:, 0] = unsorted[index[:, 1].astype(np.int64)]
        np.save(temporary / _INDEX, index, allow_pickle=False)
        _refuse_repeats(Lookup(temporary, path), index)


def _write_batch(writer: Any, rows: list[Entry]) -> None:
    if rows:
        columns = [pa.array(values, type=field.type) for values, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))


def _refuse_repeats(lookup: Lookup, index: np.ndarray) -> None:
    for place in np.flatnonzero(index[1:, 0] == index[:-1, 0]):
        batches = [lookup._place(int(index[place + step, 1])) for step in (0, 1)]
        first, second = (batch.column("id")[row].as_py() for batch, row in batches)
        if first == second:
            raise InputError(f"the id {first!a} occurs twice", file=lookup.path, expected="unique ids")


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
