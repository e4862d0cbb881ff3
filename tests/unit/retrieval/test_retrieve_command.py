"""``dpr retrieve`` from the command line to its files, on a tiny corpus."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.core.batch import TokenBatch
from dpr.core.records import Question
from dpr.evaluation.answer_match import has_answer
from dpr.evaluation.ranking_metrics import evaluate_questions, mean_metrics
from dpr.evaluation.runs import Retrieval
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import read_qrels, write_qrels, write_questions
from dpr.formats.results import read_trec_run
from dpr.formats.vector_shards import open_shards
from dpr.indexer.ranking import to_rankings
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retriever import Retriever
from tests.helpers.indexes import exact_index
from tests.helpers.jobs import embed, export, retrieve
from tests.helpers.jobs import retrieve as main
from tests.helpers.original import nested_params, original_extras, original_names, write_original
from tests.helpers.results import read_results
from tests.helpers.tiny import tiny_model
from tests.unit.retrieval.conftest import World


@pytest.fixture(autouse=True)
def in_the_folder_of_the_world(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.folder)


def dense(*more: str) -> list[str]:
    return ["model_file=model", "encoded_ctx_files=[vectors_*]", "qa_dataset=questions.jsonl", *more]


def metrics_of(path: Path) -> dict[str, float]:
    return dict(json.loads(path.read_text())["metrics"])


def test_results_are_the_nearest_passages_with_their_texts_and_answers(world: World, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    assert main(dense("ctx_datatsets=[corpus.tsv]", f"out_file={out}", "n_docs=7")) == 0
    model = world.model
    vectors, queries = (
        model.encode_passages(world.passages),
        model.encode_questions([question.text for question in world.questions]),
    )
    expected = to_rankings(exact_index([str(one.id) for one in world.passages], vectors).search(queries, 7))
    by_id = {passage.id: passage for passage in world.passages}
    found = read_results(out)
    assert [result.id for result in found] == [question.id for question in world.questions]
    for result, ranking in zip(found, expected, strict=True):
        assert [hit.id for hit in result.hits] == [passage for passage, _ in ranking]
        np.testing.assert_allclose([hit.score for hit in result.hits], [own for _, own in ranking], atol=1e-5)
        assert [(hit.title, hit.text) for hit in result.hits] == [
            (by_id[hit.id].title, by_id[hit.id].text) for hit in result.hits
        ]
        assert [hit.has_answer for hit in result.hits] == [
            has_answer(result.answers, by_id[hit.id].text) for hit in result.hits
        ]


def test_a_metrics_file_has_every_metric_of_every_question(world: World, tmp_path: Path) -> None:
    """By judgements, which leave a question out, and by answers, which do not."""
    qrels = read_qrels("qrels.tsv")
    del qrels["q3"]
    write_qrels(tmp_path / "qrels.tsv", qrels)
    texts = ["ctx_datasets=[corpus.tsv]", "match=string", "n_docs=20"]
    files = [
        f"qrels={tmp_path / 'qrels.tsv'}",
        f"metrics_file={tmp_path / 'm.json'}",
        f"trec_run_file={tmp_path / 'm.run'}",
    ]
    assert main(dense(*texts, *files)) == 0
    stored = read_metrics(tmp_path / "m.json")
    assert stored.each is not None
    assert stored.each.ids == [question.id for question in world.questions]
    assert stored.each.texts == [question.text for question in world.questions]
    assert stored.each.values.keys() == stored.metrics.keys()
    for name, mean in stored.metrics.items():
        values = stored.each.judged(name)
        assert len(values) == (12 if name.startswith("answer_") else 11)
        assert sum(values.values()) / len(values) == pytest.approx(mean, abs=1e-15)
    each = evaluate_questions(read_trec_run(tmp_path / "m.run"), qrels, (1, 5, 10, 20))
    for name, mean in mean_metrics(each).items():
        assert stored.each.judged(name) == pytest.approx(
            {one: of[name] for one, of in each.items()}, abs=1e-12
        )
        assert stored.metrics[name] == pytest.approx(mean, abs=1e-12)
    assert 0 < stored.metrics["mrr@20"] < 1, "a metric that is 0 or 1 would agree by itself"


def test_bm25_needs_no_model_and_finds_the_passages_of_the_words(tmp_path: Path) -> None:
    line = ["indexer=bm25", f"metrics_file={tmp_path / 'm.json'}", "n_docs=20"]
    line += ["qa_dataset=questions.jsonl", "ctx_datasets=corpus.tsv"]
    judged = ["qrels=qrels.tsv", "match=qrels", f"bm25_index_path={tmp_path / 'bm25'}"]
    found = []
    for more in (judged, judged, ["match=string"]):
        assert main([*line, *more]) == 0
        found.append(metrics_of(tmp_path / "m.json"))
    assert found[0] == found[1] and found[0]["accuracy@5"] > 0.8, "the index is built, then opened"
    assert found[2]["accuracy@5"] == found[0]["accuracy@5"], "an answer is in its own passage only"


def test_hybrid_weights_0_and_1_are_the_two_sides_and_tuning_takes_the_best_of_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = ["ctx_datasets=[corpus.tsv]", "qrels=qrels.tsv", "match=qrels"]
    line += ["n_docs=60", f"metrics_file={tmp_path / 'm.json'}"]

    def mrr(*arguments: str) -> float:
        assert main([*arguments, *line]) == 0
        return metrics_of(tmp_path / "m.json")["mrr@10"]

    hybrid = [*dense(), "hybrid=linear"]
    alone = mrr(*dense()), mrr("indexer=bm25", "qa_dataset=questions.jsonl")
    by_weight = {weight: mrr(*hybrid, f"hybrid_weight={weight}") for weight in (0, 0.25, 0.5, 1)}
    assert (by_weight[1], by_weight[0]) == pytest.approx(alone)
    assert mrr(*hybrid) > 0
    assert "hybrid_weight=0.4, the share of the dense scores: the default" in capfd.readouterr().err
    tuned = mrr(*hybrid, "tune_hybrid_weight=true", "hybrid_weight=0.5")
    error = capfd.readouterr().err
    assert "best mrr@10 on these questions" in error and "no effect here: hybrid_weight\n" in error
    stored = json.loads((tmp_path / "m.json").read_text())
    tried = {float(weight): value for weight, value in stored["tried_weights"].items()}
    assert len(tried) == 21 and tried[stored["hybrid_weight"]] == max(tried.values()) == tuned
    assert {weight: tried[weight] for weight in by_weight} == by_weight, "equal, not close"
    assert stored["hybrid_weight"] == min(weight for weight, value in tried.items() if value == tuned)
    assert main([*hybrid, *line, "tune_hybrid_weight=true", "tune_metric=ndgc@10"]) == 2
    assert "tune_metric=ndgc@10 is not measured here; choose one of " in capfd.readouterr().err


def test_judgements_of_another_corpus_are_refused_or_a_loud_warning(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_qrels(tmp_path / "qrels.tsv", {question.id: {"d1": 1} for question in world.questions})
    line = dense(f"qrels={tmp_path / 'qrels.tsv'}", "match=qrels", "n_docs=5")
    assert main([*line, "ctx_datasets=[corpus.tsv]"]) == 3
    error = capfd.readouterr().err
    assert "is 'd1', the corpus begins with 'p000'" in error and "searched in" not in error
    assert main(line) == 0
    assert "no passage judged relevant was retrieved for any question" in capfd.readouterr().err


def test_prefix_suffix_and_tower_of_a_question_set_change_the_question(world: World, tmp_path: Path) -> None:
    options = ["datasets.mine.file=questions.jsonl", "datasets.mine.special_query_token=ba"]
    options.append("datasets.mine.query_special_suffix=' bu?'")
    arguments = dense("ctx_datasets=[corpus.tsv]", "n_docs=3", f"out_file={tmp_path / 'results.json'}")
    arguments[2] = "qa_dataset=mine"
    assert main([*arguments, *options, "encoder_path=ctx_model"]) == 0
    model = world.model
    for result, question in zip(read_results(tmp_path / "results.json"), world.questions, strict=True):
        assert result.question == question.text + " bu?", "results show the suffix, not the prefix token"
        tokens = TokenBatch.from_lists(model.tensorizer.question_tokens([f"ba {question.text} bu?"]))
        query = model.encode_batch(tokens, encoder_type="ctx").numpy()
        vectors = model.encode_passages(world.passages)
        assert result.hits[0].score == pytest.approx(float((vectors @ query[0]).max()), abs=1e-5)


@pytest.mark.parametrize("selector", ["2", "'[SEP]'"])
def test_a_selector_says_where_the_question_vector_is(world: World, tmp_path: Path, selector: str) -> None:
    options = ["datasets.mine.file=questions.jsonl", f"datasets.mine.selector={selector}"]
    arguments = dense(*options, "n_docs=1", f"trec_run_file={tmp_path / 'test.run'}")
    arguments[2] = "qa_dataset=mine"
    assert main(arguments) == 0
    model = world.model
    tokens = model.tensorizer.question_tokens([question.text for question in world.questions])
    places = [2 if selector == "2" else len(sequence) - 1 for sequence in tokens]
    queries = model.encode_batch(TokenBatch.from_lists(tokens, places), encoder_type="question").numpy()
    best = (queries @ model.encode_passages(world.passages).T).max(axis=1)
    found = [hits[0][1] for hits in read_trec_run(tmp_path / "test.run").values()]
    np.testing.assert_allclose(found, best, atol=1e-5)
    first_tokens = model.encode_questions([question.text for question in world.questions])
    assert np.abs(queries - first_tokens).max() > 0.01, "another position gives another vector"


def test_ids_get_the_prefix_of_their_source(tmp_path: Path) -> None:
    options = ["ctx_sources.mine.file=corpus.tsv", "ctx_sources.mine.id_prefix='wiki:'"]
    out = tmp_path / "results.json"
    assert main(dense("ctx_datatsets=[mine]", *options, f"out_file={out}", "n_docs=2")) == 0
    assert all(hit.id.startswith("wiki:p") and hit.text for each in read_results(out) for hit in each.hits)


def test_what_does_not_fit_together_is_reported(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qrels, questions = tmp_path / "qrels.tsv", tmp_path / "questions.jsonl"
    qrels.write_text("q0\tp000\t1\nq0\tgone\t1\nq1\tp001\t0\nnobody\tp002\t1\nunfound\tp003\t1\n")
    write_questions(questions, [*world.questions, Question("zebra", "unfound")])
    files = [f"qrels={qrels}", f"qa_dataset={questions}", f"metrics_file={tmp_path / 'm.json'}"]
    assert main(["indexer=bm25", "ctx_datasets=[corpus.tsv]", "match=qrels", *files]) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "judgements:" in line)
    assert line.endswith(
        "2 questions evaluated; 10 without judgements left out; 1 without a relevant passage left out;"
        " 1 judged but without any hit (count as 0)"
    )
    assert metrics_of(tmp_path / "m.json")["recall@100"] == 0.25


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"n_docs": "0"}, 2, "n_docs=0"),
        ({"qa_dataset": "nq_tset"}, 2, "did you mean nq_test"),
        ({"qa_dataset": "nq_test"}, 2, "it is published at https://"),
        ({"encoded_ctx_files": "[nowhere_*]"}, 3, "no vectors found"),
        ({"encoded_ctx_files": "vectors_1"}, 3, "of 2 shards, these are missing: 0"),
        ({"model_file": "null"}, 2, "model_file is not set"),
        ({"match": "string"}, 2, "ctx_datasets"),
        ({"hybrid": "linear"}, 2, "ctx_datasets is not set"),
        ({"hybrid": "linear", "indexer": "bm25", "ctx_datasets": "corpus.tsv"}, 2, "searches texts itself"),
    ],
)
def test_mistakes_are_named(
    changes: dict[str, str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = dict(argument.split("=", 1) for argument in dense()) | changes
    line = [f"{key}={value}" for key, value in arguments.items()]
    assert main(line) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_questions_without_judgements_are_refused_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_questions(tmp_path / "others.jsonl", [Question("ba be", "unknown")])
    arguments = dense("qrels=qrels.tsv")
    arguments[2] = f"qa_dataset={tmp_path / 'others.jsonl'}"
    assert main(arguments) == 3
    assert "no question of" in (error := capsys.readouterr().err)
    assert "searched" not in error


def test_several_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    assert main(dense()) == 2
    assert "one process" in capsys.readouterr().err


def test_stored_ranks_give_the_accuracy_at_every_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "metrics.json"
    wanted = ["qrels=qrels.tsv", "match=string", "n_docs=20", "ctx_datatsets=[corpus.tsv]"]
    assert main(dense(f"metrics_file={file}", *wanted)) == 0
    run = Retrieval("dense", read_metrics(file))
    curve = dict(run.accuracy_curve())
    assert sum(run.rank_counts) == 12
    for k in (1, 5, 10, 20):
        assert curve[k] == pytest.approx(run.file.metrics[f"accuracy@{k}"])
    assert 0 < curve[1] < curve[20]


@pytest.fixture(scope="module")
def originals(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x.cp, and two embedding files wiki_0 and wiki_1 of the corpus, made by it."""
    folder = tmp_path_factory.mktemp("originals")
    weights = tiny_model(folder / "bert", dtype=torch.float32).weights()
    write_original(folder / "x.cp", original_extras(original_names(weights), 16), nested_params("not/here"))
    vectors = BiEncoder.load(folder / "x.cp", pretrained_model_cfg=str(folder / "bert")).encode_passages(
        world.passages
    )
    items = [(passage.id, vector) for passage, vector in zip(world.passages, vectors, strict=True)]
    for number in range(2):
        (folder / f"wiki_{number}").write_bytes(pickle.dumps(items[number * 30 : number * 30 + 30]))
    return folder


def test_files_give_the_hits_of_embedding_again(world: World, originals: Path, tmp_path: Path) -> None:
    model = [f"model_file={originals / 'x.cp'}", f"encoder.pretrained_model_cfg={originals / 'bert'}"]
    corpus = world.path("corpus.tsv")
    assert embed([*model, f"ctx_src={corpus}", f"out_file={tmp_path / 'again'}"]) == 0
    assert sum(shard.num_vectors for shard in open_shards([str(tmp_path / "again_0")])) == 60
    files = f"encoded_ctx_files=[{originals / 'wiki_*'}]"
    assert export(["to=vectors", *model, files, f"out_file={tmp_path / 'made'}"]) == 0
    assert [shard.num_vectors for shard in open_shards([str(tmp_path / "made_*")])] == [30, 30]
    ask = [*model, f"qa_dataset={world.path('questions.jsonl')}", f"ctx_datatsets=[{corpus}]", "n_docs=5"]
    results = []
    for number, more in enumerate(
        [
            [f"encoded_ctx_files=[{tmp_path / 'again_*'}]"],
            [f"encoded_ctx_files=[{tmp_path / 'made_*'}]"],
            [files, f"search_folder={tmp_path}"],
            [files, "indexer=hnsw", f"index_path={tmp_path / 'index'}"],
        ]
    ):
        assert retrieve([*ask, *more, f"out_file={tmp_path / str(number)}"]) == 0
        results.append(read_results(tmp_path / str(number)))
    first = [[hit.id for hit in result.hits] for result in results[0]]
    for result in results[1:]:
        assert [[hit.id for hit in question.hits] for question in result] == first
        scores, expected = (
            [[hit.score for hit in question.hits] for question in found] for found in (result, results[0])
        )
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    found = Retriever.open(tmp_path).search(world.questions[0].text, 5)
    assert [hit.passage.id for hit in found] == first[0]
