"""Saved indexes of faiss: the index, and the ids of its vectors beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.formats.arrays import PackedIds
from dpr.storage.durable import durable_file

INDEX_FILE, IDS_FILE = "index.faiss", "ids.npy"


def write_engine(folder: Path, engine: Any, ids: PackedIds) -> None:
    """Writes an index of faiss and its ids into an empty folder."""
    import faiss

    faiss.write_index(engine, str(folder / INDEX_FILE))
    with durable_file(folder / IDS_FILE, "wb") as out:
        np.save(out, ids.array, allow_pickle=False)


def read_engine(folder: Path) -> tuple[Any, PackedIds]:
    """An index of faiss and its ids, both mapped from their files. A damaged file that claims to hold more than
    it has is refused.

    Raises:
        InputError: faiss cannot read it, or there are more or fewer ids than vectors.
    """
    import faiss

    file = folder / INDEX_FILE
    usual = faiss.get_deserialization_vector_byte_limit()  # of the whole process
    faiss.set_deserialization_vector_byte_limit(file.stat().st_size)
    try:
        engine = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise InputError(f"faiss cannot read it ({str(error).splitlines()[-1]})", file=file) from None
    finally:
        faiss.set_deserialization_vector_byte_limit(usual)
    ids = PackedIds.mapped(folder / IDS_FILE)
    if len(ids) != engine.ntotal:
        raise InputError(f"{len(ids)} ids for {engine.ntotal} vectors", file=folder)
    return engine, ids
