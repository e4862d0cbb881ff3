"""What names the candidates of exact search: bounds that hold, in either precision, and ways that do not
change the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpr.indexer import exact
from dpr.indexer.exact import kth_at_least, rounding_error
from dpr.indexer.vectors import paired_dots
from tests.helpers.indexes import exact_index

KINDS = ["float32", "medium"]


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32, or in float32 whose inputs may be rounded."""
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


@pytest.mark.parametrize("rows", [3, 7, 8, 100, 1001])
def test_the_bound_of_the_kth_score_is_reached_by_k_and_by_few_more(rows: int) -> None:
    scores = torch.rand(rows, 5, generator=torch.Generator().manual_seed(0)) + 1
    bound = kth_at_least(scores, 7)
    assert ((scores >= bound).sum(dim=0) >= min(7, rows)).all()
    assert ((scores > bound).sum(dim=0) <= 14).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_rounding_bound_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kind, monkeypatch)
    rng = np.random.default_rng(5)
    queries, block = (
        torch.from_numpy(rng.standard_normal((rows, 96)).astype(np.float32)) for rows in (20, 500)
    )
    result = torch.empty(500, 20)
    exact.multiply(block, queries, result)
    if kind == "medium":
        result = queries.bfloat16().float().matmul(block.bfloat16().float().T).T
    off = (result.double() - block.double() @ queries.double().T).abs()
    error = rounding_error(queries.norm(dim=1), block.norm(dim=1).max(), 96)
    assert (off <= error).all()
    assert off.max() > (1e-3 if kind == "medium" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_products_that_are_off_by_the_rounding_bound_do_not_change_the_result(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kind, monkeypatch)
    ids, vectors, queries = corpus(600, 64, 4)
    largest = []

    def disturbed(block: torch.Tensor, queries: torch.Tensor, out: torch.Tensor) -> None:
        error = rounding_error(queries.norm(dim=1), block.norm(dim=1).max(), 64)
        noise = (torch.rand(out.shape) * 2 - 1) * 0.99 * error
        largest.append(float(noise.abs().max()))
        out.copy_(block.double() @ queries.double().T + noise)

    monkeypatch.setattr(exact, "multiply", disturbed)
    found = exact_index(ids, vectors, block_rows=200).search(queries, 20)
    assert max(largest) > (0 if kind == "float32" else 0.1)
    assert found[1] == slow_search(ids, vectors, queries, 20)


@pytest.mark.parametrize(
    ("shift", "scale"),
    [(0.0, 1.0), (200.0, 1.0), (-200.0, 1.0), (0.0, 1e17), (0.0, 1e-6), (0.0, 1e-18), (0.0, 1e-42)],
    ids=["plain", "all alike", "below zero", "very long", "short", "very short", "subnormal"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_any_length_are_found(
    kind: str, shift: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kind, monkeypatch)
    ids, vectors, queries = corpus(3000, 16, 5)
    vectors = ((vectors + np.float32(shift)) * np.float32(scale)).astype(np.float32)
    index = exact_index(ids, vectors, block_rows=1000)
    queries = np.abs(queries)
    for number in (5, 1, 2):  # the later ones know how long the vectors are
        assert index.search(queries[:number], 10)[1] == slow_search(ids, vectors, queries[:number], 10)


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
