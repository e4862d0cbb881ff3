"""On a GPU ``encoder.attention=varlen`` computes what SDPA does: vectors, gradients, training steps and
embeddings, in half precision.

Half precision is judged by the same tower in fp32: what goes through the kernel may be twice as far from it
as SDPA's is.
"""

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, ModernBertConfig

from dpr.core.batch import TokenBatch
from dpr.embedding.encode import encode_tokens
from dpr.models.backbones import backbone_from_config
from dpr.models.biencoder import TowerOptions
from dpr.models.encoder import Encoder
from dpr.models.fast import varlen
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import make_trainer
from tests.helpers.varlen import reference
from tests.unit.models.fast.test_packing import CONFIGS

pytestmark = pytest.mark.gpu

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 200,
}
WIDE = {
    "bert": BertConfig(**SIZES, num_hidden_layers=3, max_position_embeddings=300),
    "modernbert": ModernBertConfig(
        **{
            **CONFIGS["modernbert"].to_dict(),
            **SIZES,
            "num_hidden_layers": 2,
            "max_position_embeddings": 300,
            "local_attention": 32,
        }
    ),
}
LENGTHS = [256, 1, 40, 7, 7, 128, 129, 3, 25, 200, 2, 64]


@pytest.fixture(autouse=True)
def _kernel_is_there() -> None:
    lack = varlen.device_lacks(torch.device("cuda"))
    if lack is not None:
        pytest.skip(lack)


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Queries that torch's kernel is given."""
    from torch.nn.attention.varlen import varlen_attn

    calls: list[Tensor] = []

    def count(query: Tensor, *others: Any, **options: Any) -> Any:
        calls.append(query)
        return varlen_attn(query, *others, **options)

    with patch.context() as inside:
        inside.setattr("torch.nn.attention.varlen.varlen_attn", count)
        yield calls


def batch_of(lengths: list[int]) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(5, 200, (length,), generator=generator).tolist() for length in lengths]
    return TokenBatch.from_lists(sequences, [length // 2 for length in lengths]).to("cuda")


def tower_of(name: str, pooling: str) -> Encoder:
    torch.manual_seed(0)
    return Encoder(backbone_from_config(WIDE[name], dropout=0.0), pooling=pooling).cuda()


def flat_gradient(tower: Encoder, batch: TokenBatch, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    tower.zero_grad()
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        vectors = tower(batch)
    vectors.square().mean().backward()
    return vectors.detach(), torch.cat(
        [value.grad.flatten() for value in tower.parameters() if value.grad is not None]
    )


@pytest.mark.parametrize("window", [(-1, -1), (4, 4)])
@pytest.mark.parametrize("num_queries", ["all", "one"])
def test_the_kernel_is_what_the_stand_in_says(window: tuple[int, int], num_queries: str) -> None:
    from torch.nn.attention.varlen import varlen_attn

    if num_queries == "one" and window != (-1, -1):
        pytest.skip("never asked for")
    layout = varlen.VarlenLayout.build(LENGTHS, torch.device("cuda"))
    ends = (
        layout.ends
        if num_queries == "all"
        else torch.arange(len(LENGTHS) + 1, dtype=torch.int32, device="cuda")
    )
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(size, 4, 64, device="cuda", dtype=torch.bfloat16)
        for size in (int(ends[-1]), sum(LENGTHS), sum(LENGTHS))
    )
    call = (ends, layout.ends, int(ends.diff().max()), max(LENGTHS))
    found = varlen_attn(q, k, v, *call, scale=0.2, window_size=window)
    cpu = [part.cpu() for part in (ends, layout.ends)]
    expected = reference(
        *(part.double().cpu() for part in (q, k, v)), *cpu, *call[2:], scale=0.2, window_size=window
    )
    error = (found.double().cpu() - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))
    assert float(error.max()) < 2e-2, "of some token it is another sum"


@pytest.mark.parametrize(
    ("name", "pooling", "dtype"), list(itertools.product(WIDE, ["cls", "mean"], varlen.DTYPES))
)
def test_vectors_and_gradients_are_those_of_sdpa(
    name: str, pooling: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower, batch = tower_of(name, pooling), batch_of(LENGTHS)
    exact = flat_gradient(tower, batch, None)
    sdpa = flat_gradient(tower, batch, dtype)
    tower.fast = replace(tower.fast, attention="varlen")
    with counted(monkeypatch) as calls:
        found = flat_gradient(tower, batch, dtype)
    assert calls and {query.dtype for query in calls} == {dtype}
    for mine, theirs, truth in zip(found, sdpa, exact, strict=True):
        assert float((mine - truth).norm()) <= 2 * float((theirs - truth).norm()) + 1e-3 * float(truth.norm())


def test_checkpointed_activations_give_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    tower, batch = tower_of("bert", "cls"), batch_of(LENGTHS)
    tower.fast = replace(tower.fast, attention="varlen")
    twin = copy.deepcopy(tower)
    twin.train().backbone.gradient_checkpointing_enable({"use_reentrant": False})
    with counted(monkeypatch) as calls:
        plain, again = (
            flat_gradient(tower.train(), batch, torch.bfloat16),
            flat_gradient(twin, batch, torch.bfloat16),
        )
    assert len(calls) == 3 + 6
    torch.testing.assert_close(again[1], plain[1], rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("grad_cache_tokens", [0, 80])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_takes_the_steps_it_takes_with_sdpa(
    precision: str, grad_cache_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder_folder(tmp_path / "encoder", hidden_size=128, num_attention_heads=2, intermediate_size=256)
    losses: dict[str, list[float]] = {}
    for attention in varlen.KERNELS:
        options = TowerOptions(attention=attention, attention_dropout=0.0)
        model = tiny_model(tmp_path / "encoder", dtype=torch.float32, dropout=0.1, options=options).cuda()
        with counted(monkeypatch) as calls:
            job = make_trainer(
                model,
                [ListSource(make_samples(64))],
                [],
                tmp_path / attention,
                max_steps=20,
                num_train_epochs=20,
                precision=precision,
                grad_cache_tokens=grad_cache_tokens,
                learning_rate=1e-3,
            )
            losses[attention] = steps_of(job)
        assert bool(calls) == (attention == "varlen")
    first = losses["sdpa"][0]
    assert losses["sdpa"][-1] < 0.9 * first, "something is learnt"
    assert (
        max(abs(mine - theirs) for mine, theirs in zip(losses["varlen"], losses["sdpa"], strict=True))
        < 0.05 * first
    )


def steps_of(job: BiEncoderTrainer) -> list[float]:
    """The losses of 20 updates on one batch, with one dropout mask."""
    batch, losses = next(job.micro_batches()), []
    job.model.train()
    for _ in range(20):
        result = job.forward_backward(batch, 0)
        job.update()
        losses.append(float(result.loss) / result.num_questions)
    return losses


def test_embeddings_are_those_of_sdpa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder_folder(tmp_path, hidden_size=128, num_attention_heads=2, intermediate_size=256)
    texts = [sample.question for sample in make_samples(50)]
    found = []
    for attention in varlen.KERNELS:
        model = tiny_model(tmp_path, dtype=torch.float32, options=TowerOptions(attention=attention)).cuda()
        tokens = TokenBatch.from_lists(model.tensorizer.question_tokens(texts))
        with counted(monkeypatch) as calls:
            found.append(torch.tensor(encode_tokens(model, tokens, batch_tokens=100, precision="bf16")))
        assert bool(calls) == (attention == "varlen")
    exact = torch.tensor(encode_tokens(model, tokens, batch_tokens=100))
    assert float((found[1] - exact).norm()) <= 2 * float((found[0] - exact).norm())


@pytest.mark.parametrize("attention", varlen.KERNELS)
def test_no_forward_waits_for_the_device(attention: str) -> None:
    tower = tower_of("bert", "cls")
    tower.fast = replace(tower.fast, attention=attention)
    host = batch_of(LENGTHS).to("cpu")
    flat_gradient(tower, host.to("cuda"), torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            tower(host.to("cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
