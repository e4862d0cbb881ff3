"""What ``dpr adapt`` fits to a corpus, repeatably: a linear layer nearer to the hybrid, static tables like a model."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpr.adaptation import linear_layer, sampled_texts
from dpr.adaptation.linear_layer import add_fitted_layer
from dpr.adaptation.static_student import learn_static
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage
from dpr.data.pairs import PseudoPairs
from dpr.models.biencoder import BiEncoder, TowerOptions
from tests.helpers.tiny import sentence, static_folder, tiny_model


def corpus(folder: Path, count: int = 60) -> PseudoPairs:
    rng = random.Random(1)
    rows = [
        {"_id": str(row), "text": " ".join(f"{sentence(rng, 7).capitalize()}." for _ in range(3))}
        for row in range(count)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PseudoPairs(folder / "corpus.jsonl")


def distance(scores: Tensor, targets: Tensor, sources: Tensor) -> Tensor:
    """The KL divergence that is minimised, written once more."""
    total = torch.zeros((), dtype=torch.float64)
    for line, wanted, own in zip(scores.double(), targets.double(), sources.tolist(), strict=True):
        others = [row for row in range(len(line)) if row != own]
        learned = (line[others] / 0.05).log_softmax(0)
        share = (wanted[others] / linear_layer.TEACHER_TEMPERATURE).softmax(0)
        total = total + (share * (share.log() - learned)).sum()
    return total / len(scores)


def test_the_vectors_come_nearer_to_the_hybrid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path / "base", pooling="mean", normalize=True, shared=True)
    known: list[Tensor] = []
    fitted = linear_layer._fitted

    def noted(asked: Tensor, encoded: Tensor, targets: Tensor, sources: Tensor, *, seed: int) -> Tensor:
        known.extend((asked, encoded, targets, sources))
        return fitted(asked, encoded, targets, sources, seed=seed)

    monkeypatch.setattr(linear_layer, "_fitted", noted)
    monkeypatch.setattr(linear_layer, "LEARNING_RATE", 3e-3)  # the steps are few
    add_fitted_layer(model, corpus(tmp_path), most_questions=200)
    asked, encoded, targets, sources = known
    assert len(asked) == 200 and len(encoded) == 60
    assert not targets[torch.arange(200), sources].any()  # nobody is taught to find what it was cut from
    assert targets.max() <= 1 and targets.amax(1).min() > 0

    matrix = model.ctx_model.encode_proj.weight.detach().float()  # type: ignore[union-attr]
    after = normalize(asked @ matrix.T, dim=-1) @ normalize(encoded @ matrix.T, dim=-1).T
    assert distance(after, targets, sources) < 0.95 * distance(asked @ encoded.T, targets, sources)


def test_a_step_goes_down_the_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's first step is the rate, against the sign of the gradient."""
    monkeypatch.setattr(linear_layer, "_EPOCHS", 1)
    draws = torch.Generator().manual_seed(0)
    asked = normalize(torch.randn(20, 6, generator=draws), dim=-1)
    encoded = normalize(torch.randn(9, 6, generator=draws), dim=-1)
    sources = torch.arange(20) % 9
    targets = torch.rand(20, 9, generator=draws).scatter(1, sources[:, None], 0.0)
    matrix = torch.eye(6, requires_grad=True)
    scores = normalize(asked @ matrix.T, dim=-1) @ normalize(encoded @ matrix.T, dim=-1).T
    (gradient,) = torch.autograd.grad(distance(scores, targets, sources), matrix)
    step = linear_layer._fitted(asked, encoded, targets, sources, seed=0) - torch.eye(6)
    torch.testing.assert_close(step, -linear_layer.LEARNING_RATE * gradient.sign(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("settings", [{"shared": True}, {}, {"projection_dim": 12}, {"dimensions": 8}])
def test_a_layer_multiplies_the_vectors_of_both_sides(
    tmp_path: Path, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tmp_path / "base", pooling="mean", normalize=True, **settings)
    question, passage = "what is it", Passage("it is that", "a title")
    before = [model.encode_questions(question), model.encode_passages(passage)]
    matrix = torch.randn(model.dimension, model.dimension)
    monkeypatch.setattr(linear_layer, "_fitted", lambda *args, **options: matrix)
    add_fitted_layer(model, corpus(tmp_path))
    model.save(tmp_path / "saved")
    again = BiEncoder(str(tmp_path / "saved"))
    after = [again.encode_questions(question), again.encode_passages(passage)]
    for first, second in zip(before, after, strict=True):
        expected = matrix.numpy() @ first
        np.testing.assert_allclose(second, expected / np.linalg.norm(expected), atol=2e-6)


def test_the_same_seed_gives_the_same_layer(tmp_path: Path) -> None:
    layers = []
    for seed in (0, 0, 1):
        model = tiny_model(tmp_path / f"base{len(layers)}", pooling="mean", normalize=True, shared=True)
        add_fitted_layer(model, corpus(tmp_path), most_questions=50, seed=seed)
        assert model.ctx_model.encode_proj is not None
        layers.append(model.ctx_model.encode_proj.weight)
    assert torch.equal(layers[0], layers[1]) and not torch.equal(layers[0], layers[2])


def test_large_corpora_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_texts, "MOST_PASSAGES", 20)
    passages, questions, sources = sampled_texts.sample_texts(corpus(tmp_path), most_questions=50, seed=0)
    assert len(passages) == 20 and len(questions) == len(sources) == 50 and max(sources) < 20


def test_what_cannot_take_a_layer_is_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "base", pooling="mean", normalize=True)
    model.use_static_questions()
    with pytest.raises(ConfigError, match="whose questions use a static embedding table"):
        add_fitted_layer(model, corpus(tmp_path))
    model = tiny_model(tmp_path / "other", pooling="mean", normalize=True)
    with pytest.raises(InputError, match="too few passages with words"):
        add_fitted_layer(model, corpus(tmp_path, count=1))


TEXTS = ["ba be bi", "bo bu", "ke ke ra ba be"]
KINDS: dict[str, dict[str, Any]] = {
    "one tower": {"pooling": "mean", "normalize": True, "shared": True},
    "products": {"pooling": "mean", "shared": True},
    "a projection": {"pooling": "mean", "normalize": True, "shared": True, "projection_dim": 6},
    "cut vectors": {"pooling": "mean", "normalize": True, "shared": True, "dimensions": 5},
}


def error(model: BiEncoder, wanted: np.ndarray) -> float:
    return float(np.square(model.encode_questions(TEXTS) - wanted).sum(1).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_learned_and_kept_in_a_checkpoint(tmp_path: Path, kind: str) -> None:
    pairs = corpus(tmp_path)

    def given() -> BiEncoder:
        model = tiny_model(tmp_path / "base", dtype=torch.float32, **KINDS[kind])
        if KINDS[kind].get("dimensions"):
            model.keep_dimensions(KINDS[kind]["dimensions"])
        return model

    teacher = given()
    wanted = teacher.encode_questions(TEXTS)
    passages = teacher.encode_passages(TEXTS)
    rows_alone = given()
    rows_alone.use_static_questions()

    table = learn_static(given(), pairs, sides="questions", most_questions=200)
    assert error(table, wanted) < 0.8 * error(rows_alone, wanted)
    assert np.array_equal(table.encode_passages(TEXTS), passages)
    both = learn_static(given(), pairs, sides="both", most_questions=200)
    assert both.encode_passages(TEXTS).shape == passages.shape
    for name, model in {"table": table, "both": both}.items():
        model.save(tmp_path / name)
        loaded = BiEncoder.load(tmp_path / name)
        assert np.array_equal(loaded.encode_questions(TEXTS), table.encode_questions(TEXTS))
        assert np.array_equal(loaded.encode_passages(TEXTS), model.encode_passages(TEXTS))
        assert loaded.stored_temperature is None

    other = learn_static(given(), pairs, sides="both", most_questions=200, seed=1)
    again = learn_static(given(), pairs, sides="both", most_questions=200)
    assert not np.array_equal(other.encode_questions(TEXTS), both.encode_questions(TEXTS))
    assert np.array_equal(again.encode_questions(TEXTS), both.encode_questions(TEXTS))


def test_a_temperature_is_kept(tmp_path: Path) -> None:
    options = TowerOptions(temperature=0.03)
    model = tiny_model(tmp_path / "base", dtype=torch.float32, options=options, **KINDS["one tower"])
    learn_static(model, corpus(tmp_path), sides="both", most_questions=64).save(tmp_path / "both")
    assert BiEncoder.load(tmp_path / "both").stored_temperature == 0.03


def test_what_cannot_be_learned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has two towers.*encoder\.static_questions=true"):
        learn_static(tiny_model(tmp_path / "base"), corpus(tmp_path), sides="both")
    model = tiny_model(static_folder(tmp_path / "static"), pooling="idf", normalize=True, shared=True)
    with pytest.raises(ConfigError, match="static=both, but the model is static already"):
        learn_static(model, PseudoPairs(corpus(tmp_path).file), sides="both", most_questions=64)
