"""A cross-encoder's scores are the classifier's probabilities; only folders that can be trusted are opened."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.errors import CheckpointError, InputError
from dpr.core.records import Passage
from dpr.models.cross_encoder import CrossEncoder
from tests.helpers.tiny import encoder_folder, sentence


def classifier_folder(folder: Path, *, num_labels: int = 1, seed: int = 0) -> Path:
    """A tiny BERT with a head of ``num_labels``, its weights so large that scores differ."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

    encoder_folder(folder, initializer_range=0.6)
    torch.manual_seed(seed)
    config = BertConfig.from_pretrained(folder, num_labels=num_labels)
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def pairs(count: int = 24) -> list[tuple[str, Passage]]:
    rng = random.Random(3)
    found = []
    for number in range(count):
        question = sentence(rng, rng.randint(1, 8))
        text = sentence(rng, rng.randint(1, 90))
        found.append((question, Passage(text, sentence(rng, 2) if number % 2 else "")))
    return found


@pytest.mark.parametrize("num_labels", [1, 2])
def test_scores_are_the_probabilities_of_each_pair_alone(tmp_path: Path, num_labels: int) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = classifier_folder(tmp_path / "classifier", num_labels=num_labels)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for question, passage in pairs():
        text = f"{passage.title} {passage.text}" if passage.title else passage.text
        batch = tokenizer(question, text, truncation=True, max_length=64, return_tensors="pt")
        logits = model(**batch).logits[0].detach()
        expected.append(float(torch.sigmoid(logits[0]) if num_labels == 1 else torch.softmax(logits, 0)[1]))
    scorer = CrossEncoder.load(folder, batch_tokens=256)
    assert torch.tensor(scorer.log_odds(pairs())).sigmoid().tolist() == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.05  # else anything would do
    assert scorer.log_odds([]) == []


def test_the_fingerprint_tells_weights_and_precision_apart(tmp_path: Path) -> None:
    first, second = classifier_folder(tmp_path / "first"), classifier_folder(tmp_path / "second", seed=1)
    assert CrossEncoder.load(first).fingerprint == CrossEncoder.load(first).fingerprint
    assert len({CrossEncoder.load(first).fingerprint, CrossEncoder.load(second).fingerprint}) == 2
    assert CrossEncoder.load(first, precision="bf16").fingerprint != CrossEncoder.load(first).fingerprint


def _pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_head(folder: Path) -> None:
    from transformers import AutoModel

    AutoModel.from_pretrained(folder).save_pretrained(folder)


def _no_vocabulary(folder: Path) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_pickle_only, "pytorch_model.bin is a pickle"),
        (_no_head, "weights of BertForSequenceClassification are missing"),
        (_no_vocabulary, "no tokenizer could be loaded|has no vocabulary"),
    ],
)
def test_folders_that_cannot_be_trusted_are_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    folder = classifier_folder(tmp_path / "classifier")
    spoil(folder)
    with pytest.raises(InputError, match=message):
        CrossEncoder.load(folder)


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the classifier has 3 labels"):
        CrossEncoder.load(classifier_folder(tmp_path / "classifier", num_labels=3))
    with pytest.raises(CheckpointError, match=r"there is no such folder; .*hf download NAME"):
        CrossEncoder.load(tmp_path / "nowhere")
