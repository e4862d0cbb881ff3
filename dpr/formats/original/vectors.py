"""The original DPR's embedding files: a pickled list of (id, float32 vector), read as data. The whole file is held in memory once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.durable import describe_file
from dpr.formats.original.inert_pickle import InertReader, MalformedPickle, Name, Record

EXPECTED = "an embedding file of the original DPR, a list of (id, float32 vector)"

_RECONSTRUCT = {Name("numpy.core.multiarray", "_reconstruct"), Name("numpy._core.multiarray", "_reconstruct")}
_FROM_BUFFER = {Name("numpy.core.numeric", "_frombuffer"), Name("numpy._core.numeric", "_frombuffer")}
ALLOWED = {*_RECONSTRUCT, *_FROM_BUFFER, Name("numpy", "ndarray"), Name("numpy", "dtype")}


class PickledVectors:
    """Ids and vectors of one file.

    Raises:
        InputError: the file is damaged, or holds anything else; nothing in it is run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                items = InertReader(file, limit=self.path.stat().st_size, allowed=ALLOWED.__contains__).load()
            self.ids, self.vectors = _arrays(items)
        except MalformedPickle as error:
            raise InputError(f"{error}; nothing in it was run", file=self.path, expected=EXPECTED) from None
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", file=self.path) from None

    @property
    def num_vectors(self) -> int:
        return len(self.ids)

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return str(describe_file(self.path)["sha256"])

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids (n,) of dtype 'S' and vectors (n, D), all at once."""
        yield self.ids, self.vectors


def _arrays(items: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(items, list) or not items:
        raise MalformedPickle("holds no list")
    ids: list[bytes] = []
    vectors: np.ndarray | None = None
    for row, item in enumerate(items):
        if not isinstance(item, tuple) or len(item) < 2 or isinstance(item[0], bool) or not isinstance(item[0], str | int):
            raise MalformedPickle(f"entry {row} is no (id, vector)")
        key = str(item[0]).encode("utf-8", "replace")
        if not key or b"\0" in key:
            raise MalformedPickle(f"entry {row} has an empty id, or one with a NUL character")
        ids.append(key)
        vector = _vector(item[1], row)
        if vectors is None:
            vectors = np.empty((len(items), len(vector)), dtype=np.float32)
        if len(vector) != vectors.shape[1]:
            raise MalformedPickle(f"entry {row} has {len(vector)} numbers, the first has {vectors.shape[1]}")
        vectors[row] = vector
    assert vectors is not None
    return np.array(ids), vectors


def _vector(value: Any, row: int) -> np.ndarray:
    if isinstance(value, Record) and value.of in _RECONSTRUCT and isinstance(value.state, tuple) and len(value.state) == 5:
        _, shape, dtype, _, data = value.state
    elif isinstance(value, Record) and value.of in _FROM_BUFFER and len(value.arguments) == 4:
        data, dtype, shape, _ = value.arguments
    else:
        raise MalformedPickle(f"entry {row} holds no vector")
    numbers = [size for size in shape if size != 1] if isinstance(shape, tuple) else []
    if not isinstance(data, bytes) or len(numbers) > 1 or not _is_float32(dtype) or len(data) != 4 * (numbers[0] if numbers else 1):
        raise MalformedPickle(f"entry {row} is no float32 vector")
    return np.frombuffer(data, dtype="<f4")


def _is_float32(dtype: Any) -> bool:
    if not isinstance(dtype, Record) or dtype.of != Name("numpy", "dtype") or not isinstance(dtype.state, tuple):
        return False
    return dtype.arguments[:1] == ("f4",) and dtype.state[1:2] == ("<",)
