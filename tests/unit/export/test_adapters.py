"""Adapters are exported as merged models or as folders of peft, with the same vectors."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.core.errors import InputError
from dpr.export.folders import write_adapters
from dpr.export.towers import merged
from dpr.models.biencoder import BiEncoder
from tests.helpers.jobs import export as main
from tests.unit.models.test_adapters import KINDS, batches, lora_model

pytest.importorskip("peft")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_merged_model_is_plain_and_gives_the_same_vectors(kind: str, shared: bool, tmp_path: Path) -> None:
    model = lora_model(tmp_path, kind, shared=shared, projection_dim=6).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole = merged(model)
    assert whole.base is None and not [key for key in whole.weights() if "lora" in key or "base_layer" in key]
    assert (whole.question_model is whole.ctx_model) == shared
    with torch.no_grad():
        for found, expected in zip(whole(*batches())[:2], model(*batches())[:2], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if kind == "bert" else 1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_in_half_precision_is_merged_in_fp32(tmp_path: Path) -> None:
    model = lora_model(tmp_path).bfloat16()
    expected = merged(copy.deepcopy(model).double()).weights()
    for name, found in merged(model).weights().items():
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected[name], rtol=0, atol=1e-6, msg=name)


def test_a_merged_checkpoint_needs_no_base(tmp_path: Path) -> None:
    model = lora_model(tmp_path / "base").float().eval()
    model.save(tmp_path / "saved")
    assert main(["to=model", f"model_file={tmp_path / 'saved'}", f"out_file={tmp_path / 'whole'}"]) == 0
    (tmp_path / "base" / "config.json").unlink()
    whole = BiEncoder.load(tmp_path / "whole")
    assert whole.settings.adapter == "none"
    for encode in ("encode_questions", "encode_passages"):
        np.testing.assert_allclose(
            getattr(whole, encode)(["ba be", "bi"]),
            getattr(model, encode)(["ba be", "bi"]),
            rtol=0,
            atol=1e-4,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_peft_folders_are_loaded_by_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = lora_model(tmp_path / "base", kind).float().eval()
    model.save(tmp_path / "saved")
    assert main(["to=peft", f"model_file={tmp_path / 'saved'}", f"out_file={tmp_path / 'peft'}"]) == 0
    tokens = torch.tensor([[12, 30, 45, 20, 17]])
    for name, tower in (("question", model.question_model), ("ctx", model.ctx_model)):
        theirs = AutoModel.from_pretrained(str(tmp_path / "peft" / f"adapter_{name}")).eval()
        with torch.no_grad():
            expected = theirs(input_ids=tokens).last_hidden_state
            assert tower.adapter is not None
            with tower.adapter.active():
                found = tower.backbone(
                    input_ids=tokens, attention_mask=torch.ones_like(tokens)
                ).last_hidden_state
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_what_peft_has_no_place_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"other trained weights \(question_model\.encode_proj"):
        write_adapters(lora_model(tmp_path / "base", projection_dim=6), tmp_path / "peft", source="model")
    with pytest.raises(InputError, match="has no adapters"):
        write_adapters(merged(lora_model(tmp_path / "base")), tmp_path / "peft", source="model")
    assert not (tmp_path / "peft").exists()
