"""Two adapters over one frozen backbone compute what two whole models compute."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.errors import CheckpointError, ConfigError
from dpr.models.adapters import BaseModel
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.encoder import checkpoint_activations
from dpr.models.settings import EncoderSettings, TowerSettings
from dpr.models.tower_building import add_adapters
from tests.helpers.adapters import base_folder, randomize_adapters

pytest.importorskip("peft")

KINDS = ("bert", "qwen3")


def lora_model(
    folder: Path,
    kind: str = "bert",
    *,
    options: TowerOptions | None = None,
    trained: bool = True,
    **settings: Any,
) -> BiEncoder:
    """In float64; ``trained`` adapters are no longer zero."""
    of_kind = {"pooling": "last", "append_eos": True} if kind == "qwen3" else {}
    values: dict[str, Any] = {"sequence_length": 24, "adapter": "lora", "lora_rank": 4, **of_kind, **settings}
    torch.manual_seed(0)
    lower = True if kind == "bert" else None
    how: dict[str, Any] = {"dropout": 0.0, "do_lower_case": lower, "options": options}
    model = BiEncoder.from_pretrained(
        str(base_folder(folder, kind)), EncoderSettings(**values), **how
    ).double()
    if trained:
        randomize_adapters(model)
    return model.train()


def batches() -> tuple[TokenBatch, TokenBatch]:
    generator = torch.Generator().manual_seed(0)
    sides = ([9, 3, 5], [20, 7, 12, 4])
    return tuple(
        TokenBatch.from_lists([torch.randint(11, 80, (n,), generator=generator).tolist() for n in lengths])
        for lengths in sides
    )  # type: ignore[return-value]


def step(model: Any) -> dict[str, Tensor]:
    """Vectors and gradients of a loss that joins both sides."""
    inner: BiEncoder = getattr(model, "module", model)
    inner.zero_grad()
    vectors = model(*batches())
    (vectors.questions @ vectors.contexts.T).logsumexp(1).sum().backward()
    grads = {name: value.grad.clone() for name, value in inner.named_parameters() if value.grad is not None}
    return {"questions": vectors.questions.detach(), "contexts": vectors.contexts.detach(), **grads}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=name)


def two_copies(model: BiEncoder) -> BiEncoder:
    """The same towers over a copy of the backbone each."""
    copies = [copy.deepcopy(tower) for tower in model.towers]
    return BiEncoder(copies[0], copies[-1], model.tensorizer, model.settings, model.options).train()


@pytest.mark.parametrize(("kind", "packed"), [("bert", False), ("qwen3", True)])
def test_one_backbone_with_two_adapters_is_two_models(kind: str, packed: bool, tmp_path: Path) -> None:
    model = lora_model(tmp_path, kind, options=TowerOptions(packed=packed), projection_dim=6)
    assert model.question_model.backbone is model.ctx_model.backbone
    assert model.question_model.is_packed == packed
    found = step(model)
    copies = two_copies(model)
    assert copies.question_model.backbone is not copies.ctx_model.backbone
    expected = step(copies)
    # The copies have their own names for the context tower's adapter.
    renamed = {}
    for name, value in expected.items():
        renamed[name.replace("ctx_model.backbone", "question_model.backbone")] = value
    assert_same(found, renamed)
    trained = {name for name in found if "." in name}
    assert all("lora_" in name or "encode_proj" in name for name in trained)
    for adapter in ("question", "ctx"):
        assert all(float(found[name].norm()) > 0 for name in trained if f"lora_A.{adapter}" in name)


@pytest.mark.parametrize("kind", KINDS)
def test_activations_that_are_computed_again_see_their_own_adapter(kind: str, tmp_path: Path) -> None:
    """In backward the adapter of the questions is the active one, also when contexts are recomputed."""
    model = lora_model(tmp_path, kind)
    plain = step(model)
    checkpoint_activations(model.towers)
    assert_same(step(model), plain, 0.0 if kind == "bert" else 1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_checkpoints_hold_adapters_alone_and_name_their_base(shared: bool, tmp_path: Path) -> None:
    model = lora_model(tmp_path / "base", shared=shared, projection_dim=6).float().eval()
    model.save(tmp_path / "saved")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("saved", "base")]
    assert sizes[0] < sizes[1]
    assert not [name for name in model.weights() if "lora_" not in name and "encode_proj" not in name]
    loaded = BiEncoder.load(tmp_path / "saved")
    assert loaded.fingerprint == model.fingerprint and loaded.base == model.base
    for encode in ("encode_questions", "encode_passages"):
        vectors = [getattr(each, encode)(["ba be", "bi"]) for each in (loaded, model)]
        assert np.array_equal(*vectors)
    trained = [name for name, value in loaded.named_parameters() if value.requires_grad]
    assert not [name for name in trained if "lora_" not in name and "encode_proj" not in name]


def test_a_base_that_is_missing_or_another_is_refused_and_can_be_named(tmp_path: Path) -> None:
    model = lora_model(tmp_path / "base").float().eval()
    model.save(tmp_path / "saved")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"base, which cannot be loaded.*encoder\.pretrained_model_cfg"):
        BiEncoder.load(tmp_path / "saved")
    found = BiEncoder.load(tmp_path / "saved", pretrained_model_cfg=str(tmp_path / "moved"))
    assert found.fingerprint == model.fingerprint
    base_folder(tmp_path / "moved", seed=8)
    with pytest.raises(CheckpointError, match="has other weights"):
        BiEncoder.load(tmp_path / "saved", pretrained_model_cfg=str(tmp_path / "moved"))


def test_the_fingerprint_covers_the_base(tmp_path: Path) -> None:
    first, second = (lora_model(tmp_path / name) for name in ("first", "second"))
    assert first.fingerprint == second.fingerprint
    base_folder(tmp_path / "second", seed=8)
    (tmp_path / "second" / "kept").touch()
    folder = str(tmp_path / "second")
    model = BiEncoder.from_pretrained(folder, first.settings, dropout=0.0, do_lower_case=True).double()
    model.load_weights(first.weights(), source=tmp_path)
    assert model.fingerprint != first.fingerprint


@pytest.mark.parametrize("targets", ["query,value", "query, value"])
def test_targets_are_names_of_linear_layers(targets: str, tmp_path: Path) -> None:
    model = lora_model(tmp_path, lora_targets=targets)
    assert {name.split(".")[-1] for name in model.question_model.adapter.layers} == {"query", "value"}  # type: ignore[union-attr]
    assert model.settings.as_dict()["lora_targets"] == targets


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj is no linear layer of a BertModel; set it to all"):
        lora_model(tmp_path, lora_targets="q_proj")
    with pytest.raises(ConfigError, match="has no linear layers to adapt"):
        add_adapters(torch.nn.Embedding(4, 4), BaseModel("x", "y"), EncoderSettings(adapter="lora"))
    for other in ({"fix_ctx_encoder": True}, {"pretrained": False}):
        with pytest.raises(ConfigError, match="mutually exclusive"):
            TowerSettings(adapter="lora", **other).check_together("encoder.")
    plain = BiEncoder.from_pretrained(str(tmp_path), EncoderSettings(sequence_length=24), do_lower_case=True)
    plain.save(tmp_path / "plain")
    for start, advice in (
        (tmp_path, "encoder.pretrained_model_cfg="),
        (tmp_path / "plain", "dpr export to="),
    ):
        with pytest.raises(ConfigError, match=f"no adapters can be added to .*{advice}"):
            BiEncoder.load(start, settings=EncoderSettings(adapter="lora"))
