"""Ids of vectors as files hold them, and whether shards may be searched together: one model, one encoding, nothing missing, no id twice.

float32, float16 and int8 go together: their scores are those of the same vectors to within a fraction of a percent. Of single bits an error
remains that is larger than the differences between good passages, so they are compared with each other only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES

_MUST_AGREE = {
    "model_fingerprint": "made with another model",
    "settings_fingerprint": "made with other tokenizer or encoder settings",
    "encoder_type": "made with the other tower",
    "similarity": "made for another similarity",
    "dimension": "of another dimension",
}


def check_shards_belong_together(shards: Sequence[tuple[Path, dict[str, Any]]], *, allow_missing: bool = False) -> None:
    """Checks the metadata of shards against each other.

    Raises:
        InputError: names two shards that differ, or the numbers of the shards that are missing.
    """
    first_path, first = shards[0]
    for path, metadata in shards[1:]:
        for key, what in _MUST_AGREE.items():
            if metadata.get(key) != first.get(key):
                found = f"these vectors are {what} than {first_path} ({key} {metadata.get(key)!r}, there {first.get(key)!r})"
                raise InputError(found, file=path, hint="embed the corpus again with one model")
        if (metadata.get("dtype") == "binary") != (first.get("dtype") == "binary"):
            found = f"these vectors are {metadata.get('dtype')}, those of {first_path} {first.get('dtype')}"
            raise InputError(found, file=path, hint="binary vectors are searched with binary ones only; embed all with one out_dtype")
    groups: dict[tuple[Any, ...], dict[int, Path]] = {}
    for path, metadata in shards:
        if isinstance(metadata.get("num_shards"), int) and isinstance(metadata.get("shard_id"), int):
            key_of_corpus = tuple(metadata.get(key) for key in ("corpus", "corpus_fingerprint", "id_prefix", "num_shards"))
            groups.setdefault(key_of_corpus, {})[metadata["shard_id"]] = path
    for group, members in groups.items():
        missing = sorted(set(range(group[-1])) - set(members))
        if missing and not allow_missing:
            shown = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
            found = f"of {group[-1]} shards, these are missing: {shown}"
            raise InputError(found, file=next(iter(members.values())), hint="embed them, or pass all of them")


def map_array(path: Path) -> np.ndarray:
    """A ``.npy`` file, memory-mapped: what its header claims is held against the size of the file, and nothing is allocated for it.

    Raises:
        InputError: it is missing, damaged, or holds objects.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy lets Python's own tokenizer fail over a damaged header
        raise InputError(f"cannot be read ({error})", file=path) from None
    return array


def map_ids(path: Path) -> np.ndarray:
    """Ids (n,), fixed-width UTF-8, of a ``.npy`` file; see ``map_array``.

    Raises:
        InputError: it cannot be read, or holds anything but texts of at most MAX_ID_BYTES bytes.
    """
    ids = map_array(path)
    if ids.ndim != 1 or ids.dtype.kind != "S" or not 1 <= ids.dtype.itemsize <= MAX_ID_BYTES:
        raise InputError(
            f"holds {ids.dtype} {ids.shape}", file=path, expected=f"one row of byte strings, at most {MAX_ID_BYTES} bytes each"
        )
    return np.asarray(ids)


def first_duplicate(sources: Sequence[Callable[[], Iterator[np.ndarray]]]) -> str | None:
    """The first id that occurs twice in arrays of byte strings. Holds 16 bytes per id; the sources are read a second time if needed."""
    hashes = [hash_ids(ids) for source in sources for ids in source()]
    if not hashes:
        return None
    ordered = np.concatenate(hashes)
    hashes.clear()
    ordered.sort()
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(suspects):
        return None
    seen: set[bytes] = set()
    for source in sources:
        for ids in source():
            for key in ids[np.isin(hash_ids(ids), suspects)].tolist():
                if key in seen:
                    return str(key.decode(errors="replace"))
                seen.add(key)
    return None


def hash_ids(ids: np.ndarray) -> np.ndarray:
    """64-bit hashes (uint64) of fixed-width byte strings; the width, that is, trailing NULs, makes no difference."""
    rows = np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), -1)
    state = np.full(len(ids), 0xCBF29CE484222325, dtype=np.uint64)
    for column in rows.T:
        mixed = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
        state = np.where(column != 0, mixed ^ (mixed >> np.uint64(29)), state)
    return state
