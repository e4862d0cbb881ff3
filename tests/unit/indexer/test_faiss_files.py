"""Index files of faiss are read without a trace in the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.formats.arrays import PackedIds, pack_ids
from dpr.indexer.faiss_files import INDEX_FILE, read_engine, write_engine
from dpr.indexer.ranking import encode_ids


def test_the_limit_of_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    import faiss

    usual = faiss.get_deserialization_vector_byte_limit()
    index = faiss.IndexFlatIP(4)
    index.add(np.ones((3, 4), dtype=np.float32))
    write_engine(tmp_path, index, PackedIds(pack_ids(lambda: [encode_ids(["a", "b", "c"])])))
    assert read_engine(tmp_path)[0].ntotal == 3
    assert faiss.get_deserialization_vector_byte_limit() == usual
    file = tmp_path / INDEX_FILE
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match="faiss cannot read it"):
        read_engine(tmp_path)
    assert faiss.get_deserialization_vector_byte_limit() == usual
