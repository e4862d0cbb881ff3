"""What a run says of itself at its end: a paired test against its start, and which model it is opened as."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.core.records import TrainingSample
from dpr.data.settings import DataSetSettings
from dpr.evaluation.significance import paired_test
from dpr.formats.checkpoints import read_tensors
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.models.biencoder import BiEncoder
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.validations.dev_sets import NllValidation
from dpr.training.validations.protocol import Validation, run_validations
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import KilledAt, make_trainer
from tests.unit.training.test_retrieval_validation import entry, write_retrieval_set

SAMPLES = make_samples(40, seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus to search, and a base that has learned its questions."""
    folder = write_retrieval_set(tmp_path_factory.mktemp("verdict"))
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    make_trainer(
        model, [ListSource(SAMPLES)], [], folder / "first", num_train_epochs=12, learning_rate=1e-2
    ).train()
    model.save(folder / "base")
    return folder


def trainer(folder: Path, output_dir: Path, *callbacks: Any, **options: Any) -> BiEncoderTrainer:
    """Two epochs of five updates from the base, at a rate that ruins it, on other questions."""
    model = BiEncoder.load(folder / "base")
    defaults = {"validation": [entry(folder)], "learning_rate": 1.0, "global_batch_size": 6, "max_steps": 9}
    defaults |= {"eval_at_start": True, "eval_every_steps": 2, "keep_last": 1}
    sets = [ListSource(make_samples(30))], [ListSource(SAMPLES, "dev")]
    return make_trainer(model, *sets, output_dir, *callbacks, **{**defaults, **options})


def verdict_of(folder: Path, output_dir: Path, **options: Any) -> dict[str, Any]:
    trainer(folder, output_dir, **options).train()
    return json.loads((output_dir / "verdict.json").read_text())


def are_those_of(model: BiEncoder, other: Path) -> bool:
    weights = read_tensors(other, "model.safetensors")
    return all(torch.equal(tensor, weights[name]) for name, tensor in model.weights().items())


def test_a_ruined_model_is_found_worse_and_opening_it_says_so(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = verdict_of(folder, tmp_path)
    first = found["comparisons"][0]
    assert (found["verdict"], first["metric"], first["against"], first["num_questions"]) == (
        "worse",
        "eval/nll_loss",
        "the base model",
        40,
    )
    values = []
    for source in (folder / "base", tmp_path / found["best_checkpoint"]):
        nll = NllValidation([(ListSource(SAMPLES, "dev"), DataSetSettings())])
        assert run_validations([nll], BiEncoder.load(source))["eval/nll_loss"] == pytest.approx(
            sum(nll.values["eval/nll_loss"]) / 40
        )
        values.append(nll.values["eval/nll_loss"])
    test = paired_test((values[0], values[1]), flips=10_000)
    assert (first["difference"], first["low"], first["p"]) == pytest.approx(
        (test.difference, test.low, test.p_flips), rel=1e-5
    )
    assert first["low"] > 0, "a loss is worse where it is higher"
    assert {(one["metric"], one["against"]) for one in found["comparisons"][1:]} == {
        ("eval/own/ndcg@10", "the base model"),
        ("eval/own/ndcg@10", "BM25"),
    }
    caplog.clear()
    assert are_those_of(BiEncoder.load(tmp_path), tmp_path / found["best_checkpoint"])
    assert "worse than the base model (nll_loss" in caplog.text and "train.keep=better" in caplog.text


def test_keep_better_opens_the_start_also_after_a_kill(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(folder, tmp_path, KilledAt(7), keep="better").train()
    job = trainer(folder, tmp_path, keep="better")
    job.train()
    assert job.progress.best_checkpoint == "dpr_biencoder.step0"
    assert are_those_of(BiEncoder.load(tmp_path), folder / "base")
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert found["verdict"] == "worse" and found["opens"] == "dpr_biencoder.step0" != found["best_checkpoint"]
    assert (tmp_path / found["best_checkpoint"]).is_dir()
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    (moved / "verdict.json").unlink()
    again = trainer(folder, moved, keep="better")
    again.forward_backward = lambda *_: pytest.fail("it trains")  # type: ignore[method-assign]
    again.train()
    assert json.loads((moved / "verdict.json").read_text()) == found
    assert json.loads((moved / "run.json").read_text())["best_checkpoint"] == "dpr_biencoder.step0"


def test_a_run_that_learns_is_better_and_is_kept(folder: Path, tmp_path: Path) -> None:
    sets = [ListSource(SAMPLES)], [ListSource(SAMPLES, "dev")]
    model = tiny_model(folder / "encoder", dtype=torch.float32)
    job = make_trainer(model, *sets, tmp_path, num_train_epochs=10, learning_rate=1e-2, keep="better")
    job.train()
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert (
        found["verdict"] == "better"
        and found["opens"] == found["best_checkpoint"] == job.progress.best_checkpoint
    )


class Scripted(Validation):
    """Gives these values of questions, one list a call; their mean is a metric of which more is better."""

    def __init__(self, *values: list[float]) -> None:
        self.script = iter(values)

    def __call__(self, model: BiEncoder) -> dict[str, float]:
        self.values = {"eval/mine": next(self.script)}
        return {"eval/mine": sum(self.values["eval/mine"]) / len(self.values["eval/mine"])}


@pytest.mark.parametrize(
    ("start", "end", "line"),
    [
        ([0.0, 0.0], [1.0, 1.0], "too few questions to tell whether it is better than the base model"),
        (
            [2.5591] * 40,
            [2.5592, 2.5593] * 20,
            "no significant difference from the base model (mine 2.559 -> 2.559, +0.000",
        ),
        (
            [0.1] * 40,
            [0.2, 0.3] * 20,
            "better than the base model (mine 0.100 -> 0.250, +0.150, 95 % interval +0.134 to +0.166, 40 questions)",
        ),
        ([math.nan] * 40, [0.2, 0.3] * 20, "not tested against the base model (mine nan -> 0.250, +nan)"),
    ],
)
def test_a_verdict_says_no_more_than_its_figures(
    folder: Path, tmp_path: Path, start: list[float], end: list[float], line: str
) -> None:
    options = {"validations": [Scripted(start, end)], "best_metric": "eval/mine", "keep": "better"}
    options |= {"eval_every_steps": 0, "max_steps": 2}
    model = BiEncoder.load(folder / "base")
    job = make_trainer(model, [ListSource(SAMPLES)], [], tmp_path, eval_per_epoch=1, **options)
    job.train()
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert line in found["line"]
    assert found["opens"] == job.progress.best_checkpoint == "dpr_biencoder.step2"


class LossAndOrder(Scripted):
    """Its loss falls with every call, and so does the share of questions that it has right."""

    def __call__(self, model: BiEncoder) -> dict[str, float]:
        correct = next(self.script)
        self.values = {
            "eval/nll_loss": [3.0 + value + number / 100 for number, value in enumerate(correct)],
            "eval/in_batch_acc": correct,
        }
        return {name: sum(values) / len(values) for name, values in self.values.items()}

    def lower_is_better(self, name: str) -> bool:
        return name == "eval/nll_loss"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_falls_while_the_order_gets_worse_is_not_better(
    folder: Path, tmp_path: Path, ranks: int
) -> None:
    run_on_ranks(run_misled, ranks, folder, tmp_path)
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert found["verdict"] == "worse" and "in_batch_acc 1.000 -> 0.500, -0.500" in found["line"]
    assert [one["verdict"] for one in found["comparisons"]] == ["worse", "better"]
    assert found["opens"] == "dpr_biencoder.step0"


def run_misled(folder: Path, output_dir: Path) -> None:
    options = {"validations": [LossAndOrder([1.0] * 40, [1.0, 0.0] * 20)], "keep": "better", "max_steps": 2}
    model = BiEncoder.load(folder / "base")
    job = make_trainer(model, [ListSource(SAMPLES)], [], output_dir, eval_per_epoch=1, **options)
    job.train()
    assert job.progress.best_checkpoint == "dpr_biencoder.step0"


def test_the_verdict_is_that_of_any_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    alone = verdict_of(folder, tmp_path / "one")
    for several in run_on_ranks(verdict_of, 2, folder, tmp_path / "two"):
        assert several["verdict"] == alone["verdict"] == "worse"
        for ours, theirs in zip(alone["comparisons"], several["comparisons"], strict=True):
            assert (ours["metric"], ours["num_questions"]) == (theirs["metric"], theirs["num_questions"])
            assert ours["before"] == pytest.approx(theirs["before"], rel=1e-6)


def test_a_checkpoint_that_breaks_a_guard_is_never_the_best(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It learns its questions, the best by the NLL, and forgets how to search."""
    questions, qrels = read_questions(folder / "questions.jsonl"), read_qrels(folder / "qrels.tsv")
    texts = {str(passage.id): passage for passage in read_passages(folder / "corpus.tsv")}
    searched = [TrainingSample(one.text, tuple(texts[key] for key in qrels[one.id])) for one in questions]
    model = BiEncoder.load(folder / "base")
    make_trainer(
        model, [ListSource(searched)], [], tmp_path / "first", num_train_epochs=20, learning_rate=1e-2
    ).train()
    model.save(tmp_path / "base")

    def learn(name: str, **options: Any) -> BiEncoderTrainer:
        sets = [ListSource(make_samples(40, seed=9))], [ListSource(make_samples(40, seed=9), "dev")]
        options |= {"learning_rate": 1e-2, "num_train_epochs": 4}
        job = make_trainer(BiEncoder.load(tmp_path / "base"), *sets, tmp_path / name, **options)
        job.train()
        return job

    free = learn("free", validation=[entry(folder)], eval_at_start=True)
    assert free.progress.best_checkpoint is not None
    fallen = free.progress.start_metrics["eval/own/ndcg@10"] - free.progress.last_metrics["eval/own/ndcg@10"]
    caplog.clear()
    kept = learn(
        "kept", validation=[entry(folder, guard=0.0), entry(folder, name="far", guard=0.0)], keep="better"
    )
    found = json.loads((tmp_path / "kept" / "verdict.json").read_text())
    assert found["guards"].keys() == {"eval/own/ndcg@10", "eval/far/ndcg@10"}
    assert kept.progress.start_metrics["eval/own/guard/ndcg@10"] == found["guards"]["eval/own/ndcg@10"]
    checked = [json.loads(line) for line in (tmp_path / "kept" / "metrics.jsonl").read_text().splitlines()]
    fine = [
        line["step"]
        for line in checked[1:]
        if line.get("eval/own/ndcg@10", -1) >= found["guards"]["eval/own/ndcg@10"]
    ]
    if fine:
        assert found["best_checkpoint"] in {f"dpr_biencoder.step{step}" for step in fine}
    else:
        assert found["verdict"] == "guards broken" and found["best_checkpoint"] is None
        assert kept.progress.best_checkpoint == found["opens"] == "dpr_biencoder.step0"
    assert fallen > 0 and "guard of eval/own/ndcg@10" in caplog.text, "or this tests nothing"


def test_a_guard_needs_the_start(folder: Path, tmp_path: Path) -> None:
    message = r"train\.validation\[0\]\.guard=0\.01 has no effect with train\.eval_at_start=false"
    with pytest.raises(ConfigError, match=message):
        trainer(folder, tmp_path, validation=[entry(folder, guard=0.01)], eval_at_start=False)


def test_a_verdict_by_the_loss_alone_says_what_it_cannot_tell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model, sets = tiny_model(tmp_path / "encoder", dtype=torch.float32), [ListSource(make_samples(16))]
    dev = [ListSource(SAMPLES, "dev")]
    make_trainer(model, sets, dev, tmp_path / "run", max_steps=2, eval_at_start=True).train()
    assert "the base model (nll_loss" in caplog.text
    assert "a validation of kind retrieval measures" in caplog.text
