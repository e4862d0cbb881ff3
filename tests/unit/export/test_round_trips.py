"""A model that was exported and read again has the same vectors, and trains to the same weights."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.core.records import Passage
from dpr.export.folders import format_of, write_adapters
from dpr.export.sentence_transformers import to_sentence_transformer
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings
from tests.helpers.adapters import base_folder, randomize_adapters
from tests.helpers.exports import MODELS, static
from tests.helpers.tiny import ListSource, make_samples
from tests.helpers.training import make_trainer

QUESTIONS = ["ba be bi", "", "don\u2019t ca?", " ".join(["fa fe"] * 20)]
PASSAGES = [Passage(text, title) for text in QUESTIONS for title in ("", "bi bo")]
STEPS = 10

KINDS: dict[str, Callable[[Path], BiEncoder]] = {
    name: MODELS[name]
    for name in (
        *("two towers", "shared", "projection", "mean and cosine", "prompts, shared, cosine"),
        *("title template", "cut", "decoder"),
    )
}
KINDS["static"] = lambda folder: static(folder, pooling="mean", shared=True, plain_apostrophes=False)


def assert_same_vectors(found: BiEncoder, expected: BiEncoder) -> None:
    np.testing.assert_array_equal(found.encode_questions(QUESTIONS), expected.encode_questions(QUESTIONS))
    np.testing.assert_array_equal(found.encode_passages(PASSAGES), expected.encode_passages(PASSAGES))


def trained(model: BiEncoder, folder: Path) -> BiEncoder:
    trainer = make_trainer(
        model, [ListSource(make_samples(8 * STEPS))], [], folder, num_train_epochs=1, max_steps=STEPS
    )
    trainer.train()
    return model


def assert_same_training(found: BiEncoder, expected: BiEncoder, folder: Path) -> None:
    before = {name: tensor.clone() for name, tensor in found.weights().items()}
    weights = [trained(model, folder / name).weights() for name, model in (("a", found), ("b", expected))]
    assert weights[0].keys() == weights[1].keys()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights[0].items())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_through_sentence_transformers(tmp_path: Path, kind: str) -> None:
    model = KINDS[kind](tmp_path / "made_of")
    (tmp_path / "out").mkdir()
    format_of("sentence-transformers").write(model, tmp_path / "out", source="model")
    again = BiEncoder.load(tmp_path / "out")
    kept = "pooling normalize sequence_length query_prompt passage_prompt prompts title_template dimensions"
    for name in kept.split():
        assert getattr(again.settings, name) == getattr(model.settings, name), name
    assert_same_vectors(again, model)
    if "prompts" in kind:
        np.testing.assert_array_equal(
            again.encode_questions(QUESTIONS, prompt="web"), model.encode_questions(QUESTIONS, prompt="web")
        )
    assert_same_training(again, model, tmp_path)


def test_through_an_object(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    model = KINDS["prompts, shared, cosine"](tmp_path / "made_of")
    assert_same_vectors(BiEncoder.from_sentence_transformers(to_sentence_transformer(model)), model)


@pytest.mark.parametrize("kind", ["two towers", "projection"])
def test_through_hugging_face_dpr(tmp_path: Path, kind: str) -> None:
    model = KINDS[kind](tmp_path / "made_of")
    (tmp_path / "out").mkdir()
    format_of("hf-dpr").write(model, tmp_path / "out", source="model")
    again = BiEncoder.load(tmp_path / "out")
    assert again.settings.plain_apostrophes
    assert_same_vectors(again, model)


def test_through_peft(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    settings = EncoderSettings(
        adapter="lora",
        lora_rank=4,
        lora_targets="query,value",
        shared=True,
        sequence_length=24,
        plain_apostrophes=False,
    )
    model = BiEncoder.from_pretrained(str(base_folder(tmp_path / "base")), settings)
    randomize_adapters(model)
    write_adapters(model, tmp_path / "adapters", source="model")
    again = BiEncoder.load(tmp_path / "adapters" / "adapter", settings=EncoderSettings(sequence_length=24))
    assert again.weights().keys() == model.weights().keys()
    assert_same_vectors(again, model.eval())
    assert_same_training(again, model, tmp_path)
