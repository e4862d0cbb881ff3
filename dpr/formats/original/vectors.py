"""The original DPR's embedding files: a pickled list of (id, float32 vector), read as data. The whole file is
held in memory."""

from __future__ import annotations

import mmap
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import MAX_ID_BYTES
from dpr.formats.arrays import ArraySource
from dpr.formats.original.inert_pickle import MalformedPickle, Record, load_vectors
from dpr.storage.durable import describe_file

EXPECTED = "an embedding file of the original DPR, a list of (id, float32 vector)"

_RECONSTRUCT = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_FROM_BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}
_NAMES = {*_RECONSTRUCT, *_FROM_BUFFER, "numpy.ndarray", "numpy.dtype"}


class PickledVectors(ArraySource):
    """Ids and vectors of one file.

    Raises:
        InputError: the file is damaged, or holds anything else; nothing in it is run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            if size == 0:
                raise MalformedPickle("the file is empty")
            with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                items = load_vectors(mapped, _NAMES.__contains__)
            ids, vectors = _arrays(items, size)
            super().__init__(ids, vectors)
        except MalformedPickle as error:
            raise InputError(f"{error}; nothing in it was run", file=self.path, expected=EXPECTED) from None
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})", file=self.path) from None

    @cached_property
    def digest(self) -> str:
        """Returns SHA-256 of the file."""
        return str(describe_file(self.path)["sha256"])


def _arrays(items: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids (n,) and vectors (n, D). ``size``, of the file, bounds both, since a pickle may hold a
    value once and refer to it a million times."""
    if not isinstance(items, list) or not items:
        raise MalformedPickle("the file does not hold a list, or an empty one")
    ids: list[bytes] = []
    vectors = np.empty((0, 0), dtype=np.float32)
    for row, item in enumerate(items):
        if not isinstance(item, tuple) or len(item) < 2 or type(item[0]) not in (str, int):
            raise MalformedPickle(f"entry {row} is not an (id, vector)")
        key = str(item[0]).encode("utf-8", "replace")
        if not 0 < len(key) <= MAX_ID_BYTES or b"\0" in key:
            raise MalformedPickle(
                f"the id of entry {row} is empty, longer than {MAX_ID_BYTES} bytes, or holds a NUL character"
            )
        ids.append(key)
        vector = _vector(item[1], row)
        if row == 0:
            if len(items) * len(vector) * 4 > size:
                raise MalformedPickle(
                    f"{len(items)} vectors of {len(vector)} numbers are more than the file's {size} bytes can"
                    " hold"
                )
            vectors = np.empty((len(items), len(vector)), dtype=np.float32)
        if len(vector) != vectors.shape[1]:
            raise MalformedPickle(f"entry {row} has {len(vector)} numbers, the first has {vectors.shape[1]}")
        vectors[row] = vector
    return np.array(ids), vectors


def _vector(value: Any, row: int) -> np.ndarray:
    data = shape = dtype = None
    if isinstance(value, Record):
        if value.of in _RECONSTRUCT and isinstance(value.state, tuple) and len(value.state) == 5:
            _, shape, dtype, _, data = value.state
        elif value.of in _FROM_BUFFER and len(value.arguments) == 4:
            data, dtype, shape, _ = value.arguments
    is_float32 = (
        isinstance(dtype, Record)
        and dtype.of == "numpy.dtype"
        and dtype.arguments[:1] == ("f4",)
        and isinstance(dtype.state, tuple)
        and dtype.state[1:2] == ("<",)
    )
    if is_float32 and isinstance(data, bytes | bytearray) and isinstance(shape, tuple) and len(shape) <= 8:
        sizes = [size for size in shape if size != 1] or [1]
        if sizes == [len(data) / 4]:
            return np.frombuffer(data, dtype="<f4")
    raise MalformedPickle(f"entry {row} does not hold a float32 vector")
