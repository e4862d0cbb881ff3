"""A backbone is tried once; what is made like it afterwards is as fast, and what is not is tried itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig

from dpr.core.batch import TokenBatch
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast import packed
from dpr.models.fast.cpu_modules import Gelu


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_tried", {})


def made(**changed: Any) -> Any:
    config = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return backbone_from_config(BertConfig(**{**config, "intermediate_size": 32, **changed}), dropout=0.1)


def calls_of(backbone: Any, **options: bool) -> int:
    """Forwards that ``accelerate`` makes."""
    counted = []
    hook = backbone.encoder.layer[0].attention.register_forward_hook(lambda *_: counted.append(1))
    settings = {"packed": True, "reads_one_token": True} | options
    packed.accelerate(backbone, attention="sdpa", **settings)
    hook.remove()
    return len(counted)


def test_the_second_of_a_kind_is_not_tried_and_gives_the_same() -> None:
    first, second = made(), made()
    second.load_state_dict(first.state_dict())
    assert calls_of(first) > 0
    assert calls_of(second) == 0
    assert sum(isinstance(module, Gelu) for module in second.modules()) == 2
    batch = TokenBatch(torch.arange(1, 13), torch.tensor([7, 5]), torch.zeros(2, dtype=torch.int64))
    vectors = [Encoder(backbone).eval()(batch) for backbone in (first, second)]
    assert torch.equal(*vectors)


@pytest.mark.parametrize("change", ["configuration", "module", "attribute", "how"])
def test_another_kind_is_tried_itself(change: str) -> None:
    calls_of(made())
    other = made(hidden_act="relu") if change == "configuration" else made()
    if change == "module":
        other.encoder.layer[1].output.dropout = nn.Identity()
    if change == "attribute":
        other.encoder.layer[1].attention.self.is_causal = True
    assert calls_of(other, packed=change != "how") > 0
