"""Passages and questions of a file of any length, by row and by id, stored once in the cache.

texts-<key>/
  rows.arrow     id, text, title, answers, origin and metadata (JSON), as an Arrow stream of record batches
  ids.npy        (2, n) uint64: the hashes of the ids in ascending order, and the row of each
  manifest.json  present means complete

Both files are mapped, so memory does not grow with the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa

from dpr.core.errors import InputError
from dpr.core.logs import counted
from dpr.core.records import Origin, Passage, text_hash
from dpr.formats.arrow_files import MappedBatches, write_batches
from dpr.formats.corpora import DEFAULT_COLUMNS, Columns, passage_rows
from dpr.formats.id_hashes import HashIndex, mapped_hashes, rows_of_repeated
from dpr.formats.record_fields import checked_answers
from dpr.formats.text_input import located
from dpr.storage.checksums import cache_root, file_state, require_unchanged
from dpr.storage.durable import durable_folder
from dpr.storage.outputs import cache_key, ensure_built

_VERSION = 3
_ROWS = "rows.arrow"
_IDS = "ids.npy"
_ORIGIN = pa.struct({"file": pa.string(), "heading": pa.string(), "line": pa.int64(), "url": pa.string()})
_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "text": pa.string(),
        "title": pa.string(),
        "answers": pa.list_(pa.string()),
        "origin": _ORIGIN,
        "metadata": pa.string(),
    }
)


class TextStore(MappedBatches):
    """Records of one file, whose ids are unique. Several threads may use it."""

    def __init__(self, file: Path, folder: Path) -> None:
        super().__init__(folder / _ROWS)
        self.file = file
        self._ids = HashIndex(folder / _IDS)
        self._seen = file_state(file)

    def passages(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        """Yields passages number ``start`` to ``stop``, in the order of the file.

        Raises:
            InputError: the file has changed since the store was opened.
        """
        require_unchanged(self.file, self._seen)
        stop = len(self) if stop is None else min(stop, len(self))
        while start < stop:
            batch, index = self.find(start)
            taken = min(batch.num_rows - index, stop - start)
            names = ("text", "title", "id", "origin", "metadata")
            columns = [batch.column(name).slice(index, taken).to_pylist() for name in names]
            for text, title, key, origin, stated in zip(*columns, strict=True):
                fields = stated and json.loads(stated)
                yield Passage(text, title, key, origin=origin and Origin(**origin), metadata=fields)
            start += taken

    def ids(self) -> Iterator[str]:
        """Yields all ids, in the order of the file."""
        for batch in self.batches:
            yield from batch.column("id").to_pylist()

    def id_at(self, row: int) -> str:
        """Returns the id of the ``row``-th record of the file."""
        batch, index = self.find(row)
        return str(batch.column("id")[index].as_py())

    def passages_with(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids; missing ones are left out.

        Raises:
            InputError: the file has changed since the store was opened.
        """
        rows = ((key, self._row(key)) for key in counted(list(ids), "reading passages"))
        return {key: next(self.passages(row, row + 1)) for key, row in rows if row is not None}

    def passage(self, key: str) -> Passage:
        """Returns the passage with this id. Raises ValueError if there is none."""
        row = self._required(key, "passage")
        return next(self.passages(row, row + 1))

    def question(self, key: str) -> tuple[str, tuple[str, ...]]:
        """Returns the question with this id and its answers. Raises ValueError if there is none."""
        batch, index = self.find(self._required(key, "question"))
        return batch.column("text")[index].as_py(), tuple(batch.column("answers")[index].as_py())

    def _required(self, key: str, what: str) -> int:
        row = self._row(key)
        if row is None:
            raise ValueError(f"the {what} id {key!a} is not in {self.file}")
        return row

    def _row(self, key: str) -> int | None:
        return next((row for row in self._ids.rows(text_hash(key)) if self.id_at(row) == key), None)


def open_store(file: Path, columns: Columns = DEFAULT_COLUMNS, *, cache_dir: Path | None = None) -> TextStore:
    """Opens the store of a corpus or a file of questions. ``columns`` of id, text and title are those of a
    table. The first call reads the whole file; later calls reuse the store while the file's name and content
    are the same.

    Raises:
        InputError: the file is missing, has a bad row, or an id occurs twice.
        OutputError: the cache folder cannot be written.
    """
    if not file.exists():
        raise InputError("no such file", file=file, expected="passages or questions with ids")
    folder = cache_root(cache_dir) / f"texts-{cache_key([file], [_VERSION, columns])}"
    ensure_built(folder, lambda target: _build(file, columns, target))
    return TextStore(file, folder)


def _build(file: Path, columns: Columns, folder: Path) -> None:
    metadata = {"kind": "texts", "file": str(file), "cache": folder.name}
    with (
        durable_folder(folder, overwrite=True, metadata=metadata) as temporary,
        TemporaryFile(dir=temporary) as written,
    ):

        def rows() -> Iterator[list[Any]]:
            for line, passage, answers in passage_rows(file, columns):
                written.write(text_hash(str(passage.id)).to_bytes(8, "little"))
                origin = asdict(passage.origin) if passage.origin else None
                with located(file, line):
                    listed = checked_answers(answers)
                fields = passage.metadata and json.dumps(passage.metadata, default=str)
                yield [passage.id, passage.text, passage.title, listed, origin, fields]

        write_batches(temporary / _ROWS, _SCHEMA, rows(), lambda row: len(row[1]) + len(row[2]))
        hashes = mapped_hashes(written)
        HashIndex.write(temporary / _IDS, hashes)
        store = TextStore(file, temporary)
        seen: set[str] = set()
        for row in rows_of_repeated(hashes):
            key = store.id_at(row)
            if key in seen:
                lines = [line for line, passage, _ in passage_rows(file, columns) if str(passage.id) == key]
                raise InputError(
                    f"the id {key!r} is already used at line {lines[0]}",
                    file=file,
                    line=lines[1],
                    expected="unique ids",
                )
            seen.add(key)
