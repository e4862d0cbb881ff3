"""Vectors of a part of a corpus: a folder of chunks (ids and vectors side by side) with a manifest that is written last.

    X_0/vectors-00000.npy  (n, D) float32 or float16, readable with numpy.load(mmap_mode="r"); or codes of int8 or of single bits
        scales-00000.npy   (n,) float32, with codes only (dpr/formats/vector_codes.py)
        ids-00000.npy      (n,) fixed-width bytes, UTF-8
        manifest.json      metadata, sizes and SHA-256 of all files; present means complete
        chunk-00000.json   while unfinished: size and SHA-256 of the chunk's files
        shard.json         while unfinished: the metadata the chunks were made with

Several processes may write different chunks of one shard at the same time; one of them finishes it.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES
from dpr.formats import vector_codes
from dpr.formats.durable import (
    MANIFEST,
    describe_file,
    durable_file,
    read_json,
    read_manifest,
    verify_folder,
    write_json,
    write_manifest,
    writing,
)
from dpr.formats.leftovers import remove_leftovers
from dpr.formats.shard_checks import check_shards_belong_together, first_duplicate, map_array, map_ids

Metadata = dict[str, str | int | float | bool]

_UNFINISHED = "shard.json"
_CHUNK_FILE = re.compile(r"(?:vectors|scales|ids)-(\d{5,})\.npy")
_MARKER = re.compile(r"chunk-(\d{5,})\.json")
_COUNTS = ("num_vectors", "num_chunks")
_DECODED_ROWS = 8192
_KEPT = "rerun the same command where it can; chunks that are written are kept"


class VectorShardWriter:
    """Writes one shard, chunk by chunk, in any order; resumes what an earlier, killed writer of the same metadata left.

    A finished shard is verified first; when it is damaged it is unfinished again, and its damaged chunks have to be rewritten.

    Raises:
        InputError: ``target`` holds a shard with other metadata (the message names the difference), or something else.
    """

    def __init__(self, target: Path, *, metadata: Metadata, dimension: int, dtype: str = "float32") -> None:
        if dtype not in vector_codes.DTYPES:
            raise ValueError(f"dtype {dtype!r}: vectors are stored as {', '.join(vector_codes.DTYPES)}")
        self.target = Path(target)
        self.dtype = dtype
        self.dimension = dimension
        self.metadata: Metadata = {**metadata, "dimension": dimension, "dtype": dtype}
        with writing(self.target, hint=_KEPT):
            self._open()

    def is_complete(self) -> bool:
        """Whether the shard is finished. Its files were verified when the writer was made."""
        return (self.target / MANIFEST).is_file()

    def finished_chunks(self) -> set[int]:
        """Numbers of the chunks whose files are as they were written; all others have to be written (again)."""
        return {number for number in self._entries() if self.is_finished(number)}

    def is_finished(self, number: int) -> bool:
        """Whether one chunk is written and its files are as they were written."""
        files = self._entries().get(number, {}) if self.is_complete() else self._marked(number)["files"]
        names = {_file(name, number) for name in _array_names(self.dtype)}
        try:
            return set(files) == names and all(describe_file(self.target / name) == files[name] for name in names)
        except OSError:
            return False

    def write_chunk(self, number: int, ids: list[str], vectors: np.ndarray) -> None:
        """Stores a chunk durably: ``vectors`` (n, D), one id per row.

        Raises:
            InputError: rows that are not finite or all zero (count and first ids), an id that is empty or occurs twice; or the chunk cannot
                be written.
        """
        if vectors.shape != (len(ids), self.dimension) or not ids:
            raise ValueError(f"chunk {number}: {len(ids)} ids and vectors of shape {vectors.shape}, dimension {self.dimension}")
        arrays, bad, zero = vector_codes.encode(vectors, self.dtype)
        self._refuse_bad_vectors(number, ids, bad, zero)
        arrays["ids"] = self._encode_ids(number, ids)
        with writing(self.target, hint=_KEPT):
            if self.is_complete():
                self._reopen()
            (self.target / _marker(number)).unlink(missing_ok=True)
            files = {}
            for name in _array_names(self.dtype):
                path = self.target / _file(name, number)
                with durable_file(path, "wb") as file:
                    np.lib.format.write_array(file, arrays[name], allow_pickle=False)
                files[path.name] = describe_file(path)
            write_json(self.target / _marker(number), {"files": files, "rows": len(ids)})

    def finish(self, num_chunks: int | None = None) -> None:
        """Writes the manifest. Call once, when all chunks are written by whichever process; a second call changes nothing.

        Raises:
            InputError: chunks are missing, counted from 0 to the highest one or to ``num_chunks`` (which may be 0: the last of many
                shards of a small corpus is empty); or the manifest cannot be written.
        """
        if self.is_complete():
            return
        entries = self._entries()
        if num_chunks is None:
            num_chunks = max(entries, default=0) + 1
        missing = sorted(set(range(num_chunks)) - set(entries))
        if missing or len(entries) != num_chunks:
            found = f"{len(missing)} chunks are missing, first {missing[:5]}" if missing else f"{len(entries)} chunks, not {num_chunks}"
            raise InputError(found, file=self.target, hint="rerun the same command to write them")
        num_vectors = sum(self._marked(number)["rows"] for number in entries)
        files = {name: entry for number in sorted(entries) for name, entry in entries[number].items()}
        with writing(self.target, hint=_KEPT):
            write_manifest(self.target, {**self.metadata, "num_vectors": num_vectors, "num_chunks": num_chunks}, files=files)
            self._clear_markers()

    def _open(self) -> None:
        if self.target.exists() and not self.target.is_dir():
            raise InputError("is a file, expected a folder to write vectors into", file=self.target, hint="choose another out_file")
        self.target.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.target)
        if self.is_complete():
            self._refuse_other_metadata(read_manifest(self.target)["metadata"], "finished")
            self._clear_markers()
            if verify_folder(self.target):
                self._reopen()
        elif (self.target / _UNFINISHED).is_file():
            self._refuse_other_metadata(read_json(self.target / _UNFINISHED), "unfinished")
        elif others := [path.name for path in self.target.iterdir() if not path.name.startswith(".tmp-")]:
            raise InputError(f"holds other files ({others[0]})", file=self.target, hint="choose another out_file")
        else:
            write_json(self.target / _UNFINISHED, self.metadata)

    def _reopen(self) -> None:
        """Turns a finished shard into an unfinished one, which keeps its good chunks."""
        write_json(self.target / _UNFINISHED, self.metadata)
        for number, files in self._entries().items():
            try:
                rows = len(map_ids(self.target / _file("ids", number)))
            except InputError:
                continue
            write_json(self.target / _marker(number), {"files": files, "rows": rows})
        (self.target / MANIFEST).unlink()

    def _clear_markers(self) -> None:
        for path in self.target.iterdir():
            if path.name == _UNFINISHED or _MARKER.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _entries(self) -> dict[int, dict[str, Any]]:
        """Manifest entries of each chunk, from the manifest or from the markers; not verified."""
        if self.is_complete():
            return _by_chunk(read_manifest(self.target)["files"], self.dtype)
        numbers = sorted(int(match[1]) for path in self.target.iterdir() if (match := _MARKER.fullmatch(path.name)))
        return {number: files for number in numbers if (files := self._marked(number)["files"])}

    def _marked(self, number: int) -> dict[str, Any]:
        nothing: dict[str, Any] = {"files": {}, "rows": 0}
        path = self.target / _marker(number)
        if not path.is_file():
            return nothing
        try:
            marker = read_json(path)
        except InputError:
            return nothing
        is_whole = isinstance(marker, dict) and isinstance(marker.get("files"), dict) and isinstance(marker.get("rows"), int)
        return marker if is_whole else nothing

    def _refuse_other_metadata(self, found: Any, state: str) -> None:
        found = {key: value for key, value in found.items() if key not in _COUNTS} if isinstance(found, dict) else {}
        for key in sorted(set(found) | set(self.metadata)):
            if found.get(key) != self.metadata.get(key):
                raise InputError(
                    f"holds {state} vectors with {key}={found.get(key)!r}, this run has {self.metadata.get(key)!r}",
                    file=self.target,
                    hint="choose another out_file, or remove the folder",
                )

    def _refuse_bad_vectors(self, number: int, ids: list[str], bad: np.ndarray, zero: np.ndarray) -> None:
        for rows, what in ((bad, f"not finite as {self.dtype}"), (zero, "all zero")):
            if count := int(rows.sum()):
                first = ", ".join(ids[row] for row in np.flatnonzero(rows)[:5])
                raise InputError(
                    f"chunk {number}: {count} of {len(ids)} vectors are {what}, first ids: {first}",
                    file=self.target,
                    hint="check the model; out_dtype=float32 holds larger numbers than float16",
                )

    def _encode_ids(self, number: int, ids: list[str]) -> np.ndarray:
        encoded = [key.encode() for key in ids]
        if any(not 0 < len(key) <= MAX_ID_BYTES or b"\0" in key for key in encoded):
            found = f"chunk {number}: an id is empty, longer than {MAX_ID_BYTES} bytes, or holds a NUL character"
            raise InputError(found, file=self.target)
        if len(set(ids)) != len(ids):
            repeated = next(key for key, count in Counter(ids).items() if count > 1)
            raise InputError(f"chunk {number}: the id {repeated!r} occurs twice", file=self.target, expected="unique ids")
        return np.array(encoded)


class VectorShard:
    """A finished shard, memory-mapped. ``verify`` compares the SHA-256 of all files, which reads them once.

    Raises:
        InputError: unfinished, damaged, or not a vector shard.
    """

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        self.path = Path(path)
        if self.path.is_dir() and (self.path / _UNFINISHED).is_file() and not (self.path / MANIFEST).is_file():
            raise InputError("these vectors are unfinished", file=self.path, hint="run the embedding command again to finish them")
        manifest = read_manifest(self.path)
        self.metadata: Metadata = manifest["metadata"]
        try:
            self.num_vectors, self.dimension = int(self.metadata["num_vectors"]), int(self.metadata["dimension"])
            self.dtype = str(self.metadata["dtype"])
            if self.dtype not in vector_codes.DTYPES or self.dimension < 1 or self.num_vectors < 0:
                raise ValueError(self.metadata)
        except (KeyError, ValueError, TypeError, OverflowError):
            raise InputError("the manifest is not one of a vector shard", file=self.path / MANIFEST) from None
        self._chunks = _by_chunk(manifest["files"], self.dtype)
        problems = verify_folder(self.path) if verify else []
        # A writer that was stopped right after the manifest leaves its markers behind; they harm nobody.
        problems = [problem for problem in problems if not (problem.startswith(_UNFINISHED) or _MARKER.match(problem))]
        if sorted(self._chunks) != list(range(len(self._chunks))):
            problems.append("chunk numbers are not consecutive")
        if problems:
            more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
            hint = "run the embedding command again, it rewrites damaged chunks"
            raise InputError(problems[0] + more, file=self.path, hint=hint)

    def __len__(self) -> int:
        return self.num_vectors

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids (n,) of dtype 'S' and vectors (n, D) in order: memory-mapped, chunk by chunk; codes as float32, some rows at a time."""
        for number in sorted(self._chunks):
            ids = map_ids(self.path / _file("ids", number))
            arrays = {name: self._array(name, number) for name in vector_codes.array_names(self.dtype)}
            for name, array in arrays.items():
                if len(ids) != len(array):
                    raise InputError(f"chunk {number} has {len(ids)} ids and {len(array)} {name}", file=self.path)
            rows = len(ids) if len(arrays) == 1 else _DECODED_ROWS
            for start in range(0, len(ids), rows):
                part = {name: array[start : start + rows] for name, array in arrays.items()}
                yield ids[start : start + rows], vector_codes.decode(part, self.dtype, self.dimension)

    def id_chunks(self) -> Iterator[np.ndarray]:
        """Ids (n,) of dtype 'S' of each chunk, in order."""
        for number in sorted(self._chunks):
            yield map_ids(self.path / _file("ids", number))

    def _array(self, name: str, number: int) -> np.ndarray:
        path = self.path / _file(name, number)
        array = map_array(path)
        dtype, row = vector_codes.expected_array(name, self.dtype, self.dimension)
        if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype != dtype:
            raise InputError(f"holds {array.dtype} {array.shape}", file=path, expected=f"{dtype} of shape {('n', *row)}".replace("'", ""))
        if not array.flags.c_contiguous:
            raise InputError("is in Fortran order", file=path, expected="the numbers of each vector side by side (numpy.ascontiguousarray)")
        return array


def open_shards(patterns: Sequence[str | Path], *, verify: bool = True, allow_missing: bool = False) -> list[VectorShard]:
    """The shards that paths and patterns name, in natural order (X_2 before X_10), checked to belong together.

    Raises:
        InputError: nothing matches; a shard is unfinished or damaged, a number of its ``num_shards`` is missing (unless
            ``allow_missing``), models or settings differ, an id occurs twice.
    """
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        item = Path(pattern).expanduser()
        found = [item] if item.exists() else [Path(match) for match in glob.glob(str(item))]
        if not found:
            raise InputError("no vectors found", file=pattern, hint="generate_embeddings.py writes them as <out_file>_<shard_id>")
        paths += sorted(found, key=_natural_key)
    paths = list(dict.fromkeys(paths))
    shards = [VectorShard(path, verify=verify) for path in paths]
    check_shards_belong_together([(shard.path, shard.metadata) for shard in shards], allow_missing=allow_missing)
    if (duplicate := first_duplicate([shard.id_chunks for shard in shards])) is not None:
        raise InputError(f"the passage id {duplicate!r} occurs twice in these vectors", file=", ".join(map(str, paths[:4])))
    return shards


def _natural_key(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _marker(number: int) -> str:
    return f"chunk-{number:05d}.json"


def _file(name: str, number: int) -> str:
    return f"{name}-{number:05d}.npy"


def _array_names(dtype: str) -> tuple[str, ...]:
    return (*vector_codes.array_names(dtype), "ids")


def _by_chunk(files: dict[str, dict[str, Any]], dtype: str) -> dict[int, dict[str, Any]]:
    chunks: dict[int, dict[str, Any]] = {}
    for name, entry in files.items():
        if match := _CHUNK_FILE.fullmatch(name):
            chunks.setdefault(int(match[1]), {})[name] = entry
    return {number: entries for number, entries in sorted(chunks.items()) if len(entries) == len(_array_names(dtype))}
