"""Index files of faiss: read, and a flat one written as a stream, of which faiss itself would hold all
vectors in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError


def flat_header(dimension: int, num_vectors: int) -> bytes:
    """The bytes of the file before its vectors, which follow as float32, row by row.

    They are those of an empty index, with the number of vectors (after a tag and the dimension) and of floats
    (at the end) put in.
    """
    import faiss

    empty = faiss.serialize_index(faiss.IndexFlatIP(dimension)).tobytes()
    one = faiss.IndexFlatIP(dimension)
    one.add(np.zeros((1, dimension), dtype=np.float32))
    tag, counted, other, size = (
        empty[:8],
        struct.pack("<q", num_vectors),
        empty[16:-8],
        struct.pack("<Q", num_vectors * dimension),
    )
    if faiss.serialize_index(one).tobytes()[: len(empty)] != tag + struct.pack("<q", 1) + other + struct.pack(
        "<Q", dimension
    ):
        raise InputError(
            "this version of faiss writes flat indexes in an unknown way", expected="faiss-cpu 1.13 to 1.15"
        )
    return tag + counted + other + size


def read_engine(file: Path, *, mapped: bool = True) -> Any:
    """An index of faiss; ``mapped``: its vectors stay in the file. A damaged file that claims to hold more
    than it has is refused.

    Raises:
        InputError: faiss cannot read it.
    """
    import faiss

    usual = faiss.get_deserialization_vector_byte_limit()  # of the whole process
    faiss.set_deserialization_vector_byte_limit(file.stat().st_size)
    try:
        return faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC if mapped else 0)
    except RuntimeError as error:
        raise InputError(f"faiss cannot read it ({str(error).splitlines()[-1]})", file=file) from None
    finally:
        faiss.set_deserialization_vector_byte_limit(usual)
