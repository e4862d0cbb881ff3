"""Index files of faiss, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpr.core.errors import InputError


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
