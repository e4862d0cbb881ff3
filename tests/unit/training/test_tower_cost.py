"""The arithmetic of a tower is what torch counts."""

from pathlib import Path

import pytest
import torch

from dpr.training.throughput import TowerCost
from tests.helpers.tiny import encoder_folder, tiny_model


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_arithmetic_counted_is_that_of_torchs_counter(tmp_path: Path, pooling: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from dpr.core.batch import TokenBatch

    folder = encoder_folder(
        tmp_path / "encoder", hidden_size=64, num_attention_heads=4, intermediate_size=128
    )
    model = tiny_model(folder, dtype=torch.float32, pooling=pooling)
    lengths = [20, 20, 20]
    batch = TokenBatch(torch.full((60,), 12), torch.tensor(lengths), torch.zeros(3, dtype=torch.int64))
    model.train()
    # The fused kernel of the CPU is not known to the counter.
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        model.question_model(batch).sum().backward()
    own = TowerCost(model.question_model).of(batch.lengths)
    # Computed on the way and not used: queries of all 60 tokens, keys and values of the 3 that are read,
    # forward only.
    unused = 2 * 64 * 64 * (60 + 2 * 3) if pooling == "cls" else 0
    assert own + unused == counter.get_total_flops()
    model.question_model.requires_grad_(False)
    assert TowerCost(model.question_model).of(batch.lengths) == pytest.approx(own / 3)


def test_frozen_weights_under_adapters_have_no_gradient_to_compute(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lengths = torch.tensor([9, 4])
    plain = tiny_model(tmp_path, pooling="mean").question_model
    adapted = tiny_model(tmp_path, pooling="mean", adapter="lora", lora_rank=1, shared=True).question_model
    share = TowerCost(adapted).of(lengths) / TowerCost(plain).of(lengths)
    assert 0.6 < share < 0.85, "two passes of three, attention in full, and the adapters themselves"
