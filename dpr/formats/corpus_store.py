"""Passages of a corpus by row and by id, without reading what is before them: facts of the file that are
found once and kept in the cache.

corpus-<key>/
  places.npy     (m, 2) int64: line and byte where row 0, 16, 32 ... begins
  ids.npy        (n, 2) uint64: hash of the id and row, sorted by both
  manifest.json  number of passages, and the first id that occurs twice

All is mapped, 17 bytes a passage, so memory does not grow with the corpus; the texts stay where they are.
Files in which no place can be found (packed ones, JSON arrays, Parquet) are first written to the cache as
JSON lines.

unpacked-<key>/passages.jsonl
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.hashes import text_hash
from dpr.core.records import Passage
from dpr.formats.arrays import map_array
from dpr.formats.corpora import (
    DEFAULT_COLUMNS,
    Columns,
    has_records,
    is_json_name,
    numbered_ids,
    read_passages,
    repeated_id,
    write_passages,
)
from dpr.formats.json_records import skip_space
from dpr.formats.sorted_hashes import HashIndex
from dpr.formats.text_input import LinePlace, open_input
from dpr.storage.checksums import cache_root, file_state, require_unchanged
from dpr.storage.durable import durable_folder, read_manifest
from dpr.storage.outputs import cache_key, ensure_built

_VERSION = 3
_STEP = 16  # rows from one place to the next: few to read for one passage, few places to keep
_PLACES, _IDS, _UNPACKED = "places.npy", "ids.npy", "passages.jsonl"


class CorpusStore:
    """The passages of one file, whose ids are without prefix. Several threads may use it.

    Args:
        file: The corpus, or its copy as JSON lines.
        folder: What ``open_store`` keeps of it.
    """

    def __init__(self, file: Path, columns: Columns, folder: Path) -> None:
        self.file = file
        metadata = read_manifest(folder)["metadata"]
        self.num_passages = int(metadata["num_passages"])
        self._repeated: list[int] | None = metadata["repeated"]
        self._rows = _Rows(file, columns, folder / _PLACES)
        self._ids = HashIndex(folder / _IDS)
        self._seen = file_state(file)

    def passages(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        """Passages number ``start`` to ``stop``, in order.

        Raises:
            InputError: the file has changed since the store was opened, or has a bad row.
        """
        require_unchanged(self.file, self._seen)
        stop = self.num_passages if stop is None else min(stop, self.num_passages)
        return self._rows.passages(start, stop) if start < stop else iter(())

    def find(self, ids: Iterable[str]) -> dict[str, Passage]:
        """The passages with these ids, those that are missing left out; of several with one id the first.

        Raises:
            InputError: as ``passages``.
        """
        passages: dict[str, Passage] = {}
        for key in ids:
            for row in self._ids.rows(text_hash(key)):
                passage = next(self.passages(row, row + 1))
                if passage.id == key:
                    passages[key] = passage
                    break
        return passages

    def check_unique(self) -> None:
        """Raises InputError, which names both lines, if an id occurs twice."""
        if self._repeated is not None:
            (first, _), (line, key) = (self._rows.numbered_id(row) for row in self._repeated)
            raise repeated_id(self.file, key, line, first)


class _Rows:
    """Rows of a file, read from any of them on."""

    def __init__(self, file: Path, columns: Columns, places: Path) -> None:
        self._file, self._columns = file, columns
        self._places = map_array(places).view(np.ndarray)

    def passages(self, start: int, stop: int) -> Iterator[Passage]:
        id_col, text_col, title_col = self._columns
        place, skipped = self._place(start)
        stop += skipped - start
        return read_passages(
            self._file,
            id_col=id_col,
            text_col=text_col,
            title_col=title_col,
            start=skipped,
            stop=stop,
            place=place,
        )

    def numbered_id(self, row: int) -> tuple[int, str]:
        """Line and id of a row."""
        place, skipped = self._place(row)
        return next(islice(numbered_ids(self._file, self._columns, place), skipped, None))

    def _place(self, row: int) -> tuple[LinePlace, int]:
        """A place at or before a row, and how many rows are between them."""
        line, offset = self._places[row // _STEP].tolist()
        return LinePlace(line, offset), row % _STEP


def open_store(
    file: Path, columns: Columns = DEFAULT_COLUMNS, *, cache_dir: Path | None = None
) -> CorpusStore:
    """The store of a corpus; ``columns`` of id, text and title are those of a TSV. The first call reads the
    whole file.

    Raises:
        InputError: the file is missing or has a bad row. (That an id occurs twice is for ``check_unique`` to
        say.)
        ConfigError: the cache folder cannot be written.
    """
    if not file.is_file():
        raise InputError("no such file", file=file, expected="passages with ids")
    root = cache_root(cache_dir)
    if not has_places(file):
        unpacked = root / f"unpacked-{cache_key([file], [_VERSION, columns])}"
        ensure_built(unpacked, lambda target: _unpack(file, columns, target))
        file, columns = unpacked / _UNPACKED, DEFAULT_COLUMNS
    folder = root / f"corpus-{cache_key([file], [_VERSION, columns])}"
    ensure_built(folder, lambda target: _build(file, columns, target))
    return CorpusStore(file, columns, folder)


def has_places(file: Path) -> bool:
    """Whether rows of the file can be read without those before them: a TSV or JSON lines, not packed."""
    if has_records(file) and not is_json_name(file):
        return False
    with open_input(file) as stream:
        is_array = is_json_name(file) and skip_space(stream)[1] == b"["
        return not is_array and not isinstance(stream.raw, gzip.GzipFile)


def _unpack(file: Path, columns: Columns, folder: Path) -> None:
    id_col, text_col, title_col = columns
    with durable_folder(
        folder, overwrite=True, metadata={"kind": "passages", "cache": folder.name}
    ) as temporary:
        write_passages(
            temporary / _UNPACKED, read_passages(file, id_col=id_col, text_col=text_col, title_col=title_col)
        )


def _build(file: Path, columns: Columns, folder: Path) -> None:
    facts: dict[str, Any] = {"kind": "corpus", "cache": folder.name}
    with durable_folder(folder, overwrite=True, metadata=facts) as temporary:
        with open(temporary / _PLACES, "wb") as places:
            _write_header(places, 0)

            def hashes() -> Iterator[int]:
                place = LinePlace()
                for count, (_, key) in enumerate(numbered_ids(file, columns, place)):
                    if count % _STEP == 0:
                        places.write(np.array([place.line, place.offset], dtype="<i8").tobytes())
                    yield text_hash(key)

            facts["num_passages"] = HashIndex.write(temporary / _IDS, hashes())
            places.seek(0)
            _write_header(places, -(-facts["num_passages"] // _STEP))
        facts["repeated"] = _first_repeated(
            HashIndex(temporary / _IDS), _Rows(file, columns, temporary / _PLACES)
        )


def _write_header(file: IO[bytes], num_places: int) -> None:
    """Numpy leaves room in a header for every number of rows, so that it can be written again when they are
    counted."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<i8", "fortran_order": False, "shape": (num_places, 2)}
    )


def _first_repeated(ids: HashIndex, rows: _Rows) -> list[int] | None:
    """The first row whose id an earlier row has: that row and this one."""
    for row in sorted(ids.repeated()):
        _, key = rows.numbered_id(row)
        for earlier in ids.rows(text_hash(key)):
            if earlier < row and rows.numbered_id(earlier)[1] == key:
                return [earlier, row]
    return None
