"""Hashes of more ids than are sorted at a time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dpr.formats import id_hashes
from dpr.formats.id_hashes import HashIndex, mapped_hashes, rows_of_repeated


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_rows_are_found_by_hash_whatever_is_sorted_at_a_time(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_hashes, "_SORTED_AT_ONCE", 97)
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, size, dtype=np.uint64)
    hashes[size // 2 :] = rng.choice(
        np.append(hashes, np.array([0, 2**64 - 1], dtype=np.uint64)), size - size // 2
    )
    HashIndex.write(tmp_path / "ids.npy", hashes)
    index = HashIndex(tmp_path / "ids.npy")
    rows = {int(value): np.flatnonzero(hashes == value).tolist() for value in np.unique(hashes)}
    assert {value: list(index.rows(value)) for value in rows} == rows
    assert rows_of_repeated(hashes) == sorted(row for same in rows.values() for row in same if len(same) > 1)


def test_memory_does_not_grow_with_the_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_hashes, "_SORTED_AT_ONCE", 1000)
    count = 50_000
    (tmp_path / "hashes").write_bytes(np.random.default_rng(0).bytes(8 * count))
    tracemalloc.start()
    with open(tmp_path / "hashes", "a+b") as file:
        hashes = mapped_hashes(file)
        HashIndex.write(tmp_path / "ids.npy", hashes)
        assert not rows_of_repeated(hashes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(hashes) == count
    assert peak < 4 * count  # bytes
