"""What names the candidates of exact search: bounds that hold, in either precision, and ways that do not
change the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpr.indexer import exact
from dpr.indexer.exact import ExactIndex, Products, kth_at_least
from dpr.indexer.vectors import paired_dots

KINDS = ["float32", "medium", "bfloat16"]


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32, in float32 whose inputs may be rounded, or in bfloat16; for few questions too."""
    monkeypatch.setattr(exact, "bfloat16_is_faster", lambda: kind == "bfloat16")
    monkeypatch.setattr(exact, "_MANY_QUERIES", 1)
    monkeypatch.setattr(
        torch, "get_float32_matmul_precision", lambda: "medium" if kind == "medium" else "highest"
    )


def corpus(num_vectors: int, dimension: int, num_queries: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Every vector occurs about four times, so that there are ties."""
    rng = np.random.default_rng(dimension)
    distinct = rng.standard_normal((num_vectors // 4 + 1, dimension)).astype(np.float32)
    vectors = distinct[rng.integers(0, len(distinct), num_vectors)]
    return (
        [str(row) for row in rng.permutation(num_vectors)],
        vectors,
        rng.standard_normal((num_queries, dimension)).astype(np.float32),
    )


def slow_search(ids: list[str], vectors: np.ndarray, queries: np.ndarray, k: int) -> list[list[str]]:
    scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    return [[name for _, name in sorted(zip(-row, ids, strict=True))[:k]] for row in scores]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 7, 8, 100, 1001])
def test_the_bound_of_the_kth_score_is_reached_by_k_and_by_few_more(rows: int, kind: torch.dtype) -> None:
    scores = (torch.rand(rows, 5, generator=torch.Generator().manual_seed(0)) + 1).to(kind)
    bound = kth_at_least(scores.view(torch.int16) if kind == torch.bfloat16 else scores, 7)
    assert ((scores >= bound).sum(dim=0) >= min(7, rows)).all()
    assert ((scores > bound).sum(dim=0) <= 14).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_rounding_bound_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kind, monkeypatch)
    rng = np.random.default_rng(5)
    queries, block = (
        torch.from_numpy(rng.standard_normal((rows, 96)).astype(np.float32)) for rows in (20, 500)
    )
    tile, known = slice(0, 20), dict[bool, torch.Tensor]()
    multiplied = Products(queries, 5, block_rows=500, tile_rows=20)
    multiplied.load(block, known)
    result = torch.empty(500, 20, dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32)
    multiplied.multiply(tile, 0, result)
    multiplied.candidates(tile, torch.full((20,), -torch.inf))
    assert set(known) == {kind == "bfloat16"}
    if kind == "medium":
        result = queries.bfloat16().float().matmul(block.bfloat16().float().T).T
    off = (result.double() - block.double() @ queries.double().T).abs()
    error = multiplied.rounding_error(tile, known[kind == "bfloat16"])
    of_result = result.double().abs() * 2.0**-8 if kind == "bfloat16" else 0.0
    assert (off <= error + of_result).all()
    assert off.max() > (1e-3 if kind != "float32" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_products_that_are_off_by_the_rounding_bound_do_not_change_the_result(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kind, monkeypatch)
    ids, vectors, queries = corpus(600, 64, 4)
    multiply = Products.multiply
    largest = []

    def disturbed(self: Products, tile: slice, number: int, out: torch.Tensor) -> None:
        multiply(self, tile, number, out)
        true = self._block[self._cells[number]].double() @ self._queries[tile].double().T
        noise = (torch.rand(true.shape) * 2 - 1) * 0.99 * self.rounding_error(tile, self._lengths[number])
        largest.append(float(noise.abs().max()))
        out.copy_(true + noise)

    monkeypatch.setattr(Products, "multiply", disturbed)
    found = ExactIndex.from_arrays(ids, vectors, block_rows=200).search(queries, 20)
    assert max(largest) > (0 if kind == "float32" else 0.1)
    assert found[1] == slow_search(ids, vectors, queries, 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rare", [1, 10**9])
def test_looking_into_groups_of_rows_and_looking_at_all_find_the_same(
    kind: str, rare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kind, monkeypatch)
    monkeypatch.setattr(exact, "_MANY_SCORES", 1)
    monkeypatch.setattr(exact, "_RARE", rare)
    monkeypatch.setattr(exact, "_CELL_BYTES", 1)  # the smallest cells: 1024 rows
    ids, vectors, queries = corpus(5000, 24, 6)
    for block_rows in (1600, 5000):
        assert ExactIndex.from_arrays(ids, vectors, block_rows=block_rows).search(queries, 12)[
            1
        ] == slow_search(ids, vectors, queries, 12)


@pytest.mark.parametrize(
    ("shift", "scale", "fits"),
    [
        (0.0, 1.0, True),
        (200.0, 1.0, False),
        (-200.0, 1.0, False),
        (0.0, 1e17, False),
        (0.0, 1e-6, True),
        (0.0, 1e-18, False),
        (0.0, 1e-42, False),
    ],
    ids=["plain", "all alike", "below zero", "very long", "short", "very short", "subnormal"],
)
def test_vectors_that_bfloat16_does_not_suit_are_found_all_the_same(
    shift: float, scale: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("bfloat16", monkeypatch)
    ids, vectors, queries = corpus(3000, 16, 5)
    vectors = ((vectors + np.float32(shift)) * np.float32(scale)).astype(np.float32)
    index = ExactIndex.from_arrays(ids, vectors, block_rows=1000)
    queries = np.abs(queries)
    assert index.search(queries, 10)[1] == slow_search(ids, vectors, queries, 10)
    assert (False not in index._lengths[0]) == fits


def test_what_a_search_finds_out_about_a_block_serves_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    use("bfloat16", monkeypatch)
    ids, vectors, queries = corpus(3000, 16, 40)
    index = ExactIndex.from_arrays(ids, vectors, block_rows=1000)
    for number in (40, 1, 3, 40, 2):
        monkeypatch.setattr(exact, "_MANY_QUERIES", 1 if number == 40 else 100)
        assert index.search(queries[:number], 10)[1] == slow_search(ids, vectors, queries[:number], 10)
    assert [set(index._lengths[block]) for block in range(3)] == [{True, False}] * 3


@pytest.mark.parametrize("dimension", [1, 7, 96, 1000])
def test_the_score_of_a_pair_does_not_depend_on_what_stands_beside_it(
    dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    queries, vectors = (rng.standard_normal((rows, dimension)).astype(np.float32) for rows in (9, 50))
    rows, columns = rng.integers(0, 9, 3000), rng.integers(0, 50, 3000)
    together = paired_dots(queries, rows, vectors, columns)
    monkeypatch.setattr("dpr.indexer.vectors._WIDE_VALUES", 3 * dimension)
    assert paired_dots(queries, rows, vectors, columns).tobytes() == together.tobytes()
    alone = [paired_dots(queries, rows[[pair]], vectors, columns[[pair]])[0] for pair in range(100)]
    assert np.array(alone).tobytes() == together[:100].tobytes()
