"""mteb's own evaluation of our models, on a task that is made here: its figures are ours."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.records import Passage
from dpr.evaluation.ranking_metrics import evaluate_questions, mean_metrics
from dpr.formats.question_sets import read_qrels
from dpr.integrations.mteb import MtebModel
from dpr.retrieval.dense import DenseSide
from tests.helpers.indexes import exact_index
from tests.unit.retrieval.conftest import World
from tests.unit.retrieval.conftest import world as world

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="mteb is in an extra")


@pytest.fixture(scope="module")
def task_class(world: World) -> Any:
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
            corpus = [{"id": one.id, "title": one.title, "text": one.text} for one in world.passages]
            queries = [{"id": question.id, "text": question.text} for question in world.questions]
            grades = read_qrels(world.path("qrels.tsv"))
            data = {
                "corpus": Dataset.from_list(corpus),
                "queries": Dataset.from_list(queries),
                "relevant_docs": {question: dict(listed) for question, listed in grades.items()},
            }
            self.dataset = {"default": {"test": {**data, "top_ranked": None}}}
            self.data_loaded = True

    return TinyWords


def figures(world: World) -> dict[str, float]:
    index = exact_index([str(one.id) for one in world.passages], world.model.encode_passages(world.passages))
    rankings = DenseSide(world.model, index).retrieve([question.text for question in world.questions], 60)
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


def test_a_local_task_has_our_figures_offline(world: World, task_class: Any, tmp_path: Path) -> None:
    model = MtebModel(world.model, name="tests/tiny")
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


def test_batches_are_encoded_as_the_model_was_trained(world: World, task_class: Any) -> None:
    from mteb.types import PromptType

    model, passages = MtebModel(world.model), world.passages[:5]
    joined = [f"{passage.title} {passage.text}" for passage in passages]
    titles, bodies = [one.title for one in passages], [one.text for one in passages]
    batch = {"text": joined, "title": titles, "body": bodies}
    kind = task_class.metadata
    of_set = {"hf_split": "test", "hf_subset": "default"}
    found = model.encode([batch], task_metadata=kind, prompt_type=PromptType.document, **of_set)
    np.testing.assert_allclose(found, world.model.encode_passages(passages), atol=1e-6)
    # not title and body joined
    assert np.abs(found - world.model.encode_passages([Passage(text) for text in joined])).max() > 1e-3
    asked = [question.text for question in world.questions]
    questions = [{"text": [text]} for text in asked]
    found = model.encode(questions, task_metadata=kind, prompt_type=PromptType.query)
    np.testing.assert_allclose(found, world.model.encode_questions(asked), atol=1e-6)
    assert model.similarity(found[:3], found[:4]).shape == (3, 4)
    np.testing.assert_allclose(
        model.similarity_pairwise(found, found), (found * found).sum(axis=1), rtol=1e-6
    )
    instructed = MtebModel(world.model, instruction="ba {instruction} be ")
    found = instructed.encode(questions, task_metadata=kind, prompt_type=PromptType.query)
    expected = world.model.encode_questions([f"ba Find the passage be {text}" for text in asked])
    np.testing.assert_allclose(found, expected, atol=1e-6)
