"""Validation metrics do not depend on the number of processes or the cut of the work, and equal the slow truth."""

from pathlib import Path

import pytest
import torch

from dpr.data.settings import DataSetSettings
from dpr.training.settings import TrainingSettings
from dpr.training.validations import dev_sets
from dpr.training.validations.dev_sets import dev_validations
from dpr.training.validations.protocol import Metrics, run_validations
from tests.helpers.processes import run_on_ranks
from tests.helpers.reference import key_of, question_losses, sample_passages, slow_vectors
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model

OPTIONS = {"dev_batch_size": 6, "val_av_rank_bsz": 7, "other_negatives": 1}
OPTIONS |= {"val_av_rank_hard_neg": 2, "val_av_rank_other_neg": 2}


def figures(folder: Path, candidates: str, collapsed: bool = False, **options: int) -> Metrics:
    model = tiny_model(folder).eval()
    if collapsed:
        for tower in (model.question_model, model.ctx_model):
            for name, parameter in tower.backbone.named_parameters():
                if "LayerNorm" in name:
                    torch.nn.init.constant_(parameter, 1.0 if name.endswith("bias") else 0.0)
    # 13 and 3: neither divides by 2 or 4, and with 4 ranks some have no question of a global batch.
    devs = [
        (ListSource(make_samples(count, seed=count), name), DataSetSettings())
        for name, count in (("a", 13), ("b", 3))
    ]
    settings = TrainingSettings.of(None, **{**OPTIONS, **options})
    return run_validations(dev_validations(devs, settings, candidates=candidates), model)


def both_rules(folder: Path) -> list[Metrics]:
    return [figures(folder, candidates) for candidates in ("distinct", "dpr")]


def test_metrics_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    alone = both_rules(folder)
    assert alone[0] != alone[1]
    for world_size in (2, 4):
        for result in run_on_ranks(both_rules, world_size, folder):
            for metrics, expected in zip(result, alone, strict=True):
                assert metrics.keys() == expected.keys()
                for name, value in expected.items():
                    assert metrics[name] == pytest.approx(value, abs=1e-10), (name, world_size)


@pytest.mark.parametrize("candidates", ["distinct", "dpr"])
def test_nll_equals_the_slow_truth(tmp_path: Path, candidates: str) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    metrics = figures(folder, candidates)
    model, total, competing = tiny_model(folder).eval(), 0.0, 0
    source = ListSource(make_samples(13, seed=13))
    for start in range(0, 13, 6):
        rows = range(start, min(start + 6, 13))
        samples = [source[row] for row in rows]
        chosen = [sample_passages(sample, 1, 1) for sample in samples]
        with torch.no_grad():
            questions, contexts, passages, positives = slow_vectors(model, samples, chosen, 24)
        known = [source.known_positives(row) for row in rows]
        competing += len(passages) * len(rows)
        slow = question_losses(
            questions, contexts, passages, positives, known, distinct=candidates == "distinct"
        )
        total += float(slow.sum())
    assert metrics["eval/a/nll_loss"] == pytest.approx(total / 13, abs=1e-10)
    found = metrics["eval/a/candidates"]
    assert found == competing / 13 if candidates == "dpr" else found < competing / 13


@pytest.mark.parametrize("candidates", ["distinct", "dpr"])
def test_average_rank_equals_the_slow_truth(tmp_path: Path, candidates: str) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    metrics, model = figures(folder, candidates), tiny_model(folder).eval()
    source = ListSource(make_samples(13, seed=13))
    chosen = [sample_passages(sample, 2, 2) for sample in source.samples]
    with torch.no_grad():
        questions, contexts, passages, positives = slow_vectors(model, source.samples, chosen, 24)
    ranks = []
    for row, positive in enumerate(positives):
        gold, answers = passages[positive], {key_of(passage) for passage in source.known_positives(row)}
        gold_score, higher, ties = float(questions[row] @ contexts[positive]), 0, 0
        for column, passage in enumerate(passages):
            repeated = any(key_of(earlier) == key_of(passage) for earlier in passages[:column])
            if column == positive or (
                candidates == "distinct" and (repeated or key_of(passage) in answers | {key_of(gold)})
            ):
                continue
            score = float(questions[row] @ contexts[column])
            tied = abs(score - gold_score) < 1e-6
            higher, ties = higher + (score > gold_score and not tied), ties + tied
        ranks.append((higher + 0.5 * ties, higher, higher + ties))
    expected = [sum(column) / 13 for column in zip(*ranks, strict=True)]
    found = [metrics[f"eval/a/avg_rank{suffix}"] for suffix in ("", "_low", "_high")]
    assert found == pytest.approx(expected, abs=1e-12)
    assert expected[0] > 1


def test_average_rank_does_not_depend_on_how_the_global_batch_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    results = []
    for block in (1, 5, 1000):
        for name in ("QUESTIONS_AT_ONCE", "QUESTION_BLOCK"):
            monkeypatch.setattr(dev_sets, name, block)
        results.append(figures(folder, "distinct", val_av_rank_bsz=block)["eval/avg_rank"])
    assert results[0] == results[1] == results[2] > 1


def test_a_collapsed_encoder_does_not_rank_first(tmp_path: Path) -> None:
    metrics = figures(encoder_folder(tmp_path / "encoder"), "dpr", collapsed=True)
    assert metrics["eval/avg_rank_low"] == 0
    assert metrics["eval/avg_rank"] == metrics["eval/avg_rank_high"] / 2 > 5
