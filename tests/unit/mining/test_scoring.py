"""``dpr score``: what each teacher says of every passage, by any number of processes."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.cli.main import main
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_passages
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.dpr import write_training_set
from dpr.formats.training_sets import open_training_set
from dpr.indexer.ranking import fuse_linear, to_rankings
from dpr.mining.blocks import run_job
from dpr.mining.scoring import Scoring
from dpr.mining.search import LexicalSearch
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from tests.unit.mining.conftest import bm25_of, records, repeating_corpus, repeating_samples
from tests.unit.models.test_cross_encoder import classifier_folder

LISTS = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Questions with positives, some outside the corpus, and negatives; some have other scores."""
    rng, corpus = random.Random(5), repeating_corpus()
    samples = []
    for row, sample in enumerate(repeating_samples()):
        drawn = rng.sample(corpus, 4)
        hard = tuple(replace(passage, teacher_score=99.0) if row % 3 else passage for passage in drawn[:3])
        samples.append(replace(sample, hard_negatives=hard, other_negatives=tuple(drawn[3:])))
    write_training_set(tmp_path / "train.jsonl", samples)
    return tmp_path / "train.jsonl"


def entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(row["question"], entry) for row in records(path) for name in LISTS for entry in row[name]]


def scored(data: Path, *arguments: str, name: str = "scored") -> list[tuple[str, Passage, float | None]]:
    out = data.with_name(f"{name}.jsonl")
    assert main(["score", str(data), f"out={out}", *arguments]) == 0
    assert not out.with_name(f"{out.name}.scoring").exists()
    found = [
        (question, Passage(entry["text"], entry["title"]), entry.get("teacher_score"))
        for question, entry in entries(out)
    ]
    before = [(question, entry["text"], entry["title"]) for question, entry in entries(data)]
    assert [(question, passage.text, passage.title) for question, passage, _ in found] == before
    return found


def scores_of(found: list[tuple[str, Passage, float | None]]) -> list[float]:
    assert None not in [score for *_, score in found]
    return [score for *_, score in found if score is not None]


def test_a_cross_encoder_gives_its_log_odds(data: Path, tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "classifier", num_labels=1)
    found = scored(data, f"cross_encoder={folder}", "device=cpu")
    expected = CrossEncoder.load(folder).log_odds([pair[:2] for pair in found])
    assert scores_of(found) == pytest.approx(expected, abs=1e-5)
    assert np.std(expected) > 0.1


def test_a_bi_encoder_gives_its_scores(data: Path, model_folder: Path) -> None:
    found = scored(data, f"model_file={model_folder}", "device=cpu")
    model = BiEncoder.load(model_folder)
    questions = np.asarray(model.encode_questions([question for question, *_ in found]))
    passages = np.asarray(model.encode_passages([passage for _, passage, _ in found]))
    assert scores_of(found) == pytest.approx((questions * passages).sum(1).tolist(), abs=1e-4)


def test_bm25_gives_its_scores_with_the_words_of_the_corpus(data: Path, corpus_file: Path) -> None:
    found = scored(data, f"corpus={corpus_file}")
    corpus = repeating_corpus()
    index = bm25_of(corpus)
    rows = {passage.text: row for row, passage in enumerate(corpus)}
    outside = [passage.text for _, passage, score in found if score is None]
    assert outside and not {*outside} & {*rows}
    for question, passage, score in found:
        if score is not None:
            assert score == pytest.approx(
                index.search_beside(question, 1, [rows[passage.text]])[1][0], abs=1e-5
            )


def test_without_a_corpus_every_passage_has_a_score(data: Path) -> None:
    assert len({*scores_of(scored(data))}) > 20


def test_a_hybrid_gives_what_retrieval_ranks_by(data: Path, corpus_file: Path, model_folder: Path) -> None:
    sides = (f"corpus={corpus_file}", f"model_file={model_folder}", "device=cpu")
    found = scored(data, *sides, "hybrid=linear", "hybrid_weight=0.6")
    corpus, model = repeating_corpus(), BiEncoder.load(model_folder)
    ids = [str(passage.id) for passage in corpus]
    index = bm25_of(corpus)
    vectors = np.asarray(model.encode_passages(corpus))
    expected = []
    for question, passage, _ in found:
        dots = vectors @ np.asarray(model.encode_questions([question]))[0]
        first = sorted(zip(ids, dots.tolist(), strict=True), key=lambda item: -item[1])[:100]
        (fused,) = fuse_linear([first], to_rankings(index.search([question], 100)), weight=0.6, k=200)
        inside = [key for key, other in zip(ids, corpus, strict=True) if other.text == passage.text]
        expected.append(dict(fused).get(inside[0], 0.0) if inside else None)
    assert [score for *_, score in found] == pytest.approx(expected, abs=1e-4)
    assert {0.0, None} < {*expected}


def test_another_teacher_starts_over_and_does_not_replace(
    data: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = scores_of(scored(data))
    assert main(["score", str(data), f"out={tmp_path}/scored.jsonl", f"corpus={corpus_file}"]) == 3
    assert "already exists" in capsys.readouterr().err
    assert [score for *_, score in scored(data, f"corpus={corpus_file}", "overwrite=true")] != first


def test_the_audit_counts_scores_and_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = Passage("ba be bi"), Passage("bo bu")
    rows = [
        TrainingSample("ba be", (right,), (wrong,)),
        TrainingSample("bu", (right,), (wrong,)),
        TrainingSample("bi", (right,)),
    ]
    write_training_set(tmp_path / "t.jsonl", rows)
    train = open_training_set(tmp_path / "t.jsonl", name="t")
    write_passages(tmp_path / "corpus.tsv", [replace(right, id="r")])
    audit = run_job(Scoring(train, tmp_path / "out.jsonl", [LexicalSearch()], tmp_path / "corpus.tsv"))
    assert audit["counts"] == {
        "questions": 3,
        "passages": 5,
        "passages with a score": 3,
        "questions whose best passage is a positive": 3,
    }
    assert audit["negative_score_quantiles"] == []
    assert json.loads((tmp_path / "out.jsonl.audit.json").read_text())["counts"] == audit["counts"]
    assert main(["score", str(tmp_path / "t.jsonl"), f"out={tmp_path}/all.jsonl"]) == 0
    assert "2  questions whose best passage is a positive" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [(["cross_encoder=a", "model_file=b"], "mutually exclusive"), (["hybrid=linear"], "add model_file")],
)
def test_settings_that_contradict_are_refused(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", "train.jsonl", "out=x.jsonl", *given]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier_folder(tmp_path_factory.mktemp("classifier") / "folder", num_labels=2)


def negatives(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(row["question"], entry) for row in records(path) for entry in row["hard_negative_ctxs"]]


def test_the_command_asks_the_classifier_and_writes_its_scores(
    tmp_path: Path, train: TrainingSet, corpus_file: Path, model_folder: Path, classifier: Path
) -> None:
    whole = tmp_path / "whole.jsonl"
    arguments = [f"corpus={corpus_file}", f"model_file={model_folder}", f"cross_encoder={classifier}"]
    arguments += ["device=cpu", "per_question=3", f"out={whole}"]
    assert main(["mine", str(tmp_path / "train.jsonl"), *arguments]) == 0
    kept = negatives(whole)
    pairs = [(question, Passage(entry["text"], entry["title"])) for question, entry in kept]
    model = CrossEncoder.load(classifier)
    scores = torch.tensor(model.log_odds(pairs)).sigmoid().tolist()
    assert [entry["cross_encoder_score"] for _, entry in kept] == pytest.approx(scores, abs=1e-3)
    assert kept
    assert [entry["teacher_score"] for _, entry in kept] == pytest.approx(model.log_odds(pairs), abs=1e-3)
    positives = [
        (record["question"], Passage(entry["text"], entry["title"]), entry["teacher_score"])
        for record in records(whole)
        for entry in record["positive_ctxs"]
    ]
    assert [score for *_, score in positives] == pytest.approx(
        model.log_odds([pair[:2] for pair in positives]), abs=1e-3
    )
    assert max(scores) < 0.5 + 1e-4
    assert json.loads(Path(f"{whole}.audit.json").read_text())["left_out"]["vetoed by the cross-encoder"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "corpus=missing.tsv"], "missing.tsv: cannot be read"),
        (["mine", "out=train.jsonl/mined.jsonl"], "train.jsonl is not a folder"),
        (["score", "cross_encoder=missing"], "missing"),
    ],
)
def test_names_are_looked_at_before_the_data_are_read(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text("not read\n")
    command, *others = arguments
    assert main([command, "train.jsonl", *(() if "out=" in others[0] else ("out=o.jsonl",)), *others]) != 0
    assert (
        message in (shown := capsys.readouterr().err)
        and "train.jsonl:1" not in shown
        and "not training data" not in shown
    )
