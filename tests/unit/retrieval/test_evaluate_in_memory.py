"""``dpr.evaluate`` and ``dpr.compare``: the figures of the commands, from data in memory."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import pytrec_eval

import dpr
from dpr.formats.corpora import write_passages
from dpr.formats.question_sets import write_qrels, write_questions
from tests.helpers.jobs import evaluate as command
from tests.unit.retrieval.conftest import World

Data = tuple[dict[str, str], dict[str, Any], dict[str, dict[str, int]]]


@pytest.fixture(scope="module")
def data(world: World) -> Data:
    """Texts of questions by id, records of passages by id, and grades."""
    queries = {question.id: question.text for question in world.questions}
    corpus = {str(one.id): {"title": one.title, "text": one.text} for one in world.passages}
    qrels = {key: {f"p{number:03d}": 2, f"p{number + 1:03d}": 1} for number, key in enumerate(queries)}
    return queries, corpus, qrels


def test_the_figures_are_those_of_the_command(world: World, data: Data, tmp_path: Path) -> None:
    """Byte by byte, from a model, a retriever in memory and one in files; also of questions that are passages."""
    queries, corpus, qrels = data
    folder = tmp_path / "first"
    (folder / "qrels").mkdir(parents=True)
    write_passages(folder / "corpus.jsonl", world.passages)
    write_questions(folder / "queries.jsonl", world.questions)
    write_qrels(folder / "qrels" / "test.tsv", qrels)
    assert (
        command([f"set={folder}", f"model={world.path('model')}", f"out={tmp_path / 'out'}", "n_docs=20"])
        == 0
    )
    built = dpr.Retriever.build(world.model, world.passages)
    stored = dpr.Retriever.build(world.model, world.passages, folder=tmp_path / "kept")
    for mode in ("bm25", "dense", "hybrid"):
        expected = (tmp_path / "out" / "first" / f"{mode}.json").read_bytes()
        for number, result in enumerate(
            (
                dpr.evaluate(world.path("model"), queries, corpus, qrels, mode=mode, k=20, name="first"),
                dpr.evaluate(built, queries, qrels, mode=mode, k=20, name="first"),
                dpr.evaluate(stored, str(folder), mode=mode, k=20),
            )
        ):
            result.save(file := tmp_path / f"{mode}-{number}.json")
            assert file.read_bytes() == expected, (mode, number)
    graph = dpr.Retriever.build(world.model, world.passages, folder=tmp_path / "graph", indexer="hnsw32")
    assert dpr.evaluate(graph, queries, qrels).report["indexer"] == "hnsw32"
    assert dpr.evaluate(graph, queries, qrels, mode="bm25").report["indexer"] == "bm25"
    words = dpr.Retriever.build(world.model, world.passages, folder=tmp_path / "words", mode="bm25")
    assert dpr.evaluate(words, queries, qrels, mode="dense").report["indexer"] == "exact"
    with pytest.raises(dpr.ConfigError, match="leave corpus out"):
        dpr.evaluate(built, queries, corpus, qrels)
    alike = {**queries, **{key: record["text"] for key, record in list(corpus.items())[:9]}}
    judged = {f"p{number:03d}": {f"p{number + 1:03d}"} for number in range(9)}
    left_out = dpr.evaluate("bm25", alike, corpus, judged, skip_same_id=True)
    assert not any(key == hit for key, hits in left_out.run.items() for hit, _ in hits)


def test_every_form_of_the_data_gives_the_same(world: World, data: Data) -> None:
    queries, corpus, qrels = data
    rows = [
        {"query-id": key, "corpus-id": one, "score": grade}
        for key, of in qrels.items()
        for one, grade in of.items()
    ]
    asked = [{"_id": key, "text": text} for key, text in queries.items()]
    passages = [{"_id": key, **record} for key, record in corpus.items()]
    expected = dpr.evaluate("bm25", queries, corpus, qrels)
    for forms in (
        (pd.DataFrame(asked), pd.DataFrame(passages), pd.DataFrame(rows)),
        (pd.Series(queries), datasets.Dataset.from_list(passages), datasets.Dataset.from_list(rows)),
        (world.questions, world.passages, [tuple(row.values()) for row in rows]),
        (
            world.path("questions.jsonl"),
            world.path("corpus.tsv"),
            [[row["query-id"], 0, *list(row.values())[1:]] for row in rows],
        ),
    ):
        assert dpr.evaluate("bm25", *forms).per_question == expected.per_question
    numbers = {number: [number, number + 1] for number in range(len(queries))}
    texts = [f"{record['title']} {record['text']}" for record in corpus.values()]
    by_number = dpr.evaluate("bm25", list(queries.values()), texts, numbers, metrics=["MRR@10", "recall@3"])
    assert by_number.metrics == {"mrr@10": expected["mrr@10"], "recall@3": by_number["recall@3"]}


def test_the_values_are_pytrec_evals_and_the_result_prints_them(data: Data) -> None:
    queries, corpus, qrels = data
    result = dpr.evaluate("bm25", queries, corpus, qrels, metrics=("ndcg@7", "recall@3", "recall@150", "map"))
    run = {key: {hit: float(-rank) for rank, (hit, _) in enumerate(hits)} for key, hits in result.run.items()}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.7", "recall.3,150", "map"}).evaluate(run)
    for ours, name in (
        ("ndcg@7", "ndcg_cut_7"),
        ("recall@3", "recall_3"),
        ("recall@150", "recall_150"),
        ("map", "map"),
    ):
        values = {key: of[name] for key, of in theirs.items()}
        assert result.per_question[ours] == values and result[ours] == pytest.approx(
            np.mean([*values.values()])
        )
    low, high = result.intervals["ndcg@7"]
    assert f"nDCG@7      {result['ndcg@7']:.3f}  [{low:.3f}, {high:.3f}]" in str(result), str(result)
    assert dict(result) == result.metrics and "12 questions" in repr(result)


def test_pairs_and_answers_need_no_judgements(world: World, data: Data) -> None:
    _, corpus, _ = data
    pairs = [(question.text, passage.text) for question, passage in zip(world.questions, world.passages)]
    assert dpr.evaluate("bm25", pairs)["accuracy@1"] > 0.9
    by_answers = dpr.evaluate("bm25", world.questions, corpus)
    assert by_answers["accuracy@5"] > 0.5 and "ndcg@10" not in by_answers
    with pytest.raises(dpr.ConfigError, match="only accuracy"):
        dpr.evaluate("bm25", world.questions, corpus, metrics="ndcg@10")


def test_a_loop_over_models_logs_nothing(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    """Unless judgements are left out, which a reader of the figures has to know."""
    queries, corpus, qrels = data
    retriever = dpr.Retriever.build(None, corpus)
    with caplog.at_level("INFO", logger="dpr"):
        dpr.evaluate(retriever, queries, qrels)
        dpr.evaluate("bm25", queries, corpus, qrels)
        assert not caplog.messages
        dpr.evaluate(retriever, queries, {**qrels, "q0": {"p000": 0}})
    assert "1 without a relevant passage left out" in caplog.text
    pairs = dpr.open_training_set([("ba be", "ba be bi"), ("ka", "ko")], name="opened")
    caplog.clear()
    with caplog.at_level("INFO", logger="dpr"):
        assert dpr.evaluate("bm25", pairs)["mrr@10"] == dpr.evaluate("bm25", pairs)["mrr@10"]
    assert "read 2 records" not in caplog.text


def test_compare_is_the_paired_test(world: World, data: Data, tmp_path: Path) -> None:
    words, dense = (dpr.evaluate(model, *data) for model in ("bm25", world.model))
    tests = dpr.compare(words, dense, metrics="ndcg@10")
    values = ([*result.per_question["ndcg@10"].values()] for result in (words, dense))
    assert dict(tests) == {"ndcg@10": dpr.paired_test(tuple(values))} and "randomisation" in repr(tests)
    words.save(tmp_path / "words.json")
    assert dpr.compare(tmp_path / "words.json", dense, metrics=["ndcg@10"]) == tests
    retriever = dpr.Retriever.build(world.model, world.passages, mode="hybrid")
    alone = dpr.evaluate(retriever, data[0], data[2], weight=1.0, metrics="ndcg@10")
    assert alone["ndcg@10"] == pytest.approx(dense["ndcg@10"])
    assert alone["ndcg@10"] != dpr.evaluate(retriever, data[0], data[2], metrics="ndcg@10")["ndcg@10"]
    fewer = dpr.evaluate("bm25", dict(list(data[0].items())[:11]), *data[1:])
    with pytest.raises(dpr.InputError, match="not about the same judged questions"):
        dpr.compare(words, fewer)
    with pytest.raises(
        dpr.ConfigError, match=r"second is of type dict, expected what dpr.evaluate\(...\) returned"
    ):
        dpr.compare(words, {"q1": {"d1": 1.0}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": {"p000": "a"}}, r"the first question is 'p000', .*those of \['q0', 'q1', 'q2'\]"),
        ({"queries": []}, "the first question is None"),
        ({"corpus": ["a", "b"]}, "none of the 13 passages judged relevant is in the corpus"),
        ({"corpus": {"p000": 5}}, "passage p000: the number 5, expected a text"),
        ({"corpus": None}, "NoneType, expected a file, a dictionary by id"),
        ({"queries": [{"id": "q0", "text": "a"}] * 2}, "question 1: the id 'q0' occurs twice"),
        ({"qrels": ["q0 0 p000 1"]}, "judgement 'q0 0 p000 1', expected question, passage and an integer"),
        ({"qrels": [[0], [1]]}, r"judgement \[0\], expected question, passage and an integer grade"),
        ({"qrels": {"q0": {"p000": 0.5}}}, r"judgement \('q0', 'p000', 0.5\), expected"),
        ({"metrics": ["ndcg", "MRR@10", "P@5"]}, "not measured: ndcg, p@5; choose accuracy@1, mrr@1"),
        (
            {
                "queries": {f"q{number}": "ba" for number in range(30)},
                "corpus": {"q1": "ba"},
                "qrels": {"q2": {"q3"}},
            },
            "more of the passages judged relevant are questions than passages, expected evaluate",
        ),
        ({"weight": 0.5}, "mode='hybrid'"),
        ({"relevant_docs": {}}, "qrels="),
    ],
)
def test_mistakes_are_named(data: Data, change: dict[str, Any], message: str) -> None:
    given = dict(zip(("queries", "corpus", "qrels"), data)) | change
    with pytest.raises((dpr.DprError, TypeError), match=message):
        dpr.evaluate("bm25", **given)
