"""int8 vectors: what is lost is bounded, and nothing else changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from dpr.core.errors import InputError
from dpr.formats.vector_shards import DTYPES, VectorShard, VectorShardWriter, decode, encode, open_shards
from dpr.indexer.exact import ExactIndex

_NUMBERS = st.floats(-(2.0**60), 2.0**60, width=32, allow_nan=False)


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    dimension = draw(st.integers(1, 70))
    vectors = draw(stn.arrays(np.float32, (draw(st.integers(1, 4)), dimension), elements=_NUMBERS))
    return vectors, draw(stn.arrays(np.float32, dimension, elements=_NUMBERS))


def _read(vectors: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    arrays, bad, zero = encode(vectors, dtype)
    kept = ~(bad | zero)
    return vectors[kept].astype(np.float64), decode(arrays)[kept].astype(np.float64)


@given(_pairs())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_an_int8_dot_product_is_within_the_documented_bound(pair: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, read = _read(pair[0], "int8")
    query = pair[1].astype(np.float64)
    bound = np.abs(query).sum() * np.abs(vectors).max(axis=1, initial=0) / 253.9
    assert (np.abs(vectors @ query - read @ query) <= bound).all()


def test_codes_take_a_quarter_of_float32(tmp_path: Path) -> None:
    size = sum(
        path.stat().st_size
        for path in _shard(tmp_path / "v_0", "int8", rows=500, dimension=256).glob("[vs]*-*.npy")
    )
    assert 1 <= size / (500 * 256) < 1.1  # scales and file headers


def _shard(
    target: Path, dtype: str, *, rows: int = 500, dimension: int = 48, start: int = 0, **metadata: Any
) -> Path:
    rng = np.random.default_rng(start)
    writer = VectorShardWriter(
        target, metadata={"model_fingerprint": "m", **metadata}, dimension=dimension, dtype=dtype
    )
    for number, first in enumerate(range(start, start + rows, 100)):
        writer.write_chunk(
            number,
            [f"p{row}" for row in range(first, first + 100)],
            rng.standard_normal((100, dimension)).astype("f4"),
        )
    writer.finish()
    return target


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_index_searches_what_was_stored(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.formats.vector_shards._DECODED_ROWS", 30)
    (shard,) = open_shards([_shard(tmp_path / "v_0", dtype)])
    ids, vectors = (np.concatenate(parts) for parts in zip(*shard.chunks(), strict=True))
    assert len(ids) == shard.num_vectors == 500
    queries = np.random.default_rng(9).standard_normal((7, 48)).astype("f4")
    expected = [
        [f"p{row}" for row in np.argsort(-line)[:5]] for line in queries.astype("f8") @ vectors.T.astype("f8")
    ]
    assert ExactIndex([shard], block_rows=64).search(queries, 5)[1] == expected


def test_vectors_of_all_number_types_are_searched_together(tmp_path: Path) -> None:
    for place, dtype in enumerate(DTYPES):
        _shard(tmp_path / f"v_{dtype}", dtype, start=1000 * place, rows=100)
    assert len(open_shards([tmp_path / "v_*"])) == 3


@pytest.mark.parametrize(
    ("name", "array"),
    [("scales", np.ones((3, 1), "f4")), ("scales", np.ones(3)), ("vectors", np.ones((3, 48), "f4"))],
)
def test_arrays_of_another_shape_or_type_are_refused(tmp_path: Path, name: str, array: np.ndarray) -> None:
    target = _shard(tmp_path / "v_0", "int8", rows=100)
    np.save(target / f"{name}-00000.npy", array)
    with pytest.raises(InputError, match=rf"{name}-00000\.npy: holds float"):
        list(VectorShard(target, verify=False).chunks())
