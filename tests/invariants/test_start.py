"""The score before the first step: the same training with and without it, measured once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.settings import unused_keys
from dpr.embedding.source import PassageSource
from dpr.evaluation.ranking_metrics import evaluate_questions, mean_metrics
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.indexer.ranking import to_rankings
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.callbacks import base_comparison
from dpr.training.command_settings import TrainCommand
from dpr.training.settings import TrainNode
from dpr.training.validations.protocol import Metrics, run_validations
from dpr.training.validations.retrieval import lexical_search
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, make_samples, static_folder, tiny_model
from tests.helpers.training import KilledAt, assert_same_bits, make_trainer, stored
from tests.unit.training.test_retrieval_validation import entry, write_retrieval_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus to search, and a base to start from."""
    folder = write_retrieval_set(tmp_path_factory.mktemp("start"))
    tiny_model(folder / "encoder", dtype=torch.float32).save(folder / "base")
    return folder


def trainer(
    folder: Path, output_dir: Path, *callbacks: Any, dtype: torch.dtype = torch.float32, **options: Any
) -> BiEncoderTrainer:
    """Two epochs of four updates, dropout; the NLL, the average rank from the second epoch on, and a search."""
    model = BiEncoder.load(folder / "base", dropout=0.1).to(dtype)
    defaults = {
        "validation": [entry(folder)],
        "learning_rate": 1e-2,
        "global_batch_size": 6,
        "val_av_rank_start_epoch": 1,
        "eval_at_start": True,  # so small a run would leave it out
    }
    sets = [ListSource(make_samples(24))], [ListSource(make_samples(9, seed=1), "dev")]
    return make_trainer(model, *sets, output_dir, *callbacks, **{**defaults, **options})


def lines(output_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]


def test_training_has_the_same_bits_with_and_without_it(folder: Path, tmp_path: Path) -> None:
    scored, without = (
        trainer(folder, tmp_path / "scored"),
        trainer(folder, tmp_path / "without", eval_at_start=False),
    )
    scored.train()
    without.train()
    assert_same_bits(stored(tmp_path / "scored"), stored(tmp_path / "without"))
    start, *logged = lines(tmp_path / "scored")
    kept = [{key: value for key, value in line.items() if not key.startswith("perf/")} for line in logged]
    assert kept == [
        {key: value for key, value in line.items() if not key.startswith("perf/")}
        for line in lines(tmp_path / "without")
    ]
    assert start["step"] == 0 and without.progress.start_metrics == {}
    model = BiEncoder.load(folder / "base")
    assert run_validations(scored.validations, model).items() <= start.items()
    assert start == {"step": 0, "epoch": 0, **scored.progress.start_metrics}
    assert {"eval/nll_loss", "eval/avg_rank", "eval/own/ndcg@10"} < start.keys()


def test_bm25_and_the_hybrid_stand_beside_it(folder: Path, tmp_path: Path) -> None:
    job = trainer(folder, tmp_path)
    job.train()
    questions, qrels = read_questions(folder / "questions.jsonl"), read_qrels(folder / "qrels.tsv")
    found = to_rankings(lexical_search(PassageSource(folder / "corpus.tsv"), questions, 100))
    run = {question.id: ranking for question, ranking in zip(questions, found, strict=True)}
    wanted = mean_metrics(evaluate_questions(run, {key: own for key, own in qrels.items() if key in run}))
    start = job.progress.start_metrics
    assert start["eval/own/bm25/ndcg@10"] == pytest.approx(wanted["ndcg@10"]) != start["eval/own/ndcg@10"]
    assert len({start[f"eval/own/{way}ndcg@10"] for way in ("", "bm25/", "hybrid/")}) == 3
    assert not [name for line in lines(tmp_path)[1:] for name in line if "bm25" in name]


def start_of(folder: Path, output_dir: Path) -> Metrics:
    job = trainer(folder, output_dir, max_steps=5, dtype=torch.float64)
    job.train()
    return job.progress.start_metrics


def test_any_number_of_ranks_has_the_same_metrics(folder: Path, tmp_path: Path) -> None:
    alone = start_of(folder, tmp_path / "one")
    assert len(alone) > 30
    for found in run_on_ranks(start_of, 2, folder, tmp_path / "several"):
        assert found == pytest.approx(alone, rel=1e-12)


def test_a_resumed_run_does_not_measure_it_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(folder, tmp_path, KilledAt(5), save_every_steps=1).train()
    before = lines(tmp_path)[0]
    monkeypatch.setattr(base_comparison, "run_validations", lambda *_, **__: pytest.fail("measured again"))
    job = trainer(folder, tmp_path, save_every_steps=1)
    job.train()
    assert [line for line in lines(tmp_path) if line["step"] == 0] == [before]
    assert {"step": 0, "epoch": 0, **job.progress.start_metrics} == before


def test_other_validations_have_no_start(folder: Path, tmp_path: Path) -> None:
    trainer(folder, tmp_path, max_steps=2).train()
    job = trainer(folder, tmp_path, max_steps=2, validation=[entry(folder, match="string")])
    job.train()
    assert job.progress.start_metrics == {}


def test_only_a_start_with_weights_is_measured_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    sets = [ListSource(make_samples(24))], [ListSource(make_samples(9, seed=1), "dev")]
    random, settings = tiny_model(folder / "encoder"), EncoderSettings(pooling="idf", shared=True)
    static = BiEncoder.from_pretrained(str(static_folder(tmp_path / "static")), settings)
    for number, (model, options, is_measured) in enumerate(
        [
            (random, {}, False),
            (random, {"eval_at_start": True}, True),
            (static, {}, True),
            (BiEncoder.load(folder / "base"), {}, True),
        ]
    ):
        job = make_trainer(model, *sets, tmp_path / str(number), max_steps=3, **options)
        job.train()
        assert bool(job.progress.start_metrics) == is_measured, number


def test_a_start_that_costs_too_much_is_named_in_the_log(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sets = [ListSource(make_samples(24))], [ListSource(make_samples(300, seed=1), "dev")]
    job = make_trainer(BiEncoder.load(folder / "base"), *sets, tmp_path / "run")
    job.train()
    assert job.progress.start_metrics == {}
    assert (
        "the base model is not measured" in caplog.text
        and "train.eval_at_start=true measures it" in caplog.text
    )


def test_it_needs_a_validation() -> None:
    config = TrainCommand(train_datasets="train.json", train=TrainNode(eval_at_start=True))
    assert "train.eval_at_start" in unused_keys(config)
