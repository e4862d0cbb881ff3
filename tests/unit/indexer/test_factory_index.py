"""What faiss makes of a string finds what exact search finds, and states the recall that was measured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.formats.vector_shards import VectorShard, VectorShardWriter
from dpr.indexer.exact import ExactIndex
from dpr.indexer.factory_index import IvfIndex
from dpr.indexer.ranking import encode_ids
from dpr.indexer.recall import Recall, least_breadth, recall_values
from dpr.indexer.registry import IndexChoice
from dpr.indexer.store import IndexStore
from dpr.indexer.vectors import AllRows, ArraySource, PrefixedSource
from dpr.storage import checksums
from dpr.storage.durable import read_manifest, write_manifest
from dpr.storage.leftovers import ProcessName
from dpr.storage.run_lock import RunLock

KINDS = ("ivf", "small")
DIMENSION = 32


def make(num_vectors: int = 2000) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Vectors in clusters, as those of texts are."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, DIMENSION)) * 1.5
    vectors = centres[rng.integers(40, size=num_vectors)] + rng.standard_normal((num_vectors, DIMENSION))
    queries = centres[rng.integers(40, size=60)] + rng.standard_normal((60, DIMENSION))
    return (
        [f"p{number}" for number in range(num_vectors)],
        vectors.astype(np.float32),
        queries.astype(np.float32),
    )


CODES = {"ivf": "SQ8", "small": "RaBitQ"}


def choice(kind: str, lists: int = 16, **values: Any) -> IndexChoice:
    return IndexChoice.of(kind, {"factory": f"IVF{lists},{CODES[kind]}", **values}, key="indexer.")


def sources(ids: list[str], vectors: np.ndarray, parts: int = 3) -> list[ArraySource]:
    edges = np.linspace(0, len(ids), parts + 1).astype(int).tolist()
    return [ArraySource(encode_ids(ids[start:stop]), vectors[start:stop]) for start, stop in pairwise(edges)]


def index(
    kind: str,
    folder: Path | None = None,
    *,
    num_vectors: int = 2000,
    with_questions: bool = True,
    **values: Any,
) -> Any:
    ids, vectors, queries = make(num_vectors)
    asked = (lambda: queries) if with_questions else None
    source = {"model_fingerprint": "abc"}
    return IndexStore(choice(kind, **values), folder=folder, source=source).load_or_build(
        lambda: sources(ids, vectors), questions=asked
    )


def exact(k: int, num_vectors: int = 2000) -> tuple[np.ndarray, list[list[str]]]:
    ids, vectors, queries = make(num_vectors)
    return ExactIndex.from_arrays(ids, vectors).search(queries, k)


@pytest.mark.parametrize("kind", KINDS)
def test_with_all_lists_it_finds_what_exact_search_finds(kind: str, tmp_path: Path) -> None:
    scores, truth = exact(20)
    for folder in (None, tmp_path / "index", tmp_path / "index"):  # in memory, built on disk, opened
        found_scores, found = index(kind, folder, probes=16).search(make()[2], 20)
        assert recall_values(found, truth)["recall@10"] > 0.98
        np.testing.assert_allclose(found_scores, scores, rtol=0.01, atol=0.15)
        if kind == "small":
            assert found == truth
            assert found_scores.tobytes() == scores.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_finds_the_same_alone_as_beside_others(kind: str) -> None:
    searched, (_, _, queries) = index(kind, probes=3), make()
    scores, found = searched.search(queries, 20)
    for row, query in enumerate(queries):
        alone_scores, alone = searched.search(query[None], 20)
        assert alone == [found[row]]
        assert alone_scores[0].tobytes() == scores[row][: len(alone[0])].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_lists_that_hold_too_few_passages_are_not_the_only_ones_that_are_searched(kind: str) -> None:
    narrow, (ids, _, queries) = index(kind, probes=1), make()
    assert all(sorted(row) == sorted(ids) for row in narrow.search(queries[:3], 5000)[1])
    scores, found = narrow.search(queries, 300)
    assert {len(set(row)) for row in found} == {300}
    assert recall_values(found, exact(300)[1])["recall@10"] < 1
    alone = [narrow.search(query[None], 300) for query in queries]
    assert [ids for _, (ids,) in alone] == found
    assert np.concatenate([line for line, _ in alone]).tobytes() == scores.tobytes()
    assert narrow.breadth == 1


@pytest.mark.parametrize("kind", [*KINDS, "hnsw32", "hnsw", "flat"])
def test_an_index_states_the_recall_that_was_measured(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ids, vectors, queries = make()
    made = IndexChoice.of(kind, {}, key="indexer.")
    built = IndexStore(made, folder=tmp_path / "index").load_or_build(
        lambda: sources(ids, vectors), questions=lambda: queries
    )
    opened = IndexStore(made, folder=tmp_path / "index").load_or_build(lambda: sources(ids, vectors))
    assert opened.recall == built.recall is not None
    assert caplog.text.count("held-back questions") == 2
    asked, truth = queries, exact(100)[1]
    if kind in KINDS:
        asked, truth = asked[1::2], truth[1::2]  # the others chose how many lists are searched
        assert opened.recall.breadth == {"probes": opened.breadth}
    assert opened.recall.questions == len(asked)
    assert recall_values(opened.search(asked, 100)[1], truth) == opened.recall.values


def test_the_build_chooses_how_many_lists_reach_the_target() -> None:
    breadth = {target: index("ivf", target_recall=target).breadth for target in (0.3, 0.95, 1.0)}
    assert breadth[0.3] < breadth[0.95] < breadth[1.0] <= 16
    assert index("ivf", with_questions=False).breadth == 8
    assert index("ivf", with_questions=False).recall is None


def test_where_no_breadth_reaches_the_target_the_index_is_no_slower_than_pays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Levelling(IvfIndex):
        """One that finds 94 of 100, from four lists on."""

        def search(self, questions: np.ndarray, k: int) -> Any:
            found = [
                ["no"] * k if self.breadth < 4 else [*row[:94], *(["no"] * 6)]
                for row in exact(k)[1][: len(questions)]
            ]
            return np.zeros((len(found), k)), found

    levelling, truth = Levelling(index("ivf")._engine, None, choice("ivf").settings), exact(100)[1]
    for target in (0.95, 0.9):
        assert least_breadth(levelling, make()[2], truth, target) == pytest.approx(0.94)
        assert levelling.breadth == 4
    index("ivf", target_recall=1.0)
    assert "no indexer.probes reaches recall@100 1 in this ivf index" in caplog.text


def test_another_breadth_than_the_measured_one_has_no_recall(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    index("small", tmp_path / "index", target_recall=0.8)
    measured = index("small", tmp_path / "index", target_recall=0.8).breadth
    caplog.clear()
    assert index("small", tmp_path / "index", target_recall=0.8, probes=16).breadth == 16
    assert "recall not measured with probes=16; at build recall@10" in caplog.text
    assert f"probes={measured})" in caplog.text


def test_a_small_index_needs_the_vectors_and_takes_them_from_shards(tmp_path: Path) -> None:
    ids, vectors, queries = make()
    for dtype in ("float32", "int8"):
        shards = []
        for number, start in enumerate((0, 1100)):
            part = slice(start, 1100 + start)
            writer = VectorShardWriter(
                tmp_path / f"{dtype}_{number}", metadata={"model": "abc"}, dimension=DIMENSION, dtype=dtype
            )
            for chunk, first in enumerate(range(0, len(ids[part]), 400)):
                writer.write_chunk(chunk, ids[part][first : first + 400], vectors[part][first : first + 400])
            writer.finish()
            shards.append(PrefixedSource(VectorShard(tmp_path / f"{dtype}_{number}"), "wiki:"))
        folder = tmp_path / f"index_{dtype}"
        found = (
            IndexStore(choice("small", probes=16, candidates=2000), folder=folder)
            .load_or_build(lambda: shards)  # noqa: B023
            .search(queries, 20)
        )
        expected = ExactIndex(shards).search(queries, 20)
        assert found[1] == expected[1]
        assert found[0].tobytes() == expected[0].tobytes()
    with pytest.raises(InputError, match=r"scores with the vectors.*encoded_ctx_files"):
        IndexStore(choice("small"), folder=folder).load_or_build(None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_with_a_new_manifest_is_refused_or_harmless(kind: str, tmp_path: Path) -> None:
    """It may change what is found, but never crash."""
    folder = tmp_path / "index"
    size = {"num_vectors": 60, "lists": 4}
    queries, expected = make(60)[2], index(kind, folder, **size).search(make(60)[2], 5)[1]
    metadata = read_manifest(folder)["metadata"]
    refused = 0
    for file in sorted(path for path in folder.iterdir() if path.name != "manifest.json"):
        whole = file.read_bytes()
        places = {*range(0, min(len(whole), 120), 4), *range(0, len(whole), max(1, len(whole) // 8))}
        for content in [
            whole[:-1],
            *(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :] for place in sorted(places)),
        ]:
            file.write_bytes(content)
            (folder / "manifest.json").unlink()
            write_manifest(folder, metadata)
            try:
                assert len(index(kind, folder, **size).search(queries, 5)[1]) == len(expected)
            except InputError:
                refused += 1
        file.write_bytes(whole)
    assert refused > 20


@pytest.mark.parametrize("kind", ["ivf", "hnsw32", "flat"])
def test_ids_take_the_room_they_need_and_those_of_earlier_versions_are_read(
    kind: str, tmp_path: Path
) -> None:
    _, vectors, queries = make(300)
    ids = [f"page/{'x' * (number % 50)}/{number}" for number in range(300)]
    made = IndexChoice.of(kind, {"probes": 300} if kind == "ivf" else {}, key="indexer.")
    built = (
        IndexStore(made, folder=tmp_path / "index")
        .load_or_build(lambda: sources(ids, vectors))
        .search(queries, 10)[1]
    )
    file = tmp_path / "index" / "ids.npy"
    assert np.load(file).nbytes == 4 * 301 + sum(map(len, ids))
    np.save(file, encode_ids(ids))  # of one width
    metadata = read_manifest(tmp_path / "index")["metadata"]
    (tmp_path / "index" / "manifest.json").unlink()
    write_manifest(tmp_path / "index", metadata)
    assert IndexStore(made, folder=tmp_path / "index").load_or_build(None).search(queries, 10)[1] == built
    assert (
        recall_values(built, ExactIndex.from_arrays(ids, vectors).search(queries, 10)[1])["recall@10"] > 0.95
    )


def test_a_saved_index_is_read_again_only_when_a_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checksums, "_SETTLED_NS", 0)
    index("ivf", tmp_path / "index", num_vectors=60)
    read = []
    monkeypatch.setattr(
        checksums,
        "verify_folder",
        lambda folder, real=checksums.verify_folder: read.append(folder) or real(folder),
    )
    for _ in range(2):
        index("ivf", tmp_path / "index", num_vectors=60)
    assert len(read) == 1
    file = tmp_path / "index" / "index.faiss"
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(InputError, match=r"index\.faiss: content has changed"):
        index("ivf", tmp_path / "index", num_vectors=60)


@pytest.mark.parametrize("kind", KINDS)
def test_few_vectors_bad_ones_and_too_long_ones(kind: str) -> None:
    ids, vectors, queries = make(3)
    found = (
        IndexStore(IndexChoice.of(kind, {}, key=""))
        .load_or_build(lambda: sources(ids, vectors, 1))
        .search(queries[:2], 10)[1]
    )
    assert [sorted(row) for row in found] == [ids, ids]
    assert (
        IndexStore(IndexChoice.of(kind, {}, key=""))
        .load_or_build(lambda: sources(ids, vectors, 1))
        .search(np.zeros((0, DIMENSION)), 3)[1]
        == []
    )
    with pytest.raises(InputError, match="no vectors"):
        IndexStore(IndexChoice.of(kind, {}, key="")).load_or_build(lambda: sources([], vectors[:0], 1))
    with pytest.raises(InputError, match="too large for float32"):
        IndexStore(IndexChoice.of(kind, {}, key="")).load_or_build(
            lambda: sources(ids, vectors * np.float32(1e25), 1)
        )
    vectors[1, 1] = np.nan
    with pytest.raises(InputError, match="'p1'"):
        IndexStore(IndexChoice.of(kind, {}, key="")).load_or_build(lambda: sources(ids, vectors, 1))


def test_rows_of_several_sources_are_taken_in_their_order() -> None:
    ids, vectors, _ = make(50)
    rows = AllRows(
        [*sources(ids[:30], vectors[:30]), *sources([], vectors[:0], 1), *sources(ids[30:], vectors[30:])]
    )
    places = np.array([0, 9, 10, 29, 30, 49])
    found, taken = rows.take(places)
    assert [key.decode() for key in found] == [f"p{place}" for place in places]
    assert np.array_equal(taken, vectors[places])
    assert rows.num_rows == 50


def test_recall_is_the_share_of_the_true_passages() -> None:
    truth = [[f"{number}" for number in range(100)], ["a"]]
    values = recall_values([[*truth[0][5:100], *truth[0][:5]], ["b", "a"]], truth)
    assert values == {"recall@10": (0.5 + 1) / 2, "recall@100": 1.0}
    kept = Recall(values, 2, {"probes": 4})
    assert Recall.read(json.loads(json.dumps(kept.as_dict()))) == kept
    assert all(
        Recall.read(damaged) is None
        for damaged in (None, {"questions": 2}, {"questions": 2, "values": {"recall@10": "x"}})
    )


@pytest.mark.parametrize("length", [0.01, 1.0, 100.0])
def test_estimates_of_several_lists_can_be_compared_whatever_the_length_of_the_vectors(length: float) -> None:
    ids, vectors, queries = make()
    vectors = (vectors + 3) * np.float32(length)
    truth = ExactIndex.from_arrays(ids, vectors).search(queries, 100)[1]
    small = choice("small", candidates=400, lists=64)
    found = IndexStore(small).load_or_build(lambda: sources(ids, vectors))
    reached = []
    for probes in (8, 16, 32, 64):
        found.search_with(probes)
        reached.append(recall_values(found.search(queries, 100)[1], truth)["recall@100"])
    assert all(second > first - 0.03 for first, second in pairwise(reached)), (
        f"more lists find no less: {reached}"
    )
    assert reached[-1] > 0.9, reached


def test_a_corpus_of_no_more_passages_than_are_nominated_is_searched_exactly() -> None:
    ids, vectors, queries = make(400)
    found = (
        IndexStore(choice("small", probes=1))
        .load_or_build(lambda: sources(ids, vectors))
        .search(queries, 100)
    )
    truth = exact(100, 400)
    assert found[1] == truth[1] and np.array_equal(found[0], truth[0])


def test_an_index_that_another_process_builds_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = index("ivf", tmp_path / "other")
    caplog.set_level("INFO", logger="dpr")
    take = RunLock._take

    def taken_late(lock: RunLock, processes: list[ProcessName]) -> str | None:
        if (tmp_path / "other").exists():
            (tmp_path / "other").rename(tmp_path / "index")
            return "process 7"
        return take(lock, processes)

    def unused() -> Any:
        raise AssertionError("the corpus was read")

    monkeypatch.setattr(RunLock, "_take", taken_late)
    store = IndexStore(choice("ivf"), folder=tmp_path / "index", source={"model_fingerprint": "abc"})
    found = store.load_or_build(lambda: iter(map(unused, [0])))
    assert "another run is writing here: process 7; waiting for it" in caplog.text
    assert found.recall == other.recall and found.num_passages == 2000
    assert not (tmp_path / "index.lock").exists()


FACTORIES = ["Flat", "IVF8,Flat", "OPQ4,IVF8,PQ4x4", "IVF8,RaBitQ", "HNSW16", "PQ4x4", "IVF8,PQ4x4,RFlat"]


@pytest.mark.parametrize("factory", FACTORIES)
def test_any_string_is_built_saved_and_opened_and_finds_the_same_whoever_else_asks(
    factory: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ids, vectors, queries = make()
    store = IndexStore(IndexChoice.of("faiss", {"factory": factory}, key=""), folder=tmp_path / "index")
    built = store.load_or_build(lambda: sources(ids, vectors), questions=lambda: queries)
    scores, found = built.search(queries, 20)
    opened = store.load_or_build(None)
    again = opened.search(queries, 20)
    assert again[1] == found and again[0].tobytes() == scores.tobytes()
    assert [opened.search(query[None], 20)[1][0] for query in queries] == found
    assert opened.recall == built.recall and built.recall is not None
    assert opened.recall_in_words().endswith("measured at build")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("", "indexer.factory is not set"),
        ("IVF8,PQ7", "indexer.factory=IVF8,PQ7"),
        ("nonsense", "indexer.factory=nonsense, for vectors of 32 numbers: faiss says "),
        ("IVF4096,Flat", "indexer.factory=IVF4096,Flat cannot be learned from 2,000 vectors: "),
    ],
)
def test_what_faiss_cannot_make_is_one_sentence(factory: str, message: str) -> None:
    ids, vectors, _ = make()
    with pytest.raises(ConfigError) as error:
        IndexStore(IndexChoice.of("faiss", {"factory": factory}, key="")).load_or_build(
            lambda: sources(ids, vectors)
        )
    assert message in str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    index("ivf", tmp_path / "index")
    with pytest.raises(InputError, match="factory=IVF16,SQ8"):
        index("ivf", tmp_path / "index", lists=8)
