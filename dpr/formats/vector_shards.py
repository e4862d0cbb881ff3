"""Vectors of a part of a corpus: a folder of chunks (ids and vectors side by side) with a manifest that is written last.

    X_0/vectors-00000.npy  (n, D) float32 or float16, readable with numpy.load(mmap_mode="r"); or codes of int8 or of single bits
        scales-00000.npy   (n,) float32, with codes only (dpr/formats/arrays.py)
        ids-00000.npy      (n,) fixed-width bytes, UTF-8; or, where that is smaller, offsets and bytes (write_ids in dpr/formats/arrays.py)
        manifest.json      metadata, sizes and SHA-256 of all files; present means complete
        chunk-00000.json   while unfinished: size and SHA-256 of the chunk's files
        shard.json         while unfinished: the metadata the chunks were made with

Several processes may write different chunks of one shard at the same time; one of them finishes it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.hashes import text_sha256
from dpr.core.records import MAX_ID_BYTES
from dpr.formats.arrays import DTYPES, PackedIds, array_names, decode, encode, is_coded, map_vectors, pack_ids
from dpr.formats.shard_groups import Metadata, are_rows_of_one_corpus, checked_metadata, require_compatible
from dpr.formats.sorted_hashes import first_duplicate
from dpr.formats.text_input import matching_paths
from dpr.storage.checksums import file_state, folder_problems, is_remembered, remember, require_unchanged
from dpr.storage.durable import (
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
from dpr.storage.leftovers import remove_leftovers

_UNFINISHED = "shard.json"
_CHUNK_FILE = re.compile(r"(?:vectors|scales|ids)-(\d{5,})\.npy")
_MARKER = re.compile(r"chunk-(\d{5,})\.json")
_COUNTS = ("num_vectors", "num_chunks")
_DECODED_ROWS = 8192
_PLAIN_ROWS = 65536
_KEPT = "rerun the same command where it can be written; finished chunks are kept"


class VectorShardWriter:
    """Writes one shard, chunk by chunk, in any order; resumes what an earlier, killed writer of the same metadata left.

    A finished shard is verified first; a damaged one becomes unfinished again, and its damaged chunks have to be rewritten.

    Raises:
        InputError: ``target`` holds a shard with other metadata (the message names the difference), or something else.
    """

    def __init__(self, target: Path, *, metadata: Metadata, dimension: int, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}: vectors are stored as {', '.join(DTYPES)}")
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
        return {number for number, files in self._entries().items() if self._is_intact(number, files)}

    def _is_intact(self, number: int, files: dict[str, Any]) -> bool:
        try:
            return set(files) == set(_files(self.dtype, number)) and all(describe_file(self.target / name) == files[name] for name in files)
        except OSError:
            return False

    def write_chunk(self, number: int, ids: list[str], vectors: np.ndarray) -> None:
        """Stores a chunk durably: ``vectors`` (n, D), one id per row.

        Raises:
            InputError: rows that are not finite or all zero (count and first ids), or an id that is empty, too long or occurs twice.
            OutputError: the chunk cannot be written.
        """
        if vectors.shape != (len(ids), self.dimension) or not ids:
            raise ValueError(f"chunk {number}: {len(ids)} ids and vectors of shape {vectors.shape}, dimension {self.dimension}")
        arrays, bad, zero = encode(vectors, self.dtype)
        for rows, what in ((bad, f"not finite as {self.dtype}"), (zero, "all zero")):
            if count := int(rows.sum()):
                first = ", ".join(ids[row] for row in np.flatnonzero(rows)[:5])
                found = f"chunk {number}: {count} of {len(ids)} vectors are {what}, first ids: {first}"
                raise InputError(found, file=self.target, hint="check the model; out_dtype=float32 holds larger numbers than float16")
        encoded = [key.encode() for key in ids]
        if any(not 0 < len(key) <= MAX_ID_BYTES or b"\0" in key for key in encoded):
            found = f"chunk {number}: an id is empty, longer than {MAX_ID_BYTES} bytes, or holds a NUL character"
            raise InputError(found, file=self.target)
        if len(set(ids)) != len(ids):
            ((repeated, _),) = Counter(ids).most_common(1)
            raise InputError(f"chunk {number}: the id {repeated!r} occurs twice", file=self.target, expected="unique ids")
        arrays["ids"] = pack_ids(lambda: [np.array(encoded, dtype=bytes)])
        with writing(self.target, hint=_KEPT):
            if self.is_complete():
                self._reopen()
            marker = self.target / _marker(number)
            marker.unlink(missing_ok=True)
            files = {}
            for name, file in zip((*array_names(self.dtype), "ids"), _files(self.dtype, number), strict=True):
                with durable_file(self.target / file, "wb") as out:
                    np.lib.format.write_array(out, arrays[name], allow_pickle=False)
                files[file] = describe_file(self.target / file)
            write_json(marker, {"files": files, "rows": len(ids)})

    def finish(self, num_chunks: int | None = None) -> None:
        """Writes the manifest. Call once, when all chunks are written by whichever process; a second call changes nothing.

        Raises:
            InputError: chunks are missing, counted from 0 to the highest one or to ``num_chunks`` (which may be 0: the last of many
                shards of a small corpus is empty).
            OutputError: the manifest cannot be written.
        """
        if self.is_complete():
            return
        markers = self._markers()
        if num_chunks is None:
            num_chunks = max(markers, default=0) + 1
        missing = sorted(set(range(num_chunks)) - set(markers))
        if missing or len(markers) != num_chunks:
            found = f"{len(missing)} chunks are missing, first {missing[:5]}" if missing else f"{len(markers)} chunks, not {num_chunks}"
            raise InputError(found, file=self.target, hint="rerun the same command to write them")
        num_vectors = sum(marker["rows"] for marker in markers.values())
        files = {name: entry for number in sorted(markers) for name, entry in markers[number]["files"].items()}
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
            with suppress(InputError):
                rows = len(PackedIds.mapped(self.target / _file("ids", number)))
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
        return {number: marker["files"] for number, marker in self._markers().items()}

    def _markers(self) -> dict[int, dict[str, Any]]:
        """Contents of the markers by chunk; damaged ones do not count."""
        markers = {}
        for path in self.target.iterdir():
            if match := _MARKER.fullmatch(path.name):
                with suppress(InputError):
                    marker = read_json(path)
                    is_valid = isinstance(marker, dict) and isinstance(marker.get("files"), dict) and isinstance(marker.get("rows"), int)
                    if is_valid and marker["files"]:
                        markers[int(match[1])] = marker
        return markers

    def _refuse_other_metadata(self, found: Any, state: str) -> None:
        found = {key: value for key, value in found.items() if key not in _COUNTS} if isinstance(found, dict) else {}
        for key in sorted(set(found) | set(self.metadata)):
            if found.get(key) != self.metadata.get(key):
                problem = f"holds {state} vectors with {key}={found.get(key)!r}, this run has {self.metadata.get(key)!r}"
                raise InputError(problem, file=self.target, hint="choose another out_file, or remove the folder")


class VectorShard:
    """A finished shard, memory-mapped. ``verify`` compares the SHA-256 of all files, which reads them unless an earlier verification did.

    Raises:
        InputError: unfinished, damaged, or not a vector shard.
    """

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        self.path = Path(path)
        if self.path.is_dir() and (self.path / _UNFINISHED).is_file() and not (self.path / MANIFEST).is_file():
            raise InputError("these vectors are unfinished", file=self.path, hint="run the embedding command again to finish them")
        self._seen = file_state(self.path / MANIFEST) if (self.path / MANIFEST).exists() else ()
        manifest = read_manifest(self.path)
        self.metadata = checked_metadata(manifest["metadata"], self.path / MANIFEST)
        self.num_vectors, self.dimension = int(self.metadata["num_vectors"]), int(self.metadata["dimension"])
        self.dtype = str(self.metadata["dtype"])
        if self.dtype not in DTYPES or self.dimension < 1 or self.num_vectors < 0:
            raise InputError("the manifest is not one of a vector shard", file=self.path / MANIFEST)
        self._chunks = _by_chunk(manifest["files"], self.dtype)
        self._kept = lru_cache(1024)(self._arrays)
        self._ends: np.ndarray | None = None  # of chunks, once it is asked for rows
        problems = folder_problems(self.path) if verify else []
        # A writer that was stopped right after the manifest leaves its markers behind, which is harmless.
        problems = [problem for problem in problems if not (problem.startswith(_UNFINISHED) or _MARKER.match(problem))]
        if sorted(self._chunks) != list(range(len(self._chunks))):
            problems.append("chunk numbers are not consecutive")
        if problems:
            more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
            raise InputError(problems[0] + more, file=self.path, hint="run the embedding command again, it rewrites damaged chunks")

    def __len__(self) -> int:
        return self.num_vectors

    def ids_sha256(self) -> str:
        """A hash of the files that hold the ids."""
        return text_sha256(json.dumps([files[_file("ids", number)]["sha256"] for number, files in self._chunks.items()]))

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids (n,) of dtype 'S' and vectors (n, D) in order: memory-mapped, some rows at a time; codes as float32."""
        for number in self._chunks:
            ids, arrays = self._arrays(number)
            rows = _DECODED_ROWS if is_coded(self.dtype) else _PLAIN_ROWS
            for start in range(0, len(ids), rows):
                part = {name: array[start : start + rows] for name, array in arrays.items()}
                yield ids[start : start + rows], decode(part, self.dtype, self.dimension)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n,) and vectors (n, D) at these rows, n at least 1, which ascend; nothing else is read."""
        if self._ends is None:
            self._ends = self._chunk_ends()
        of, found = np.searchsorted(self._ends, rows, side="right"), []
        for number in np.unique(of).tolist():
            ids, arrays = self._kept(number)
            start, end = self._ends[number - 1] if number else 0, self._ends[number]
            if len(ids) != end - start:
                raise InputError(f"chunk {number} has {len(ids)} ids", file=self.path, expected=str(end - start))
            part = rows[of == number] - start
            found.append((ids[part], decode({name: array[part] for name, array in arrays.items()}, self.dtype, self.dimension)))
        return np.concatenate([ids for ids, _ in found]), np.concatenate([vectors for _, vectors in found])

    def _chunk_ends(self) -> np.ndarray:
        """The rows where chunks end. In an embedding all but the last are of one size; otherwise each is looked into."""
        size, num_chunks = self.metadata.get("chunk_size"), len(self._chunks)
        if isinstance(size, int) and size > 0 and num_chunks == -(-self.num_vectors // size):
            return np.minimum(size * np.arange(1, num_chunks + 1), self.num_vectors)
        return np.cumsum([len(ids) for ids in self._mapped_ids()])

    def _arrays(self, number: int) -> tuple[PackedIds, dict[str, np.ndarray]]:
        """Ids and arrays of a chunk, memory-mapped."""
        ids = PackedIds.mapped(self.path / _file("ids", number))
        files = {name: self.path / _file(name, number) for name in array_names(self.dtype)}
        arrays = {name: map_vectors(file, name, self.dtype, self.dimension) for name, file in files.items()}
        for name, array in arrays.items():
            if len(ids) != len(array):
                raise InputError(f"chunk {number} has {len(ids)} ids and {len(array)} {name}", file=self.path)
        require_unchanged(self.path / MANIFEST, self._seen)  # it goes before other files take the place of these
        return ids, arrays

    def id_chunks(self) -> Iterator[np.ndarray]:
        """Ids (n,) of dtype 'S', in order, some rows at a time."""
        for ids in self._mapped_ids():
            yield from ids.chunks()

    def _mapped_ids(self) -> Iterator[PackedIds]:
        return (PackedIds.mapped(self.path / _file("ids", number)) for number in self._chunks)


def open_shards(patterns: Sequence[str | Path], *, verify: bool = True, allow_missing: bool = False) -> list[VectorShard]:
    """The shards that paths and patterns name, in natural order (X_2 before X_10), checked to belong together.

    Raises:
        InputError: nothing matches; a shard is unfinished or damaged, a number of its ``num_shards`` is missing (unless
            ``allow_missing``), models or settings differ, an id occurs twice.
    """
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        found = matching_paths(pattern)
        if not found:
            raise InputError("no vectors found", file=pattern, hint="generate_embeddings.py writes them as <out_file>_<shard_id>")
        paths += sorted(found, key=_natural_key)
    paths = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1)) as pool:  # hashing works outside the interpreter's lock
        shards = list(pool.map(partial(VectorShard, verify=verify), paths))
    require_compatible([(shard.path, shard.metadata) for shard in shards], allow_missing=allow_missing)
    if not are_rows_of_one_corpus([shard.metadata for shard in shards]):
        _require_unique_ids(shards)
    return shards


def _require_unique_ids(shards: Sequence[VectorShard]) -> None:
    """Raises InputError if an id occurs twice. What was proved once for the same files is not proved again."""
    proved = [shard.ids_sha256() for shard in shards]
    if is_remembered("unique ids", proved):
        return
    if (duplicate := first_duplicate([shard.id_chunks for shard in shards])) is not None:
        shown = ", ".join(str(shard.path) for shard in shards[:4])
        raise InputError(f"the passage id {duplicate!r} occurs twice in these vectors", file=shown)
    remember("unique ids", proved)


def _natural_key(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _marker(number: int) -> str:
    return f"chunk-{number:05d}.json"


def _file(name: str, number: int) -> str:
    return f"{name}-{number:05d}.npy"


def _files(dtype: str, number: int) -> list[str]:
    return [_file(name, number) for name in (*array_names(dtype), "ids")]


def _by_chunk(files: dict[str, dict[str, Any]], dtype: str) -> dict[int, dict[str, Any]]:
    chunks: dict[int, dict[str, Any]] = {}
    for name, entry in files.items():
        if match := _CHUNK_FILE.fullmatch(name):
            chunks.setdefault(int(match[1]), {})[name] = entry
    return {number: entries for number, entries in sorted(chunks.items()) if len(entries) == len(_files(dtype, 0))}
