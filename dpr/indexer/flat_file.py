"""A flat inner-product index in faiss's file format, written as a stream: faiss itself would hold all vectors in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError


def flat_header(dimension: int, num_vectors: int) -> bytes:
    """The bytes of the file before its vectors, which follow as float32, row by row.

    They are those of an empty index, with the number of vectors (after a tag and the dimension) and of floats (at the end) put in.
    """
    import faiss

    empty = faiss.serialize_index(faiss.IndexFlatIP(dimension)).tobytes()
    one = faiss.IndexFlatIP(dimension)
    one.add(np.zeros((1, dimension), dtype=np.float32))
    tag, counted, other, size = empty[:8], struct.pack("<q", num_vectors), empty[16:-8], struct.pack("<Q", num_vectors * dimension)
    if faiss.serialize_index(one).tobytes()[: len(empty)] != tag + struct.pack("<q", 1) + other + struct.pack("<Q", dimension):
        raise InputError("this version of faiss writes flat indexes in an unknown way", expected="faiss-cpu 1.13 to 1.15")
    return tag + counted + other + size


def open_flat(file: Path) -> Any:
    """The index, its vectors memory-mapped.

    Raises:
        InputError: faiss cannot read it.
    """
    import faiss

    try:
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise InputError(f"faiss cannot read it ({str(error).splitlines()[-1]})", file=file) from None
