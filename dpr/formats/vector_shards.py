"""Vectors of a part of a corpus: a folder of chunks (ids and vectors side by side) with a manifest that is
written last.

    X_0/vectors-00000.npy  (n, D) float32 or float16, readable with numpy.load(mmap_mode="r"); or codes of
    int8
        scales-00000.npy   (n,) float32, with codes only
        ids-00000.npy      (n,) fixed-width bytes, UTF-8; or, where that is smaller, offsets and bytes
        (dpr/formats/packed_ids.py)
        manifest.json      metadata, sizes and SHA-256 of all files; present means complete

Before the manifest is written, a chunk is a step (dpr/storage/steps.py): several processes may write
different chunks of one shard at the same time; one of them finishes it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.paths import matching_paths
from dpr.core.records import MAX_ID_BYTES, text_sha256
from dpr.formats.arrays import array_writers, map_array
from dpr.formats.id_hashes import first_duplicate
from dpr.formats.packed_ids import PackedIds, pack_ids
from dpr.storage.checksums import file_state, folder_problems, recalled, remember, require_unchanged
from dpr.storage.durable import MANIFEST, read_manifest, verify_folder
from dpr.storage.steps import CLAIM, RECORDS, Steps

DTYPES = ("float32", "float16", "int8")
_NUMBERS: dict[str, np.dtype[Any]] = {name: np.dtype(name).newbyteorder("<") for name in DTYPES}
_ROWS = 1024  # coded at a time: float64 takes more memory than the codes
_LEAST_SCALE = float(np.finfo(np.float32).smallest_normal)
_CHUNK_FILE = re.compile(r"(?:vectors|scales|ids)-\d{5,}\.npy")
_DECODED_ROWS = 8192
_PLAIN_ROWS = 65536

Metadata = dict[str, str | int | float | bool]

_MUST_AGREE = {
    "model_fingerprint": "made with another model",
    "settings_fingerprint": "made with other tokenizer or encoder settings",
    "encoder_type": "made with the other tower",
    "similarity": "made for another similarity",
    "dimension": "of another dimension",
}
_OF_CORPUS = ("corpus", "corpus_fingerprint", "id_prefix", "num_shards")


def array_names(dtype: str) -> tuple[str, ...]:
    """Returns names of the arrays that hold the vectors of a chunk."""
    return ("vectors", "scales") if dtype == "int8" else ("vectors",)


def encode(vectors: np.ndarray, dtype: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns arrays by name for vectors (n, D), n at least 1, and two masks (n,) of the rows that they
    cannot hold: not finite, and all zeros."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if dtype != "int8":
            stored = np.ascontiguousarray(vectors, dtype=_NUMBERS[dtype])
            return {"vectors": stored}, ~np.isfinite(stored).all(axis=1), np.asarray(~stored.any(axis=1))
        parts = [
            _coded(vectors[start : start + _ROWS].astype(np.float64))
            for start in range(0, len(vectors), _ROWS)
        ]
    codes, scales, is_bad, is_zero = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {"vectors": codes, "scales": scales}, is_bad, is_zero


def _coded(exact: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns codes, scales, and masks of the rows that they cannot hold: not finite, and all zeros."""
    scales = np.abs(exact).max(axis=1) / 127
    is_zero = ~exact.any(axis=1) | (scales < _LEAST_SCALE)
    stored = scales.astype("<f4")
    is_bad = ~np.isfinite(exact).all(axis=1) | (~np.isfinite(stored * np.float32(127)) & ~is_zero)
    is_kept = ~(is_bad | is_zero)
    ratios = np.where(is_kept[:, None], exact, 0) / np.where(is_kept, stored, 1).astype(np.float64)[:, None]
    return np.rint(ratios).clip(-127, 127).astype(np.int8), stored, is_bad, is_zero


def decode(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the vectors (n, D): the array itself for float32 and float16, else float32."""
    if "scales" not in arrays:
        return arrays["vectors"]
    return arrays["vectors"] * np.asarray(arrays["scales"])[:, None]


def map_vectors(path: Path, name: str, dtype: str, dimension: int) -> np.ndarray:
    """Maps one of ``array_names`` into memory.

    Raises:
        InputError: it cannot be read, or is of another type or shape.
    """
    array = map_array(path)
    expected = np.dtype("<f4") if name == "scales" else _NUMBERS[dtype]
    row = () if name == "scales" else (dimension,)
    if array.ndim != 1 + len(row) or array.shape[1:] != row or array.dtype != expected:
        shape = str(("n", *row)).replace("'", "")
        raise InputError(
            f"holds {array.dtype} {array.shape}", file=path, expected=f"{expected} of shape {shape}"
        )
    return array


class VectorShardWriter(Steps):
    """Writes one shard, chunk by chunk, in any order. Resumes the work of an earlier, killed writer of the
    same metadata.

    A finished shard is verified first; a damaged one becomes unfinished again, and its damaged chunks must be
    written again.

    Raises:
        InputError: ``folder`` holds a shard with other metadata (the message names the difference), or
        something else.
    """

    contents = "vectors"
    rename = "choose another out_file"

    def __init__(self, folder: Path, *, metadata: Metadata, dimension: int, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r}: vectors are stored as {', '.join(DTYPES)}")
        self.dimension = dimension
        self.dtype = dtype
        super().__init__(folder, {**metadata, "dimension": dimension, "dtype": dtype})
        if self.is_complete() and verify_folder(folder):
            self.reopen()

    def write_chunk(self, number: int, ids: list[str], vectors: np.ndarray) -> None:
        """Stores a chunk durably: ``vectors`` (n, D), one id per row.

        Raises:
            InputError: rows that are not finite or all zero (count and first ids), or an id that is empty,
            too long or occurs twice.
            OutputError: the chunk cannot be written.
        """
        if vectors.shape != (len(ids), self.dimension) or not ids:
            raise ValueError(
                f"chunk {number}: {len(ids)} ids and vectors of shape {vectors.shape}, dimension"
                f" {self.dimension}"
            )
        arrays, bad, zero = encode(vectors, self.dtype)
        for rows, what in ((bad, f"not finite as {self.dtype}"), (zero, "all zero")):
            if count := int(rows.sum()):
                first = ", ".join(ids[row] for row in np.flatnonzero(rows)[:5])
                found = f"chunk {number}: {count} of {len(ids)} vectors are {what}, first ids: {first}"
                raise InputError(
                    found,
                    file=self.folder,
                    hint="check the model; out_dtype=float32 holds larger numbers than float16",
                )
        encoded = [key.encode() for key in ids]
        if any(not 0 < len(key) <= MAX_ID_BYTES or b"\0" in key for key in encoded):
            found = f"an id is empty, longer than {MAX_ID_BYTES} bytes, or holds a NUL character"
            raise InputError(f"chunk {number}: {found}", file=self.folder)
        ((repeated, times),) = Counter(ids).most_common(1)
        if times > 1:
            raise InputError(f"chunk {number}: the id {repeated!r} occurs twice", file=self.folder)
        arrays["ids"] = pack_ids(lambda: [np.array(encoded, dtype=bytes)])
        if self.is_complete():
            self.reopen()
        files = {_file(name, number): array for name, array in arrays.items()}
        self.write_step(number, array_writers(files))

    def finish(self, num_chunks: int | None = None) -> None:
        """Writes the manifest. Call it once, when all chunks are written by whichever process; a second call
        changes nothing.

        Raises:
            InputError: chunks are missing, counted from 0 to the highest one or to ``num_chunks`` (which may
                be 0: the last of many shards of a small corpus is empty).
            OutputError: the manifest cannot be written.
        """
        if self.is_complete():
            return
        proofs = self.proofs()
        if num_chunks is None:
            num_chunks = max(proofs, default=0) + 1
        if list(proofs) != list(range(num_chunks)):
            missing = sorted(set(range(num_chunks)) - set(proofs))
            found = (
                f"{len(missing)} chunks are missing, first {missing[:5]}: {len(proofs)} of {num_chunks} exist"
            )
            raise InputError(found, file=self.folder, hint="rerun the same command to write them")
        num_vectors = sum(len(PackedIds.mapped(self.folder / _file("ids", number))) for number in proofs)
        self.write_manifest({**self.provenance, "num_vectors": num_vectors, "num_chunks": num_chunks})

    def _stated_in(self, metadata: dict[str, Any]) -> Any:
        return {key: metadata[key] for key in metadata if key not in ("num_vectors", "num_chunks")}


class VectorShard:
    """A finished shard, memory-mapped. ``verify`` compares the SHA-256 of all files, which reads them unless
    an earlier verification did.

    Raises:
        InputError: unfinished, damaged, or not a vector shard.
    """

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        self.path = Path(path)
        file = self.path / MANIFEST
        if (self.path / CLAIM).is_file() and not file.is_file():
            hint = "run the embedding command again to finish them"
            raise InputError("these vectors are unfinished", file=self.path, hint=hint)
        self._seen = file_state(file) if file.exists() else ()
        manifest = read_manifest(self.path)
        self.metadata: Metadata = manifest["metadata"]
        numbers = [self.metadata.get(key) for key in ("num_vectors", "dimension")]
        self.dtype = str(self.metadata.get("dtype"))
        if (
            not all(type(number) is int and number >= 0 for number in numbers)
            or self.dtype not in DTYPES
            or not all(isinstance(value, str | int | float | bool) for value in self.metadata.values())
        ):
            raise InputError("the manifest is not that of a vector shard", file=file)
        self.num_vectors = int(self.metadata["num_vectors"])
        self.dimension = int(self.metadata["dimension"])
        self._files = {
            name: entry for name, entry in manifest["files"].items() if _CHUNK_FILE.fullmatch(name)
        }
        names = (*array_names(self.dtype), "ids")
        self._chunks = range(len(self._files) // len(names))
        self._kept = lru_cache(1024)(self._arrays)
        self._ends: np.ndarray | None = None  # ends of chunks, filled when rows are first requested
        problems = folder_problems(self.path) if verify else []
        # A writer that was stopped right after the manifest leaves its markers behind, which is harmless.
        problems = [problem for problem in problems if not RECORDS.match(problem)]
        if self._files.keys() != {_file(name, number) for number in self._chunks for name in names}:
            problems.append("chunks are missing")
        if problems:
            more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
            hint = "run the embedding command again; it rewrites damaged chunks"
            raise InputError(problems[0] + more, file=self.path, hint=hint)

    def ids_sha256(self) -> str:
        """Returns a hash of the files that hold the ids."""
        return text_sha256(
            json.dumps([self._files[_file("ids", number)]["sha256"] for number in self._chunks])
        )

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields ids (n,) of dtype 'S' and vectors (n, D) in order: memory-mapped, some rows at a time; codes
        as float32."""
        for number in self._chunks:
            ids, arrays = self._arrays(number)
            rows = _DECODED_ROWS if self.dtype == "int8" else _PLAIN_ROWS
            for start in range(0, len(ids), rows):
                part = {name: array[start : start + rows] for name, array in arrays.items()}
                yield ids[start : start + rows], decode(part)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids (n,) and vectors (n, D) at these ascending rows, n at least 1. Nothing else is read."""
        if self._ends is None:
            self._ends = np.cumsum([len(ids) for ids in self._mapped_ids()])
        chunk_of = np.searchsorted(self._ends, rows, side="right")
        found_ids = []
        found = []
        for number in np.unique(chunk_of).tolist():
            ids, arrays = self._kept(number)
            part = rows[chunk_of == number] - (self._ends[number] - len(ids))
            found_ids.append(ids[part])
            found.append(decode({name: array[part] for name, array in arrays.items()}))
        return np.concatenate(found_ids), np.concatenate(found)

    def _arrays(self, number: int) -> tuple[PackedIds, dict[str, np.ndarray]]:
        """Returns ids and arrays of a chunk, memory-mapped."""
        ids = PackedIds.mapped(self.path / _file("ids", number))
        files = {name: self.path / _file(name, number) for name in array_names(self.dtype)}
        arrays = {name: map_vectors(file, name, self.dtype, self.dimension) for name, file in files.items()}
        for name, array in arrays.items():
            if len(ids) != len(array):
                raise InputError(f"chunk {number} has {len(ids)} ids and {len(array)} {name}", file=self.path)
        # it goes before other files take the place of these
        require_unchanged(self.path / MANIFEST, self._seen)
        return ids, arrays

    def id_chunks(self) -> Iterator[np.ndarray]:
        """Yields ids (n,) of dtype 'S', in order, some rows at a time."""
        for ids in self._mapped_ids():
            yield from ids.chunks()

    def _mapped_ids(self) -> Iterator[PackedIds]:
        return (PackedIds.mapped(self.path / _file("ids", number)) for number in self._chunks)


def open_shards(patterns: Sequence[str | Path]) -> list[VectorShard]:
    """Returns the shards that paths and patterns name, in natural order (X_2 before X_10), checked to belong
    together.

    Raises:
        InputError: nothing matches; a shard is unfinished or damaged, a number of its ``num_shards`` is
            missing, models or settings differ, an id occurs twice.
    """
    paths: list[Path] = []
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        matches = matching_paths(pattern)
        if not matches:
            hint = "generate_embeddings.py writes them as <out_file>_<shard_id>"
            raise InputError("no vectors found", file=pattern, hint=hint)
        # digits are compared as numbers
        paths += sorted(matches, key=lambda path: [part.zfill(9) for part in re.split(r"(\d+)", str(path))])
    paths = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing works outside the interpreter's lock
        shards = list(pool.map(VectorShard, paths))
    _require_compatible(shards)
    # A proof for the same files is not repeated.
    proved = [shard.ids_sha256() for shard in shards]
    if not recalled("unique ids", proved):
        if (duplicate := first_duplicate([shard.id_chunks for shard in shards])) is not None:
            shown = ", ".join(str(shard.path) for shard in shards[:4])
            raise InputError(f"the passage id {duplicate!r} occurs twice in these vectors", file=shown)
        remember("unique ids", proved, "unique")
    return shards


def _require_compatible(shards: Sequence[VectorShard]) -> None:
    """Raises InputError unless shards may be searched together: of one model and encoding, none missing.
    Scores of float32, float16 and int8 agree to within a fraction of a percent."""
    first = shards[0]
    for shard in shards[1:]:
        for key, what in _MUST_AGREE.items():
            here = shard.metadata.get(key)
            there = first.metadata.get(key)
            if here != there:
                found = f"these vectors are {what} than {first.path} ({key} {here!r}, there {there!r})"
                raise InputError(found, file=shard.path, hint="embed the corpus again with one model")
    groups: dict[tuple[Any, ...], dict[int, Path]] = {}
    for shard in shards:
        number = shard.metadata.get("shard_id")
        of_corpus = tuple(shard.metadata.get(key) for key in _OF_CORPUS)
        if isinstance(number, int) and isinstance(of_corpus[-1], int):
            groups.setdefault(of_corpus, {})[number] = shard.path
    for group, members in groups.items():
        missing = sorted(set(range(group[-1])) - set(members))
        if missing:
            shown = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
            found = f"of {group[-1]} shards, these are missing: {shown}"
            raise InputError(found, file=next(iter(members.values())), hint="embed them, or pass all of them")


def _file(name: str, number: int) -> str:
    return f"{name}-{number:05d}.npy"
