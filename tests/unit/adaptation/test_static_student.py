"""Static tables learn a model's vectors, repeatably, and are saved and loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.adaptation.static_student import learn_static
from dpr.core.errors import ConfigError
from dpr.data.pairs import PseudoPairs
from dpr.models.biencoder import BiEncoder, TowerOptions
from tests.helpers.tiny import static_folder, tiny_model
from tests.unit.adaptation.test_linear_layer import corpus

TEXTS = ["ba be bi", "bo bu", "ke ke ra ba be"]
KINDS: dict[str, dict[str, Any]] = {
    "one tower": {"pooling": "mean", "normalize": True, "shared": True},
    "products": {"pooling": "mean", "shared": True},
    "a projection": {"pooling": "mean", "normalize": True, "shared": True, "projection_dim": 6},
    "cut vectors": {"pooling": "mean", "normalize": True, "shared": True, "dimensions": 5},
}


def distance(model: BiEncoder, wanted: np.ndarray) -> float:
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
    assert distance(table, wanted) < 0.8 * distance(rows_alone, wanted)
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
