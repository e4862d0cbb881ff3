"""mteb's own evaluation of our models, on a task that is made here: its figures are ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.evaluation.ranking_metrics import evaluate_questions, mean_metrics
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import read_qrels
from dpr.indexer.exact import ExactIndex
from dpr.integrations import mteb as integration
from dpr.integrations.mteb import MtebModel
from dpr.retrieval.retrievers import DenseRetriever
from tests.helpers.jobs import evaluate
from tests.unit.retrieval.conftest import World
from tests.unit.retrieval.conftest import world as world

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mteb") is None, reason="mteb is not installed (extra mteb)"
)


@pytest.fixture(scope="module")
def task_class(world: World) -> Any:
    """A retrieval task of mteb over the small corpus; passages have titles."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class TinyWords(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="TinyWords",
            description="Questions of the words of a passage.",
            dataset={"path": "nowhere/tiny-words", "revision": "1"},
            type="Retrieval",
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            prompt={"query": "Find the passage"},
        )

        def load_data(self, **options: Any) -> None:
            corpus = [
                {"id": passage.id, "title": passage.title, "text": passage.text} for passage in world.passages
            ]
            queries = [{"id": question.id, "text": question.text} for question in world.questions]
            grades = {
                question: dict(listed) for question, listed in read_qrels(world.path("qrels.tsv")).items()
            }
            data = {
                "corpus": Dataset.from_list(corpus),
                "queries": Dataset.from_list(queries),
                "relevant_docs": grades,
            }
            self.dataset = {"default": {"test": {**data, "top_ranked": None}}}
            self.data_loaded = True

    return TinyWords


def figures(world: World) -> dict[str, float]:
    index = ExactIndex.from_arrays(
        [str(passage.id) for passage in world.passages], world.model.encode_passages(world.passages)
    )
    rankings = DenseRetriever(world.model, index).retrieve(
        [question.text for question in world.questions], 60
    )
    run = {question.id: ranking for question, ranking in zip(world.questions, rankings, strict=True)}
    return mean_metrics(evaluate_questions(run, read_qrels(world.path("qrels.tsv"))))


def evaluated(model: MtebModel, task: Any, folder: Path) -> Mapping[str, float]:
    import mteb
    from mteb.cache import ResultCache

    cache = ResultCache(folder)
    found = mteb.evaluate(
        model, task, cache=cache, co2_tracker=False, overwrite_strategy="always", show_progress_bar=False
    )
    scores: Mapping[str, float] = found.task_results[0].scores["test"][0]
    return scores


def test_a_local_task_has_our_figures_offline_and_is_resumed(
    world: World, task_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MtebModel(world.model, name="tests/tiny", cache_dir=tmp_path / "cache")
    scores, expected = evaluated(model, task_class(), tmp_path / "results"), figures(world)
    for theirs, ours in {
        "ndcg_at_10": "ndcg@10",
        "recall_at_100": "recall@100",
        "mrr_at_10": "mrr@10",
        "map_at_1000": "map",
    }.items():
        assert scores[theirs] == pytest.approx(expected[ours], abs=2e-5), theirs  # mteb rounds to 5 digits
    assert 0 < scores["ndcg_at_10"] < 1
    assert list((tmp_path / "results").rglob("TinyWords.json"))
    embedded = []
    embed = integration.embed_shard
    monkeypatch.setattr(integration, "embed_shard", lambda *given: embedded.append(embed(*given)))
    assert evaluated(model, task_class(), tmp_path / "again") == scores
    assert embedded[0].embedded == 0, "the vectors of the first run were found"


def test_batches_are_encoded_as_the_model_was_trained(world: World, task_class: Any, tmp_path: Path) -> None:
    from mteb.types import PromptType

    model, passages = MtebModel(world.model, cache_dir=tmp_path), world.passages[:5]
    joined = [f"{passage.title} {passage.text}" for passage in passages]
    batch = {
        "text": joined,
        "title": [passage.title for passage in passages],
        "body": [passage.text for passage in passages],
    }
    kind = task_class.metadata
    found = model.encode(
        [batch], task_metadata=kind, hf_split="test", hf_subset="default", prompt_type=PromptType.document
    )
    np.testing.assert_allclose(found, world.model.encode_passages(passages), atol=1e-6)
    # not title and body joined
    assert np.abs(found - world.model.encode_passages([Passage(text) for text in joined])).max() > 1e-3
    questions = [{"text": [question.text]} for question in world.questions]
    found = model.encode(questions, task_metadata=kind, prompt_type=PromptType.query)
    expected = world.model.encode_questions([question.text for question in world.questions])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert model.similarity(found[:3], found[:4]).shape == (3, 4)
    np.testing.assert_allclose(
        model.similarity_pairwise(found, found), (found * found).sum(axis=1), rtol=1e-6
    )
    instructed = MtebModel(world.model, cache_dir=tmp_path, instruction="ba {instruction} be ")
    found = instructed.encode(questions, task_metadata=kind, prompt_type=PromptType.query)
    expected = world.model.encode_questions(
        [f"ba Find the passage be {question.text}" for question in world.questions]
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_listed_passages_are_ranked_among_themselves(world: World, task_class: Any, tmp_path: Path) -> None:
    model, task = MtebModel(world.model, cache_dir=tmp_path), task_class()
    task.load_data()
    data = task.dataset["default"]["test"]
    place = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "encode_kwargs": {}}
    model.index(data["corpus"], **place)
    whole = model.search(data["queries"], top_k=60, **place)
    listed = {question.id: ["p003", "p001", "p050"] for question in world.questions}
    found = model.search(data["queries"], top_k=2, top_ranked=listed, **place)
    for key, hits in found.items():
        assert list(hits) == [passage for passage in whole[key] if passage in listed[key]][:2]
        assert hits == pytest.approx({passage: whole[key][passage] for passage in hits}, abs=1e-6)
    with pytest.raises(InputError, match="the first is 'gone'"):
        model.search(data["queries"], top_k=2, top_ranked={"q0": ["gone"]}, **place)


def test_dpr_evaluate_runs_a_task_whose_data_is_at_hand(
    world: World,
    task_class: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import mteb

    monkeypatch.setattr(mteb, "get_task", lambda name: task_class())
    line = [
        "suite=mteb:TinyWords",
        f"model_file={world.path('model')}",
        f"output_dir={tmp_path / 'out'}",
        "systems=[dense]",
        "no_cuda=true",
    ]
    assert evaluate(line) == 0
    assert read_metrics(tmp_path / "out" / "TinyWords" / "dense.json").metrics == pytest.approx(
        figures(world), abs=1e-12
    )
    monkeypatch.setattr(mteb, "get_task", None)  # not asked again
    assert evaluate([*line, "overwrite=true"]) == 0
    monkeypatch.undo()
    assert evaluate([*line[1:], "suite=mteb:NoSuchTask"]) == 3
    assert "mteb has no task NoSuchTask" in capsys.readouterr().err
