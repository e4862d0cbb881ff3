"""Validation by retrieval is exact over the whole corpus, for any number of ranks, or over a sample."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.core.distributed import current_ranks
from dpr.core.errors import ConfigError, InputError
from dpr.evaluation.ranking_metrics import evaluate_questions, mean_metrics
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.models.biencoder import BiEncoder
from dpr.training.bi_encoder_trainer import extensions_of
from dpr.training.compute import shard
from dpr.training.settings import TrainingSettings
from dpr.training.validations import retrieval
from dpr.training.validations.protocol import Metrics, run_validations
from dpr.training.validations.retrieval import RetrievalValidation, RetrievalValidationSettings
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, sentence, tiny_model
from tests.helpers.training import make_trainer

PASSAGES, QUESTIONS = 150, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_retrieval_set(tmp_path_factory.mktemp("retrieval"))


def write_retrieval_set(folder: Path) -> Path:
    """A corpus with ties, questions with answers, and one or two judgements a question."""
    rng = random.Random(3)
    encoder_folder(folder / "encoder")
    texts = [sentence(rng, rng.randint(3, 20)) for _ in range(PASSAGES)]
    texts[5::5] = texts[4:-1:5]
    ids = [f"p{number * 7919 % 1000}" for number in range(PASSAGES)]
    pairs = enumerate(zip(ids, texts, strict=True))
    rows = [f"{key}\t{text}\ttitle {number % 9}\n" for number, (key, text) in pairs]
    (folder / "corpus.tsv").write_text("id\ttext\ttitle\n" + "".join(rows))
    gold = [rng.sample(range(PASSAGES), 1 + number % 2) for number in range(QUESTIONS)]
    questions = [
        {"id": f"q{number}", "question": texts[rows[0]][:20], "answers": [texts[rows[0]].split()[0]]}
        for number, rows in enumerate(gold)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    lines = []
    for number, rows in enumerate(gold):
        lines += [f"q{number}\t{ids[row]}\t{1 + place}\n" for place, row in enumerate(rows)]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines) + "q_other\tp0\t1\n")
    return folder


def entry(folder: Path, **options: Any) -> dict[str, Any]:
    files = "corpus.tsv", "questions.jsonl", "qrels.tsv"
    named = {name.partition(".")[0]: str(folder / name) for name in files}
    return {"kind": "retrieval", **named, "name": "own", **options}


def model_of(folder: Path, seed: int = 0) -> BiEncoder:
    import torch

    return tiny_model(folder / "encoder", seed=seed, dtype=torch.float32)


def validation(folder: Path, **options: Any) -> RetrievalValidation:
    values = {key: value for key, value in entry(folder, **options).items() if key != "kind"}
    return RetrievalValidation(RetrievalValidationSettings(**values), chunk_size=7)


def measured(folder: Path, cache: Path, options: dict[str, Any], sharded: bool = False) -> Metrics:
    model = model_of(folder)
    if sharded:
        shard(model, current_ranks())
    patch = pytest.MonkeyPatch()
    patch.setenv("DPR_CACHE", str(cache))
    patch.setattr(retrieval, "BLOCK_ROWS", 20)
    patch.setattr(retrieval, "_MERGED_ROWS", 5)
    try:
        return run_validations([validation(folder, **options)], model)
    finally:
        patch.undo()


def truth(folder: Path) -> dict[str, float]:
    """The metrics by all scores, in float64."""
    model, questions = model_of(folder), read_questions(folder / "questions.jsonl")
    from dpr.formats.corpora import read_passages

    passages = list(read_passages(folder / "corpus.tsv"))
    vectors = model.encode_passages(passages).astype(np.float64)
    run = {}
    for question, vector in zip(
        questions, model.encode_questions([question.text for question in questions]), strict=True
    ):
        scores = (vectors @ vector.astype(np.float64)).astype(np.float32)
        order = sorted(range(len(passages)), key=lambda row: (-scores[row], passages[row].id))
        run[question.id] = [(str(passages[row].id), float(scores[row])) for row in order[:100]]
    qrels = {key: grades for key, grades in read_qrels(folder / "qrels.tsv").items() if key in run}
    return mean_metrics(evaluate_questions(run, qrels))


def test_the_same_bits_for_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    options = {"match": "string", "sample": 40}
    alone = measured(folder, tmp_path / "one", options)
    assert len(alone) == 12
    for result in run_on_ranks(measured, 2, folder, tmp_path / "of 2", options, True):
        assert result == alone


def test_metrics_are_those_of_all_scores(folder: Path, tmp_path: Path) -> None:
    found, expected = measured(folder, tmp_path, {}), truth(folder)
    assert 0 < found["eval/own/ndcg@10"] < found["eval/own/recall@100"] < 1
    for name, value in found.items():
        assert value == pytest.approx(expected[name.removeprefix("eval/own/")], abs=1e-12), name


def test_samples_keep_the_relevant(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exact = measured(folder, tmp_path, {})
    assert measured(folder, tmp_path, {"sample": PASSAGES}) == exact
    few = measured(folder, tmp_path, {"sample": 30})
    assert all(few[name] >= value for name, value in exact.items())
    assert few["eval/own/mrr@10"] > exact["eval/own/mrr@10"]
    assert "all relevant ones among them: its metrics are optimistic; sample=0 searches all" in caplog.text


@pytest.mark.parametrize("metric", ["mrr@10", None])
def test_the_best_is_the_highest_and_without_dev_sets_by_ndcg(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str | None
) -> None:
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    options: dict[str, Any] = {"num_train_epochs": 3, "eval_at_start": True, "learning_rate": 1e-2}
    options |= {"validation": [entry(folder)], "best_metric": metric and f"eval/own/{metric}"}
    chosen_by = f"eval/own/{metric or 'ndcg@10'}"

    make_trainer(model_of(folder), [ListSource(make_samples(16))], [], tmp_path / "run", **options).train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    searched = {line["step"]: line[chosen_by] for line in lines if chosen_by in line}
    assert list(searched) == [0, 2, 4, 6]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["best_value"] == max(value for step, value in searched.items() if step)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["comparisons"][0]["metric"] == chosen_by


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "recall"}, r"train.validation\[0\].kind=recall is not known; choose retrieval"),
        ({"corpse": "x"}, r"unknown setting train.validation\[0\].corpse; did you mean corpus"),
        ({"set": "beir"}, r"\[0\].set: corpus: FOLDER/corpus.jsonl, questions: FOLDER/queries.jsonl, qrels"),
        ({"corpus": "/"}, r"\[0\].corpus=/ is not a file: corpus: FOLDER/corpus.jsonl"),
        ({"qrels": "nowhere.tsv"}, r"train.validation\[0\].qrels=nowhere.tsv is not a file"),
        ({"sample": 5, "qrels": None}, r"\[0\].sample needs train.validation\[0\].qrels=<file>"),
    ],
)
def test_a_wrong_entry_is_refused(folder: Path, wrong: dict[str, Any], message: str) -> None:
    settings = TrainingSettings.of(None, validation=[entry(folder, **wrong)])
    with pytest.raises(ConfigError, match=message):
        extensions_of(settings, [])


def test_judgements_of_another_corpus_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tother\t1\n")
    with pytest.raises(InputError, match="none of the 1 passages judged relevant is in the corpus"):
        measured(folder, tmp_path, {"qrels": str(tmp_path / "qrels.tsv")})
