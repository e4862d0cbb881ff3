"""What a stored model is opened as: what its files may say, and what a job may say beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpr.core.errors import CheckpointError, InputError
from dpr.formats.checkpoints import MODEL_FILE, SETTINGS_FILE, read_tensors, write_tensors
from dpr.models.biencoder import BiEncoder
from dpr.models.settings import EncoderSettings, TowerOptions
from dpr.storage.durable import write_manifest
from tests.helpers.tiny import tiny_model


def opened(folder: Path, settings: EncoderSettings | None = None, **given: Any) -> BiEncoder:
    return BiEncoder.load(folder, settings=settings, **given)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    model = tiny_model(tmp_path / "encoder", pooling="mean", title_template="{title}: {text}")
    model.save(tmp_path / "model")
    return tmp_path / "model"


def restate(folder: Path, **values: Any) -> None:
    """Changes what the checkpoint says of itself."""
    state = json.loads((folder / SETTINGS_FILE).read_text())
    (folder / SETTINGS_FILE).write_text(json.dumps(state | values))
    write_manifest(folder, {})


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"pooling": "nonsense"}, "pooling=nonsense is not known"),
        ({"pooling": 1}, "pooling=1 is not a text"),
        ({"projection_activation": "relu"}, "projection_activation is relu"),
        ({"normalize": 1}, "normalize=1 is not true or false"),
        ({"projection_dim": True}, "projection_dim=True is not a whole number"),
        ({"projection_dim": -1}, "projection_dim=-1 is out of range"),
        ({"projection_dim": (1 << 20) + 1}, "projection_dim is"),
        ({"sequence_length": 2}, "sequence_length=2 is out of range"),
        ({"prompts": {"web": 1}}, "prompts.web=1 is not a text"),
        ({"title_template": "{title}"}, "must have {title} and end with {text}"),
        ({"format_version": 99}, "format_version is 99"),
        ({"temperature": float("nan")}, "not JSON"),
        *[
            ({"temperature": value}, "expected a finite number above 0")
            for value in (0, -1, 10**400, True, "1")
        ],
        ({"adapter": "lora"}, "base is"),
        ({"adapter": "lora", "base": {"name": "x"}}, "base is"),
        ({"adapter": "lora", "base": {"name": "", "fingerprint": "x"}}, "base is"),
        ({"adapter": "lora", "base": {"name": "x", "fingerprint": "x"}, "lora_rank": 7}, "lora_rank is 7"),
    ],
)
def test_what_a_checkpoint_may_not_say(values: dict[str, Any], found: str, stored: Path) -> None:
    restate(stored, **values)
    with pytest.raises(InputError) as caught:
        opened(stored)
    assert found in str(caught.value).replace("the number ", "")
    assert caught.value.file == stored / SETTINGS_FILE


def test_settings_of_newer_versions_are_left_out_and_the_rest_is_as_stored(stored: Path) -> None:
    restate(stored, hyperbolic=True, sequence_length=3)
    model = opened(stored, EncoderSettings(pooling="cls"))
    assert (model.settings.pooling, model.settings.sequence_length) == ("mean", 3)
    assert model.tensorizer.sequence_length == 3
    assert model.tensorizer.text.title_template == model.settings.title_template == "{title}: {text}"


def test_a_stored_temperature_is_the_first_one_unless_the_job_has_its_own(stored: Path) -> None:
    restate(stored, temperature=0.5)
    assert opened(stored).options.temperature == 0.5
    weights = read_tensors(stored, MODEL_FILE)
    learned = {**weights, "log_temperature": next(iter(weights.values())).new_tensor(0.25).log()}
    write_tensors(stored, MODEL_FILE, learned)
    write_manifest(stored, {})
    model = opened(stored)
    assert (model.stored_temperature, float(model.temperature)) == pytest.approx((0.25, 0.25))
    still_learning = opened(stored, options=TowerOptions(learn_temperature=True))
    assert still_learning.options.temperature == 0.5  # where it began
    assert float(still_learning.temperature) == pytest.approx(0.25)
    own = opened(stored, options=TowerOptions(temperature=2.0))
    assert float(own.temperature) == 2.0 and own.stored_temperature == pytest.approx(0.25)


def test_a_learned_temperature_that_is_none_names_the_weights(stored: Path) -> None:
    weights = read_tensors(stored, MODEL_FILE)
    damaged = {"log_temperature": next(iter(weights.values())).new_tensor(1e9)}
    write_tensors(stored, MODEL_FILE, weights | damaged)
    write_manifest(stored, {})
    with pytest.raises(CheckpointError, match="expected a finite number above 0") as caught:
        opened(stored)
    assert caught.value.file == stored / MODEL_FILE


def test_what_is_no_model_is_told_what_one_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="is not a checkpoint") as caught:
        opened(tmp_path / "empty")
    for name in ("model.safetensors", "sentence-transformers", "peft", "original DPR"):
        assert name in str(caught.value)
