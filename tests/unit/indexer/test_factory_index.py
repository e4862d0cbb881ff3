"""Whatever faiss makes of a string: built of parts, saved, opened, searched, and never without its recall."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.indexer.exact import ExactIndex
from dpr.indexer.registry import IndexChoice
from dpr.indexer.settings import FactorySettings
from dpr.indexer.store import IndexStore
from tests.unit.indexer.test_faiss_index import make, sources_of

IDS, VECTORS, QUERIES = make()
FACTORIES = ["Flat", "IVF8,Flat", "IVF8,SQ8", "OPQ4,IVF8,PQ4x4", "IVF8,RaBitQ", "HNSW16", "IVF8,PQ4x4,RFlat"]


def index(factory: str, folder: Path | None = None, *, questions: np.ndarray | None = QUERIES, **settings: Any) -> Any:
    choice = IndexChoice("faiss", FactorySettings(factory=factory, buffer_size=400, **settings))
    store = IndexStore(choice, folder=folder, source={"model_fingerprint": "abc"})
    return store.load_or_build(lambda: sources_of(IDS, VECTORS), questions=None if questions is None else lambda: questions)


@pytest.mark.parametrize("factory", FACTORIES)
def test_it_is_built_saved_and_opened_and_finds_the_same_whoever_else_asks(
    factory: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    built = index(factory, tmp_path / "index")
    scores, found = built.search(QUERIES, 20)
    opened = index(factory, tmp_path / "index")
    again = opened.search(QUERIES, 20)
    assert again[1] == found and again[0].tobytes() == scores.tobytes()
    alone = [opened.search(QUERIES[row : row + 1], 20) for row in range(len(QUERIES))]
    assert [one[1][0] for one in alone] == found
    assert opened.recall == built.recall and built.recall.questions == len(QUERIES) and not built.recall.stored
    truth = ExactIndex.from_arrays(IDS, VECTORS).search(QUERIES, 100)[1]
    ours = opened.search(QUERIES, 100)[1]
    measured = np.mean([len({*one} & {*best}) / 100 for one, best in zip(ours, truth, strict=True)])
    assert built.recall.values["recall@100"] == pytest.approx(measured)
    assert caplog.text.count(f"recall@100 {measured:.3f} (40 questions") == 2, "said when it is built and when it is opened"


def test_lists_that_are_all_searched_find_everything_and_another_breadth_is_not_measured(tmp_path: Path) -> None:
    assert index("IVF64,Flat", tmp_path / "index").recall.values["recall@100"] < 0.9
    opened = index("IVF64,Flat", tmp_path / "index", search="nprobe=64")
    assert opened.recall_in_words().startswith("recall not measured with nprobe=64; at build recall@10 ")
    assert opened.search(QUERIES, 20)[1] == ExactIndex.from_arrays(IDS, VECTORS).search(QUERIES, 20)[1]


def test_without_questions_its_recall_is_that_of_stored_vectors(tmp_path: Path) -> None:
    recall = index("IVF8,SQ8", tmp_path / "index", questions=None, search="nprobe=8").recall
    assert recall.stored and recall.questions == 400 and recall.values["recall@10"] > 0.95
    assert "(400 stored vectors, nprobe=8)" in str(recall)


@pytest.mark.parametrize(
    ("factory", "settings", "message"),
    [
        ("", {}, "indexer.factory is not set"),
        ("IVF8,PQ7", {}, "indexer.factory=IVF8,PQ7"),
        ("nonsense", {}, "indexer.factory=nonsense, for vectors of 24 numbers: faiss says "),
        ("IVF4096,Flat", {}, "indexer.factory=IVF4096,Flat cannot be learned from 1,500 vectors: "),
        ("IVF8,Flat", {"search": "nprobes=3"}, "indexer.search=nprobes=3: faiss says "),
    ],
)
def test_what_faiss_cannot_make_is_one_sentence(factory: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        index(factory, **settings)
    assert message in str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    index("IVF8,Flat", tmp_path / "index")
    with pytest.raises(InputError, match="factory=IVF8,Flat"):
        index("IVF8,SQ8", tmp_path / "index")
