"""Exact search is exact: against a slow sort, with ties, in any blocking."""

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.core.errors import InputError
from dpr.indexer import exact
from dpr.indexer.exact import ExactIndex, rounding_error
from dpr.indexer.ranking import RunningTopK, SearchResult, encode_ids, to_rankings
from dpr.indexer.vectors import ArraySource, PrefixedSource, blocks, paired_dots
from tests.helpers.indexes import exact_index


def slow_top_k(
    ids: list[str], vectors: np.ndarray, queries: np.ndarray, k: int
) -> list[list[tuple[str, float]]]:
    scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    return [
        sorted(zip(ids, row, strict=True), key=lambda hit: (-hit[1], hit[0]))[:k] for row in scores.tolist()
    ]


def corpus_with_ties(
    rng: np.random.Generator, num_vectors: int, dimension: int
) -> tuple[list[str], np.ndarray]:
    """Every vector occurs about four times, and ids are in no particular order."""
    distinct = rng.standard_normal((num_vectors // 4 + 1, dimension)).astype(np.float32)
    vectors = distinct[rng.integers(0, len(distinct), num_vectors)]
    return [f"p{number}" for number in rng.permutation(num_vectors)], vectors


@pytest.mark.parametrize("block_rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("dimension", [1, 5, 48])
def test_equals_a_full_sort_with_ties_in_any_blocking(block_rows: int, dimension: int) -> None:
    rng = np.random.default_rng(dimension)
    ids, vectors = corpus_with_ties(rng, 203, dimension)
    queries = rng.standard_normal((6, dimension)).astype(np.float32)
    found = to_rankings(exact_index(ids, vectors, block_rows=block_rows).search(queries, 10))
    expected = slow_top_k(ids, vectors, queries, 10)
    assert found == expected
    tied = sum(first[1] == second[1] for ranking in expected for first, second in itertools.pairwise(ranking))
    assert tied > 5, "without ties the tie rule is not tested"


def same(found: SearchResult, expected: SearchResult) -> bool:
    return found[1] == expected[1] and found[0].tobytes() == expected[0].tobytes()


def test_blocks_tiles_and_shards_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A different number of rows may change the last bits of a float32 product; results must not show it."""
    rng = np.random.default_rng(0)
    ids, vectors = corpus_with_ties(rng, 400, 257)
    queries = rng.standard_normal((11, 257)).astype(np.float32)
    expected = exact_index(ids, vectors).search(queries, 50)
    shards = [
        ArraySource(encode_ids(ids[start : start + 160]), vectors[start : start + 160])
        for start in (320, 0, 160)
    ]
    monkeypatch.setattr(exact, "_TILE_ROWS", 4)
    for block_rows in (1, 3, 129):
        assert same(exact_index(ids, vectors, block_rows=block_rows).search(queries, 50), expected)
    assert same(ExactIndex(shards, block_rows=13).search(queries, 50), expected)


def test_the_order_of_the_corpus_does_not_change_the_result() -> None:
    """The worst order lets every passage be among the best for a while."""
    rng = np.random.default_rng(8)
    ids, vectors = corpus_with_ties(rng, 3000, 8)
    queries = np.abs(rng.standard_normal((3, 8))).astype(np.float32)
    expected = exact_index(ids, vectors).search(queries, 5)
    for direction in (1, -1):
        order = np.argsort(direction * (vectors @ queries[0]))
        found = exact_index([ids[row] for row in order], vectors[order], block_rows=700).search(queries, 5)
        assert same(found, expected)


def test_mapped_vectors_are_searched_without_a_copy_or_a_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    vectors = rng.standard_normal((50, 4)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    (_, block), *_ = blocks([ArraySource(encode_ids([str(row) for row in range(50)]), mapped)], 100)
    assert np.shares_memory(block, mapped)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = exact_index([str(row) for row in range(50)], mapped).search(vectors[:2], 1)
    assert found[1] == exact_index([str(row) for row in range(50)], vectors).search(vectors[:2], 1)[1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("num_vectors", "num_queries", "k"), [(5000, 50, 30), (9000, 1, 100), (40, 3, 100), (20_000, 300, 10)]
)
def test_what_a_gpu_does_finds_the_same_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, num_vectors: int, num_queries: int, k: int, seed: int
) -> None:
    """Places found by torch instead of numpy, and factors that may be rounded."""
    rng = np.random.default_rng(seed)
    ids, vectors = corpus_with_ties(rng, num_vectors, 24)
    queries = rng.standard_normal((num_queries, 24)).astype(np.float32)
    expected = exact_index(ids, vectors).search(queries, k)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setattr(exact, "may_round_factors", lambda: seed == 0)
    # its memory is elsewhere
    monkeypatch.setattr(torch.Tensor, "numpy", lambda self, real=torch.Tensor.numpy: real(self.clone()))
    index = exact_index(ids, vectors, block_rows=(700, 4096)[seed])
    for _ in range(2):  # the second search knows the lengths of the blocks
        found = index.search(queries, k)
        assert same(found, expected)


def test_products_whose_precision_torch_cannot_name_have_the_wider_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not exact.may_round_factors()

    def mixed() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert exact.may_round_factors()


@pytest.mark.gpu
def test_the_result_on_a_gpu_is_that_of_the_cpu_bit_for_bit() -> None:
    rng = np.random.default_rng(4)
    ids, vectors = corpus_with_ties(rng, 5000, 96)
    queries = rng.standard_normal((50, 96)).astype(np.float32)
    expected = exact_index(ids, vectors).search(queries, 30)
    found = exact_index(ids, vectors, device="cuda", block_rows=700).search(queries, 30)
    assert same(found, expected)


def test_fewer_passages_than_asked_gives_shorter_lists() -> None:
    scores, found = exact_index(["b", "a"], np.eye(2, dtype=np.float32)).search(np.array([[1.0, 2.0]]), 100)
    assert found == [["a", "b"]]
    assert scores.tolist() == [[2.0, 1.0]]


def test_half_precision_vectors_are_scored_as_stored() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((30, 8)).astype(np.float16)
    query = rng.standard_normal((1, 8)).astype(np.float32)
    ids = [str(number) for number in range(30)]
    assert to_rankings(exact_index(ids, vectors).search(query, 5)) == slow_top_k(ids, vectors, query, 5)


def test_infinity_in_a_query_and_another_dimension_are_refused() -> None:
    with pytest.raises(InputError, match="question 1"):
        exact_index(["x"], np.ones((1, 2), dtype=np.float32)).search(np.array([[1.0, 2.0], [np.inf, 0.0]]), 1)
    with pytest.raises(InputError, match=r"\[2, 3\]"):
        ExactIndex(
            [ArraySource(encode_ids(["a"]), np.ones((1, 2))), ArraySource(encode_ids(["b"]), np.ones((1, 3)))]
        )


def test_prefix_is_added_only_where_it_is_lacking() -> None:
    source = PrefixedSource(ArraySource(encode_ids(["1", "wiki:2"]), np.eye(2, dtype=np.float32)), "wiki:")
    _, found = ExactIndex([source]).search(np.array([[2.0, 1.0]]), 2)
    assert found == [["wiki:1", "wiki:2"]]


def test_running_top_k_keeps_longer_ids_whole() -> None:
    best = RunningTopK(1, 2)
    best.add(np.array([0]), np.array([1.0], dtype=np.float32), encode_ids(["a"]))
    best.add(np.array([0]), np.array([2.0], dtype=np.float32), encode_ids(["a-much-longer-id"]))
    assert best.result()[1] == [["a-much-longer-id", "a"]]


KINDS = ["float32", "medium"]


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch, "get_float32_matmul_precision", lambda: "medium" if kind == "medium" else "highest"
    )


def ids_of(rankings: list[list[tuple[str, float]]]) -> list[list[str]]:
    return [[name for name, _ in ranking] for ranking in rankings]


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
    rng = np.random.default_rng(64)
    ids, vectors = corpus_with_ties(rng, 600, 64)
    queries = rng.standard_normal((4, 64)).astype(np.float32)
    largest = []

    def disturbed(block: torch.Tensor, queries: torch.Tensor, out: torch.Tensor) -> None:
        error = rounding_error(queries.norm(dim=1), block.norm(dim=1).max(), 64)
        noise = (torch.rand(out.shape) * 2 - 1) * 0.99 * error
        largest.append(float(noise.abs().max()))
        out.copy_(block.double() @ queries.double().T + noise)

    monkeypatch.setattr(exact, "multiply", disturbed)
    found = exact_index(ids, vectors, block_rows=200).search(queries, 20)
    assert max(largest) > (0 if kind == "float32" else 0.1)
    assert found[1] == ids_of(slow_top_k(ids, vectors, queries, 20))


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
    rng = np.random.default_rng(16)
    ids, vectors = corpus_with_ties(rng, 3000, 16)
    queries = np.abs(rng.standard_normal((5, 16))).astype(np.float32)
    vectors = ((vectors + np.float32(shift)) * np.float32(scale)).astype(np.float32)
    index = exact_index(ids, vectors, block_rows=1000)
    for number in (5, 1, 2):  # the later ones know how long the vectors are
        found = index.search(queries[:number], 10)
        assert found[1] == ids_of(slow_top_k(ids, vectors, queries[:number], 10))


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
