"""Indexes of faiss find what exact search finds and state their recall; damaged ones are refused."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.indexer import faiss_index
from dpr.indexer.ranking import encode_ids
from dpr.indexer.registry import IndexChoice, index_class, recall_values
from dpr.indexer.saved import IndexStore
from dpr.indexer.vectors import ArraySource
from dpr.storage.leftovers import ProcessName
from dpr.storage.locks import RunLock
from tests.helpers.indexes import exact_index, rewrite

DIMENSION = 24
CHOICES: dict[str, dict[str, Any]] = {
    "flat": {},
    "hnsw": {"store_n": 32, "ef_search": 512},
    "hnsw_sq": {"store_n": 32, "ef_search": 512},
    "ivf": {"factory": "IVF16,SQ8", "probes": 16},
}
LISTS = ["ivf"]
# The last one: tables of L2 distances would be larger than the file.
FACTORIES = (
    "Flat PCA8,IVF8,SQ8 HNSW16 HNSW16_SQ8 IVF8,PQ4x4,RFlat IVF8_HNSW4,PQ8x4np OPQ8,IVF8,PQ8x4fs IDMap,Flat"
    " PCA8,IDMap2,HNSW16 L2norm,IVF8,RaBitQ4 PRQ4x2x4 IVF64,RQ4x4fs IVF256,PQ8x4"
).split()


def make(num_vectors: int = 1500) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Clusters of vectors of different lengths, so that L2 distance and dot product rank differently."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, DIMENSION)) * 1.5
    vectors = centres[rng.integers(40, size=num_vectors)] + rng.standard_normal((num_vectors, DIMENSION))
    vectors *= rng.uniform(0.6, 1.4, (num_vectors, 1))
    queries = centres[rng.integers(40, size=60)] + rng.standard_normal((60, DIMENSION))
    ids = [f"p{number}" for number in range(num_vectors)]
    return ids, vectors.astype(np.float32), queries.astype(np.float32)


def sources(ids: list[str], vectors: np.ndarray, parts: int = 3) -> list[ArraySource]:
    edges = np.linspace(0, len(ids), parts + 1).astype(int).tolist()
    return [ArraySource(encode_ids(ids[start:stop]), vectors[start:stop]) for start, stop in pairwise(edges)]


def index(
    kind: str,
    folder: Path | None = None,
    *,
    num_vectors: int = 1500,
    with_questions: bool = False,
    **values: Any,
) -> Any:
    ids, vectors, queries = make(num_vectors)
    choice = IndexChoice.of(kind, CHOICES.get(kind, {}) | values, key="indexer.")
    store = IndexStore(choice, folder=folder, source={"model_fingerprint": "abc"})
    asked = (lambda: queries) if with_questions else None
    return store.load_or_build(lambda: sources(ids, vectors), questions=asked)


def exact(k: int, num_vectors: int = 1500) -> tuple[np.ndarray, list[list[str]]]:
    ids, vectors, queries = make(num_vectors)
    return exact_index(ids, vectors).search(queries, k)


@pytest.mark.parametrize("kind", CHOICES)
def test_it_finds_what_exact_search_finds(kind: str, tmp_path: Path) -> None:
    import faiss

    limit = faiss.get_deserialization_vector_byte_limit()
    scores, truth = exact(20)
    for folder in (None, tmp_path / "index", tmp_path / "index"):  # in memory, built on disk, opened
        found_scores, found = index(kind, folder).search(make()[2], 20)
        assert recall_values(found, truth)["recall@10"] > 0.97
        np.testing.assert_allclose(found_scores, scores, rtol=0.02, atol=0.5)
        assert (np.diff(found_scores, axis=1) <= 0).all()
        if kind == "flat":
            assert found == truth
            assert found_scores.tobytes() == scores.tobytes()
    assert faiss.get_deserialization_vector_byte_limit() == limit, "that of the whole process"
    ids, vectors, queries = make()
    for query, row in zip(queries, truth, strict=True):
        nearest = np.argsort(((vectors - query) ** 2).sum(axis=1))[:20]
        assert {ids[place] for place in nearest} != set(row)


@pytest.mark.parametrize("kind", LISTS)
def test_few_lists_are_searched_as_far_as_is_needed_whoever_else_asks(kind: str) -> None:
    narrow, (ids, _, queries) = index(kind, probes=1), make()
    assert all(sorted(row) == sorted(ids) for row in narrow.search(queries[:3], 5000)[1])
    scores, found = narrow.search(queries, 250)
    assert {len(set(row)) for row in found} == {250}
    assert recall_values(found, exact(250)[1])["recall@10"] < 1
    alone = [narrow.search(query[None], 250) for query in queries]
    assert [ids for _, (ids,) in alone] == found
    assert np.concatenate([line for line, _ in alone]).tobytes() == scores.tobytes()
    assert narrow.breadth == {"probes": 1}


@pytest.mark.parametrize("kind", [*LISTS, "hnsw32"])
def test_an_index_states_the_recall_that_was_measured(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    values = {"probes": 0} if kind in LISTS else {}
    built = index(kind, tmp_path / "index", with_questions=True, **values)
    opened = index(kind, tmp_path / "index", **values)
    assert opened.recall == built.recall is not None
    assert opened.breadth == opened.recall.breadth
    assert caplog.text.count("held-back questions") == 2
    asked, truth = make()[2], exact(100)[1]
    if kind in LISTS:
        asked, truth = asked[1::2], truth[1::2]  # the others chose how many lists are searched
    assert opened.recall.questions == len(asked)
    assert recall_values(opened.search(asked, 100)[1], truth) == opened.recall.values
    if kind in LISTS:
        assert (
            index(kind, tmp_path / "index", probes=15)
            .recall_in_words()
            .startswith("recall not measured with probes=15; at build recall@10")
        )


def test_the_build_chooses_how_many_lists_reach_the_target(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def probes(target: float, **values: Any) -> int:
        monkeypatch.setattr(faiss_index, "TARGET_RECALL", target)
        return int(index("ivf", with_questions=True, probes=0, **values).breadth["probes"])

    assert probes(0.3) < probes(0.95) <= 16
    assert "no value of indexer.probes reaches" not in caplog.text
    assert probes(1.0) <= 16
    assert "no value of indexer.probes reaches recall@100 1 with this index" in caplog.text
    without = index("ivf", probes=0)
    assert without.breadth == {"probes": 8} and without.recall is None


def test_the_build_stops_where_more_lists_add_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    search = faiss_index.FaissIndex.search

    def seen(self: Any, *arguments: Any) -> Any:
        tried.append(self.breadth["probes"])
        return search(self, *arguments)

    monkeypatch.setattr(faiss_index.FaissIndex, "search", seen)
    built = index("faiss", num_vectors=6000, with_questions=True, factory="IVF128,PQ2", least_recall=0)
    *tuning, measured = tried
    assert built.breadth == {"probes": measured}
    assert 4 <= measured < tuning[-1] < 128
    monkeypatch.undo()
    chosen = built.recall.values["recall@100"]
    built._lists.nprobe = 128
    asked = make(6000)[2][1::2]
    truth = exact(100, 6000)[1][1::2]
    whole = recall_values(built.search(asked, 100)[1], truth)["recall@100"]
    assert chosen < faiss_index.TARGET_RECALL
    assert whole - chosen < 0.01
    # A list holds six passages here. Few lists are searched with others until 100 are found, so recalls are equal.
    few = index("faiss", with_questions=True, factory="IVF256,PQ2", least_recall=0)
    assert few.breadth["probes"] > 16


@pytest.mark.parametrize("kind", CHOICES)
def test_a_changed_file_with_a_new_manifest_is_refused_or_harmless(kind: str, tmp_path: Path) -> None:
    """It may change what is found, but never crash."""
    folder = tmp_path / "index"
    values = {"factory": CHOICES[kind]["factory"].replace("16", "4")} if kind in LISTS else {}
    size = {"num_vectors": 60, **values}
    index(kind, folder, **size)
    refused = 0
    for name in ("index.faiss", "ids.npy"):
        whole = (folder / name).read_bytes()
        places = {*range(0, min(len(whole), 120), 12), *range(0, len(whole), max(1, len(whole) // 8))}
        changed = [whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :] for at in sorted(places)]
        for content in [whole[:-1], *changed]:
            rewrite(folder, name, content)
            try:
                assert len(index(kind, folder, **size).search(make(60)[2], 5)[1]) == 60
            except InputError:
                refused += 1
        rewrite(folder, name, whole)
    assert refused > 5


def test_a_saved_index_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import faiss

    folder = tmp_path / "index"
    index("ivf", folder)
    other = IndexChoice.of("ivf", CHOICES["ivf"], key="")
    with pytest.raises(InputError, match=r"model_fingerprint 'abc'.*expected 'other'"):
        IndexStore(other, folder=folder, source={"model_fingerprint": "other"}).load_or_build(None)
    with pytest.raises(InputError, match="set indexer=ivf"):
        index("hnsw", folder)
    with pytest.raises(InputError, match=r"factory 'IVF16,SQ8'.*remove it to build it again"):
        index("ivf", folder, factory="IVF8,SQ8")
    index("ivf", tmp_path / "wider", factory="IVF8,SQ8")
    rewrite(folder, "index.faiss", (tmp_path / "wider" / "index.faiss").read_bytes())
    with pytest.raises(InputError, match=r"is not what IVF16,SQ8 makes of 1500 vectors: nlist is 8"):
        index("ivf", folder)
    content = (folder / "index.faiss").read_bytes()
    (folder / "index.faiss").write_bytes(content[:-1])
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("faiss was given a damaged file"))
    with pytest.raises(InputError, match=r"index\.faiss"):
        index("ivf", folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"manifest\.json"):
        index("ivf", folder)


@pytest.mark.parametrize("kind", [*CHOICES, "small", "exact"])
def test_few_vectors_bad_ones_and_too_long_ones(kind: str) -> None:
    ids, vectors, queries = make(5)
    store = IndexStore(IndexChoice.of(kind, {}, key=""))

    def searched(ids: list[str], vectors: np.ndarray, queries: np.ndarray) -> Any:
        return store.load_or_build(lambda: sources(ids, vectors, 1)).search(queries, 10)

    scores, found = searched(ids, vectors, queries[:2])
    assert [sorted(row) for row in found] == [ids, ids]
    assert np.isfinite(scores).all()
    assert searched(ids, vectors, queries[:0])[1] == []
    with pytest.raises(InputError, match="query vectors"):
        searched(ids, vectors, queries[:, :3])
    with pytest.raises(InputError, match="too large for float32"):
        searched(ids, vectors * np.float32(1e25), queries * np.float32(1e25))
    if kind != "exact":
        with pytest.raises(InputError, match="no vectors"):
            searched([], vectors[:0], queries)
    vectors[1, 1] = np.nan
    with pytest.raises(InputError, match="'p1'"):
        searched(ids, vectors, queries)


def test_what_a_graph_cannot_reach_is_left_out_not_repeated() -> None:
    """faiss fills up with id -1, which as a list index would be the last passage."""
    sparse = index("hnsw", num_vectors=400, store_n=2, ef_construction=2)
    scores, found = sparse.search(make()[2], 400)
    assert min(len(row) for row in found) < 400, "nothing was unreachable, so nothing was tested"
    for line, row in zip(scores, found, strict=True):
        assert len(set(row)) == len(row)
        assert np.isfinite(line[: len(row)]).all()
        assert np.isneginf(line[len(row) :]).all()


def test_a_saved_graph_is_searched_as_broadly_as_is_set_now(tmp_path: Path) -> None:
    truth = exact(1)[1]
    right = {}
    for breadth in (1, 512):
        found = index("hnsw", tmp_path / "index", store_n=4, ef_search=breadth).search(make()[2], 1)[1]
        right[breadth] = sum(ours == theirs for ours, theirs in zip(found, truth, strict=True))
    assert right[1] < right[512]


def test_recall_is_the_share_of_the_true_passages() -> None:
    truth = [[f"{number}" for number in range(100)], ["a"]]
    values = recall_values([[*truth[0][5:100], *truth[0][:5]], ["b", "a"]], truth)
    assert values == {"recall@10": (0.5 + 1) / 2, "recall@100": 1.0}


def test_an_index_that_another_process_builds_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index("ivf", tmp_path / "other")
    caplog.set_level("INFO", logger="dpr")
    take = RunLock._take

    def taken_late(lock: RunLock, processes: list[ProcessName]) -> str | None:
        if (tmp_path / "other").exists():
            (tmp_path / "other").rename(tmp_path / "index")
            return "process 7"
        return take(lock, processes)

    monkeypatch.setattr(RunLock, "_take", taken_late)
    choice = IndexChoice.of("ivf", CHOICES["ivf"], key="")
    store = IndexStore(choice, folder=tmp_path / "index", source={"model_fingerprint": "abc"})
    found = store.load_or_build(lambda: pytest.fail("the corpus was read"))
    assert "another run is writing here: process 7; waiting for it" in caplog.text
    assert found.num_passages == 1500
    assert not (tmp_path / "index.lock").exists()


@pytest.mark.parametrize("factory", FACTORIES)
def test_any_string_is_built_saved_and_opened_and_finds_the_same_whoever_else_asks(
    factory: str, tmp_path: Path
) -> None:
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
        ("nonsense", "indexer.factory=nonsense, for 1,500 vectors of 24 numbers: faiss says "),
        ("IVF4096,Flat", "for 1,500 vectors: IVF4096 is out of range; the number must be in [1, 1500]"),
        ("IVF0,Flat", "IVF0 is out of range"),
        ("IVF8_HNSW1,Flat", "HNSW1 is out of range; the number must be in [2, 4096]"),
        ("PQ8x24", "x24 is out of range"),
        ("PQ8x4fs_4096", "faiss says nq=1 bbs=4096 not instantiated"),
        ("RR" * 500_000, "at most 200 letters"),
        ("Flat\ud800", "at most 200 letters"),
        ("NSG16", "HNSW in place of NSG"),
        ("SQ8,Refine(IVF4,Flat)", "RFlat or Refine(SQ8)"),
        ("RQ2x4_Ncqint8", "no norms _Nc"),
        ("HNSW16,PQ8x4", "ranks by L2 distance"),
    ],
)
def test_what_faiss_cannot_make_is_one_sentence(factory: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        index("faiss", factory=factory)
    assert message in str(error.value)


def test_a_transform_that_is_wider_than_the_file_is_opened_again(tmp_path: Path) -> None:
    size: dict[str, Any] = {"num_vectors": 40, "factory": "L2norm,SQ4"}
    found = index("faiss", tmp_path / "index", **size).search(make()[2], 5)[1]
    assert index("faiss", tmp_path / "index", **size).search(make()[2], 5)[1] == found


@pytest.mark.parametrize("num_vectors", [150, 1500])
def test_an_index_that_misses_most_is_refused_unless_that_is_wanted(num_vectors: int, tmp_path: Path) -> None:
    values: dict[str, Any] = {"num_vectors": num_vectors, "factory": "PCA1,Flat", "with_questions": True}
    with pytest.raises(ConfigError, match=r"recall@10 0\.\d+.*set indexer\.least_recall=0 to keep this one"):
        index("faiss", tmp_path / "index", **values)
    assert not (tmp_path / "index").exists()
    kept = index("faiss", tmp_path / "index", least_recall=0, **values)
    assert kept.recall.values["recall@10"] < 0.5
    assert index("faiss", tmp_path / "index", **values).recall == kept.recall  # judged when it is built


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="ivfx"):
        index_class("ivfx")
    with pytest.raises(ConfigError, match=r"indexer\.ef_search=0 is out of range"):
        IndexChoice.of("hnsw", {"ef_search": 0}, key="indexer.")
    for name in ("store_n", "ef_search", "ef_construction"):
        with pytest.raises(ConfigError, match=rf"indexer\.{name}=\d+ is out of range"):
            IndexChoice.of("hnsw32", {name: 10**18}, key="indexer.")
    with pytest.raises(ConfigError, match="store_n=1: a graph of one link"):  # faiss would end the process
        IndexChoice.of("hnsw32", {"store_n": 1}, key="indexer.")
