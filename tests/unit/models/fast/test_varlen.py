"""Attention by torch's varlen kernel equals SDPA; a stand-in computes it here (CUDA: tests/gpu/test_varlen.py)."""

import inspect
import itertools
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import BertConfig

from dpr.core.errors import ConfigError
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import TowerOptions
from dpr.models.encoder import Encoder
from dpr.models.fast import varlen
from tests.helpers.tiny import ListSource, make_samples, tiny_model
from tests.helpers.training import assert_near, assert_same_bits, encoded, make_trainer
from tests.helpers.varlen import Call, on_any_device, reference
from tests.unit.models.fast.test_packing import CONFIGS, LENGTHS, SMALL, batch_of

EXACT = (torch.float64,)


def tower_of(
    config: Any, *, pooling: str = "cls", dropout: float = 0.0, attention_dropout: float | None = None
) -> Encoder:
    torch.manual_seed(0)
    backbone = backbone_from_config(config, dropout=dropout, attention_dropout=attention_dropout)
    return Encoder(backbone, pooling=pooling, attention="varlen")


def as_sdpa(tower: Encoder) -> Encoder:
    tower.fast = replace(tower.fast, attention="sdpa")
    return tower


def test_the_stand_in_has_the_signature_of_torch() -> None:
    def shape(function: Any) -> list[tuple[str, Any, Any]]:
        return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]

    if "num_splits" not in inspect.signature(varlen_attn).parameters:
        pytest.skip("torch before 2.12 has fewer arguments, of which none is used")
    assert shape(reference) == shape(varlen_attn)


@pytest.mark.parametrize(("name", "pooling"), list(itertools.product(CONFIGS, ["cls", "mean"])))
def test_vectors_and_gradients_equal_sdpas(name: str, pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    tower, batch = tower_of(CONFIGS[name], pooling=pooling).double(), batch_of(LENGTHS)
    with on_any_device(monkeypatch, dtypes=EXACT) as calls:
        found = encoded(tower, batch)
    assert len(calls) == (3 if (name, pooling) == ("modernbert", "cls") else 6)
    assert_near(found, encoded(as_sdpa(tower), batch), 1e-11)
    assert float(max(tensor.abs().max() for name, tensor in found.items() if name != "vectors")) > 1e-3


def test_a_last_layer_for_tokens_read_asks_for_one_query_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = tower_of(CONFIGS["bert"]).double()
    with on_any_device(monkeypatch, dtypes=EXACT) as calls:
        tower(batch_of(LENGTHS))
    everywhere = (-1, -1)
    of_all = Call(torch.float64, sum(LENGTHS), (40, 40), everywhere)
    assert calls == [of_all, Call(torch.float64, len(LENGTHS), (1, 40), everywhere)]


def test_local_layers_have_a_window_and_read_one_token_by_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    """ModernBERT, whose last layer here is local: the kernel cannot be given the positions of the tokens."""
    assert CONFIGS["modernbert"].layer_types == ["full_attention", "sliding_attention"]
    windows = []
    for pooling in ("mean", "cls"):
        tower, batch = tower_of(CONFIGS["modernbert"], pooling=pooling).double(), batch_of(LENGTHS)
        with on_any_device(monkeypatch, dtypes=EXACT) as calls:
            tower(batch)
        windows.append([call.window for call in calls])
    assert windows == [[(-1, -1), (4, 4)], [(-1, -1)]], "local_attention=8 reaches 4 tokens to either side"


def test_the_stray_sep_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tower, batch = tower_of(CONFIGS["bert"]).double(), batch_of(LENGTHS)
    tower.attend_to_last(2, 49)
    with on_any_device(monkeypatch, dtypes=EXACT) as calls:
        found = encoded(tower, batch)
    assert calls[0].num_queries == sum(LENGTHS) + len(LENGTHS)
    assert_near(found, encoded(as_sdpa(tower), batch), 1e-11)


@pytest.mark.parametrize("dtype", varlen.DTYPES)
def test_autocast_gives_it_half_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tower, batch = tower_of(CONFIGS["modernbert"]), batch_of(LENGTHS)
    exact = encoded(as_sdpa(tower), batch)["vectors"]
    with torch.autocast("cpu", dtype=dtype):
        sdpa = encoded(tower, batch)["vectors"]
        tower.fast = replace(tower.fast, attention="varlen")
        with on_any_device(monkeypatch) as calls:
            found = encoded(tower, batch)
    assert calls and {call.dtype for call in calls} == {dtype}
    assert found["vectors"].dtype == torch.float32
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert float((found["vectors"] - exact).norm()) < 2 * float((sdpa - exact).norm())


def test_checkpointed_activations_give_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = tower_of(CONFIGS["bert"], dropout=0.1, attention_dropout=0.0).double().train()
    batch = batch_of(LENGTHS)
    results = []
    with on_any_device(monkeypatch, dtypes=EXACT) as calls:
        for checkpointed in (False, True):
            if checkpointed:
                tower.backbone.gradient_checkpointing_enable({"use_reentrant": False})
            torch.manual_seed(7)
            results.append(encoded(tower, batch))
    assert len(calls) == 2 + 4, "each layer's attention was computed again"
    assert_same_bits(results[1], results[0])


def test_attention_dropout_is_refused_and_hidden_dropout_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_any_device(monkeypatch, dtypes=EXACT) as calls:
        with pytest.raises(ConfigError, match=r"no attention dropout.*set encoder\.attention_dropout=0 "):
            tower_of(CONFIGS["bert"], dropout=0.1).double().train()(batch_of(LENGTHS))
        tower_of(CONFIGS["bert"], dropout=0.1).double().eval()(batch_of(LENGTHS))
        assert len(calls) == 2, "nothing is dropped in evaluation"
        tower = tower_of(CONFIGS["bert"], dropout=0.1, attention_dropout=0.0).double().train()
        assert not torch.equal(tower(batch_of(LENGTHS)), tower(batch_of(LENGTHS)))


@pytest.mark.parametrize(
    ("config", "dtype", "with_device", "lack"),
    [
        (CONFIGS["bert"], torch.float32, False, "the kernel is for CUDA, not for cpu"),
        (CONFIGS["bert"], torch.float32, True, "the kernel computes in fp16 and bf16, not in float32"),
        (BertConfig(**SMALL | {"num_attention_heads": 8}), torch.bfloat16, True, "up to 256 wide, not 4"),
    ],
)
def test_elsewhere_attention_is_sdpas_and_a_warning_says_why_once(
    config: Any,
    dtype: torch.dtype,
    with_device: bool,
    lack: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if with_device:
        monkeypatch.setattr(varlen, "device_lacks", lambda device: None)
    tower = tower_of(config).to(dtype).eval()
    with caplog.at_level(logging.WARNING):
        found = [tower(batch_of(LENGTHS)) for _ in range(2)]
    assert caplog.text.count(lack) == 1
    assert torch.equal(found[0], as_sdpa(tower)(batch_of(LENGTHS)))


def test_trials_before_training_have_its_precision_and_warn_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = TowerOptions(attention="varlen", attention_dropout=0.0)
    model = tiny_model(tmp_path / "encoder", dtype=torch.float32, options=options)
    with on_any_device(monkeypatch) as calls, caplog.at_level(logging.WARNING):
        sets = [ListSource(make_samples(24))]
        make_trainer(model, sets, [], tmp_path / "run", max_steps=1, precision="bf16").train()
    assert {call.dtype for call in calls} == {torch.bfloat16} and "no effect here" not in caplog.text


def test_nobody_waits_for_the_device_and_torch_takes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no values, so reading one fails; torch's own function checks the call."""
    monkeypatch.setattr(varlen, "device_lacks", lambda device: None)
    for attention, name, pooling in (
        ("sdpa", "bert", "cls"),
        ("sdpa", "modernbert", "mean"),
        ("varlen", "bert", "mean"),
        ("varlen", "modernbert", "cls"),
    ):
        tower = tower_of(CONFIGS[name], pooling=pooling)
        tower.fast = replace(tower.fast, attention=attention)
        if name == "bert":
            tower.attend_to_last(2, 49)
        batch = batch_of(LENGTHS).to("meta")
        assert batch.lengths.device.type == "cpu"
        vectors = tower.to(torch.bfloat16).to("meta")(batch)
        assert vectors.shape == (len(LENGTHS), 32) and vectors.device.type == "meta"
        vectors.sum().backward()


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoder\.attention=flash is not one of sdpa, varlen"):
        Encoder(backbone_from_config(CONFIGS["bert"]), attention="flash")
