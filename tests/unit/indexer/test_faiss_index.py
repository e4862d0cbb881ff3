"""Faiss indexes answer like exact search, in dot products, and a damaged one is never read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import encode_ids
from dpr.indexer.registry import IndexChoice, index_class
from dpr.indexer.settings import ExactSettings, FlatSettings, GraphSettings
from dpr.indexer.store import IndexStore
from dpr.indexer.vectors import ArraySource
from dpr.storage.durable import read_manifest, write_manifest

SMALL = {
    "flat": IndexChoice("flat", FlatSettings()),
    "hnsw": IndexChoice("hnsw", GraphSettings(store_n=64, ef_search=512)),
    "hnsw_sq": IndexChoice("hnsw_sq", GraphSettings(store_n=64, ef_search=512)),
}


def make(num_vectors: int = 1500, dimension: int = 24) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Vectors of very different lengths, so that the nearest by L2 distance and the largest dot product
    differ."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((num_vectors, dimension)) * rng.uniform(0.5, 1.5, (num_vectors, 1))
    return (
        [f"p{number}" for number in range(num_vectors)],
        vectors.astype(np.float32),
        rng.standard_normal((40, dimension)).astype(np.float32),
    )


def sources_of(ids: list[str], vectors: np.ndarray, parts: int = 3) -> list[ArraySource]:
    edges = np.linspace(0, len(ids), parts + 1).astype(int)
    return [ArraySource(encode_ids(ids[start:stop]), vectors[start:stop]) for start, stop in pairwise(edges)]


def build(kind: str, ids: list[str], vectors: np.ndarray, parts: int = 3) -> Any:
    return IndexStore(SMALL[kind]).load_or_build(lambda: sources_of(ids, vectors, parts))


def saved(folder: Path, kind: str, vectors: np.ndarray) -> Any:
    """Built and saved, or opened when it is there."""
    ids = [f"p{number}" for number in range(len(vectors))]
    return IndexStore(SMALL[kind], folder=folder, source={"model_fingerprint": "abc"}).load_or_build(
        lambda: sources_of(ids, vectors)
    )


def test_flat_equals_exact_search_bit_for_bit() -> None:
    ids, vectors, queries = make()
    expected = ExactIndex.from_arrays(ids, vectors).search(queries, 20)
    found = build("flat", ids, vectors).search(queries, 20, query_rows=7)
    assert found[1] == expected[1]
    assert found[0].tobytes() == expected[0].tobytes()


@pytest.mark.parametrize("kind", ["hnsw", "hnsw_sq"])
def test_hnsw_finds_what_exact_search_finds_and_scores_are_dot_products(kind: str) -> None:
    ids, vectors, queries = make()
    _, expected = ExactIndex.from_arrays(ids, vectors).search(queries, 20)
    scores, found = build(kind, ids, vectors).search(queries, 20)
    recall = np.mean([len(set(ours) & set(truth)) / 20 for ours, truth in zip(found, expected, strict=True)])
    assert recall >= 0.95
    by_distance = [np.argsort(((vectors - query) ** 2).sum(axis=1))[:20] for query in queries]
    assert (
        np.mean(
            [
                len({ids[row] for row in near} & set(truth)) / 20
                for near, truth in zip(by_distance, expected, strict=True)
            ]
        )
        < 0.8
    )
    dots = np.array(
        [[query @ vectors[int(name[1:])] for name in row] for query, row in zip(queries, found, strict=True)]
    )
    np.testing.assert_allclose(
        scores, dots, rtol=1e-5 if kind == "hnsw" else 0.02, atol=1e-5 if kind == "hnsw" else 0.2
    )
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("kind", list(SMALL))
def test_more_passages_asked_than_there_are_gives_shorter_lists(kind: str) -> None:
    ids, vectors, queries = make(num_vectors=5)
    scores, found = build(kind, ids, vectors, parts=1).search(queries[:2], 100)
    assert [sorted(row) for row in found] == [sorted(ids)] * 2
    assert np.isfinite(scores).all()
    assert build(kind, ids, vectors).search(np.zeros((0, 24)), 3)[1] == []


def test_what_a_graph_cannot_reach_is_left_out_not_repeated() -> None:
    """faiss fills up with id -1, which as a list index would be the last passage."""
    ids, vectors, queries = make(num_vectors=400)
    sparse = IndexChoice("hnsw", GraphSettings(store_n=2, ef_construction=2))
    scores, found = IndexStore(sparse).load_or_build(lambda: sources_of(ids, vectors)).search(queries, 400)
    assert min(len(row) for row in found) < 400, "nothing was unreachable, so nothing was tested"
    for line, row in zip(scores, found, strict=True):
        assert len(set(row)) == len(row)
        assert np.isfinite(line[: len(row)]).all()
        assert np.isneginf(line[len(row) :]).all()


@pytest.mark.parametrize("kind", list(SMALL))
def test_a_saved_index_answers_the_same(kind: str, tmp_path: Path) -> None:
    _, vectors, queries = make(num_vectors=300)
    index, opened = saved(tmp_path / "index", kind, vectors), saved(tmp_path / "index", kind, vectors)
    assert opened.search(queries, 10)[1] == index.search(queries, 10)[1]


def test_a_saved_graph_is_searched_as_broadly_as_is_set_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids, vectors, queries = make()
    found = {}
    for breadth in (1, 512):
        choice = IndexChoice("hnsw", GraphSettings(store_n=4, ef_search=breadth))
        found[breadth] = (
            IndexStore(choice, folder=tmp_path / "index")
            .load_or_build(lambda: sources_of(ids, vectors))
            .search(queries, 1)[1]
        )
    truth = ExactIndex.from_arrays(ids, vectors).search(queries, 1)[1]
    right = {
        breadth: sum(ours == theirs for ours, theirs in zip(rows, truth, strict=True))
        for breadth, rows in found.items()
    }
    assert right[1] < right[512]
    IndexStore(IndexChoice("hnsw", GraphSettings(store_n=8)), folder=tmp_path / "index").load_or_build(None)
    assert "was built with store_n=4; store_n=8 has no effect on it" in caplog.text


def test_a_quantiser_learns_the_same_from_a_stream_as_from_all_vectors() -> None:
    import faiss

    ids, vectors, _ = make()
    index = build("hnsw_sq", ids, vectors)
    norms = (vectors.astype(np.float64) ** 2).sum(axis=1)
    augmented = np.hstack([vectors, np.sqrt(norms.max() - norms)[:, None]]).astype(np.float32)
    whole = faiss.IndexHNSWSQ(25, faiss.ScalarQuantizer.QT_8bit, 64)
    whole.train(augmented)
    learned = [
        faiss.vector_to_array(faiss.downcast_index(engine.storage).sq.trained)
        for engine in (whole, index._engine)
    ]
    np.testing.assert_allclose(learned[1], learned[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["index.faiss", "ids.npy"])
def test_a_changed_file_is_refused_before_faiss_reads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import faiss

    _, vectors, _ = make(num_vectors=50)
    folder = tmp_path / "index"
    saved(folder, "flat", vectors)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("faiss was given a damaged file"))
    with pytest.raises(InputError, match=f"{name}: content has changed"):
        saved(folder, "flat", vectors)


@pytest.mark.parametrize("kind", list(SMALL))
def test_a_changed_header_with_a_new_manifest_is_refused_or_finds_the_same(kind: str, tmp_path: Path) -> None:
    """Of a graph also bytes of its levels, links and storage: those may change what is found, but never
    crash."""
    _, vectors, queries = make(num_vectors=60, dimension=4)
    folder = tmp_path / "index"
    expected = saved(folder, kind, vectors).search(queries[:, :4], 5)[1]
    whole, metadata = (folder / "index.faiss").read_bytes(), read_manifest(folder)["metadata"]
    header = 45  # then the vectors come, or what differs between kinds
    places = [*range(header), *range(header, len(whole), len(whole) // 25)]
    accepted = 0
    for place in places:
        for bit in (1, 128) if place < header else (64,):
            (folder / "index.faiss").write_bytes(
                whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
            )
            (folder / "manifest.json").unlink()
            write_manifest(folder, metadata)
            try:
                found = saved(folder, kind, vectors).search(queries[:, :4], 5)[1]
            except InputError:
                continue
            accepted += 1
            assert found == expected or place >= header, (
                f"byte {place} of the header is accepted and changes what is found"
            )
    assert accepted < len(places)


@pytest.mark.parametrize("kind", [*SMALL, "exact"])
def test_products_that_overflow_are_refused_by_every_index(kind: str) -> None:
    vectors = np.full((3, 2), 1e25, dtype=np.float32)
    choice = SMALL.get(kind, IndexChoice("exact", ExactSettings()))
    with pytest.raises(InputError, match="too large for float32"):
        IndexStore(choice).load_or_build(lambda: sources_of(["a", "b", "c"], vectors, 1)).search(
            vectors[:1], 2
        )


def test_an_index_of_other_vectors_or_another_kind_is_refused(tmp_path: Path) -> None:
    _, vectors, _ = make(num_vectors=50)
    folder = tmp_path / "index"
    saved(folder, "flat", vectors)
    with pytest.raises(InputError, match=r"model_fingerprint 'abc'.*expected 'other'"):
        IndexStore(SMALL["flat"], folder=folder, source={"model_fingerprint": "other"}).load_or_build(None)
    with pytest.raises(InputError, match="indexer=flat"):
        IndexStore(SMALL["hnsw"], folder=folder).load_or_build(None)
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"manifest\.json"):
        IndexStore(SMALL["flat"], folder=folder).load_or_build(None)


def test_bad_vectors_and_settings_are_refused() -> None:
    ids, vectors, queries = make(num_vectors=20)
    with pytest.raises(InputError, match="query vectors"):
        build("flat", ids, vectors).search(queries[:, :5], 3)
    vectors[3, 3] = np.nan
    for kind in SMALL:
        with pytest.raises(InputError, match="'p3'"):
            build(kind, ids, vectors)
    with pytest.raises(ConfigError, match="ivfx"):
        index_class("ivfx")
    with pytest.raises(ConfigError, match=r"indexer\.ef_search=0 is out of range"):
        IndexChoice.of("hnsw", {"ef_search": 0}, key="indexer.")
    with pytest.raises(ConfigError, match="store_n=1: a graph of one link"):  # faiss would end the process
        IndexChoice.of("hnsw32", {"store_n": 1}, key="indexer.")
    with pytest.raises(InputError, match="no vectors"):
        IndexStore(SMALL["flat"]).load_or_build(list)
