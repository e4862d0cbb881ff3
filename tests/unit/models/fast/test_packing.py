"""Packed equals padded in vectors and gradients for every backbone that can be packed; others are padded."""

import copy
import itertools
import logging
from functools import partial
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
)

from dpr.core.batch import TokenBatch, plan_buckets, plan_packs
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.fast import attention
from tests.helpers.training import assert_near, encoded

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 80,
}
CONFIGS = {
    "bert": BertConfig(**SMALL),
    "roberta": RobertaConfig(**SMALL),
    "distilbert": DistilBertConfig(
        dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=100, max_position_embeddings=80
    ),
    "electra": ElectraConfig(**SMALL, embedding_size=32),
    "modernbert": ModernBertConfig(
        **SMALL,
        local_attention=8,
        global_attn_every_n_layers=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
}
LENGTHS = [1, 40, 7, 7, 3, 25, 40, 2, 12]


def batch_of(lengths: list[int], seed: int = 0) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(5, 100, (length,), generator=generator).tolist() for length in lengths]
    return TokenBatch.from_lists(sequences, [length // 2 for length in lengths])


def both(name: str, pooling: str, dtype: torch.dtype = torch.float64) -> tuple[Encoder, Encoder]:
    torch.manual_seed(0)
    backbone = backbone_from_config(CONFIGS[name], dropout=0.0)
    packed = Encoder(copy.deepcopy(backbone), pooling=pooling, projection_dim=5).to(dtype)
    padded = Encoder(backbone, pooling=pooling, projection_dim=5, packed=False).to(dtype)
    padded.load_state_dict(packed.state_dict())
    assert packed.is_packed
    assert not padded.is_packed
    return packed, padded


@pytest.mark.parametrize("min_unpadded", [10, 1000])
@pytest.mark.parametrize(("name", "pooling"), list(itertools.product(CONFIGS, ["cls", "mean"])))
def test_packed_equals_padded_in_vectors_and_gradients(
    name: str, pooling: str, min_unpadded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpr.models.fast.packed.CPU_FORWARD_TOKENS", 60)
    monkeypatch.setattr("dpr.models.fast.packed.CPU_UNPADDED", min_unpadded)
    monkeypatch.setattr(attention, "plan_buckets", partial(plan_buckets, min_tokens=10))
    packed, padded = both(name, pooling)
    packed.train(min_unpadded > max(LENGTHS))
    expected = encoded(padded, batch_of(LENGTHS))
    assert_near(encoded(packed, batch_of(LENGTHS)), expected, 1e-6)
    assert max(float(tensor.norm()) for name, tensor in expected.items() if name != "vectors") > 1e-3


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [1, 1], [64, 1]])
def test_packs_of_one_sequence_equal_lengths_and_extremes(lengths: list[int]) -> None:
    packed, padded = both("bert", "cls")
    torch.testing.assert_close(packed(batch_of(lengths)), padded(batch_of(lengths)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("hidden", "attention"), [(0.3, 0.0), (0.0, 0.5)], ids=["hidden", "attention"])
def test_dropout_has_the_distribution_that_it_has_padded(hidden: float, attention: float) -> None:
    """Compares mean and variance of each element over many copies of three sequences."""
    copies, lengths = 2000, [12, 7, 3]
    torch.manual_seed(0)
    config = BertConfig(**SMALL, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
    backbone = backbone_from_config(config)
    towers = [Encoder(copy.deepcopy(backbone), packed=True).train(), Encoder(backbone, packed=False).train()]
    one = batch_of(lengths)
    many = TokenBatch(one.tokens.repeat(copies), one.lengths.repeat(copies), one.position.repeat(copies))
    with torch.no_grad():
        packed, padded = (tower(many).view(copies, len(lengths), -1).double() for tower in towers)
    variances = [vectors.var(0) for vectors in (packed, padded)]
    assert float(variances[1].min()) > 1e-8
    error = ((variances[0] + variances[1]) / copies).sqrt()
    assert float(((packed.mean(0) - padded.mean(0)) / error).abs().max()) < 5
    # The logarithm of a ratio of two variances of normal values has a standard error of sqrt(4 / copies).
    assert float((variances[0] / variances[1]).log().abs().max()) < 6 * (4 / copies) ** 0.5


def test_other_backbones_are_padded_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        towers = [Encoder(backbone_from_config(MPNetConfig(**SMALL))).eval() for _ in range(2)]
    assert [record.getMessage() for record in caplog.records] == [
        "MPNetModel cannot be packed (its attention cannot be replaced); its batches are padded to the"
        " longest sequence"
    ]
    assert not towers[0].is_packed
    batch = batch_of([6, 3])
    alone = towers[0](batch.select(torch.tensor([1])))
    torch.testing.assert_close(towers[0](batch)[1], alone[0], rtol=0, atol=1e-5)


def test_packs_and_buckets_cover_all_tokens_in_order() -> None:
    lengths = sorted(LENGTHS, reverse=True)
    for limit in (1, 50, 10_000):
        packs = plan_packs(lengths, limit)
        assert [row for pack in packs for row in range(len(lengths))[pack]] == list(range(len(lengths)))
        assert all(sum(lengths[pack]) <= limit or pack.stop - pack.start == 1 for pack in packs)
    buckets = plan_buckets(lengths, min_tokens=20)
    assert len(buckets) > 1
    assert buckets[0].start == 0
    assert buckets[-1].stop == sum(lengths)
    assert [bucket.stop for bucket in buckets[:-1]] == [bucket.start for bucket in buckets[1:]]
    assert sum(bucket.num_sequences for bucket in buckets) == len(lengths)
    assert plan_packs([], 10) == plan_buckets([]) == []
