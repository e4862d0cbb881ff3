"""Index files of faiss are read without a trace in the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.indexer.faiss_files import read_engine


@pytest.mark.parametrize("mapped", [True, False])
def test_the_limit_of_the_process_is_left_as_it_was(tmp_path: Path, mapped: bool) -> None:
    import faiss
    import numpy as np

    file, usual = tmp_path / "index", faiss.get_deserialization_vector_byte_limit()
    index = faiss.IndexFlatIP(4)
    index.add(np.ones((3, 4), dtype=np.float32))
    faiss.write_index(index, str(file))
    assert read_engine(file, mapped=mapped).ntotal == 3
    assert faiss.get_deserialization_vector_byte_limit() == usual
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match="faiss cannot read it"):
        read_engine(file, mapped=mapped)
    assert faiss.get_deserialization_vector_byte_limit() == usual
