"""Vectors of a run against others of the same passages: folders of vectors, and embedding files of the original."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.formats.reproduction_figures import largest_difference
from dpr.formats.vector_shards import VectorShardWriter

METADATA = {"model_fingerprint": "x", "shard_id": 0, "num_shards": 1}


def write_shard(folder: Path, ids: list[str], vectors: np.ndarray) -> str:
    writer = VectorShardWriter(folder, metadata=METADATA, dimension=vectors.shape[1])
    writer.write_chunk(0, ids, vectors)
    writer.finish()
    return str(folder)


def test_the_largest_difference_of_a_number_is_found_whatever_the_order_and_the_format(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors, numbers = rng.normal(size=(50, 8)).astype(np.float32), np.arange(50)
    own = write_shard(tmp_path / "own_0", [f"wiki:{number}" for number in numbers[:20]], vectors[:20])
    other, order = vectors.copy(), rng.permutation(50)
    other[7, 3] += 0.25
    other[30] += 9  # a passage that the run has no vector of
    shard = write_shard(tmp_path / "other_0", [f"wiki:{number}" for number in numbers[order]], other[order])
    assert largest_difference(own, shard) == pytest.approx(0.25, abs=1e-6)
    (tmp_path / "passages_0.pkl").write_bytes(pickle.dumps([(str(number), other[number]) for number in numbers[order]]))
    assert largest_difference(own, str(tmp_path / "passages_*.pkl")) == pytest.approx(0.25, abs=1e-6)
    assert largest_difference(own, own) == 0


def test_passages_that_are_not_there_and_another_width_are_refused(tmp_path: Path) -> None:
    own = write_shard(tmp_path / "own_0", ["1", "2"], np.ones((2, 4), np.float32))
    with pytest.raises(InputError, match="1 of 2 passages are not there"):
        largest_difference(own, write_shard(tmp_path / "few_0", ["2"], np.ones((1, 4), np.float32)))
    with pytest.raises(InputError, match="vectors of 5 numbers, expected 4"):
        largest_difference(own, write_shard(tmp_path / "wide_0", ["1", "2"], np.ones((2, 5), np.float32)))
