"""A step never waits for the device and names its parts for a profiler; caching repeats dropout and keeps to its memory budget."""

import math
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.objective import Objective
from dpr.losses.protocol import GlobalBatch, Loss, LossResult
from dpr.losses.settings import ObjectiveSettings
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training import grad_cache
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.compute import graph_bytes_per_token
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep, Step
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import batch_for, gradients, make_trainer

META = torch.device("meta")
EVERY_TERM = ObjectiveSettings(symmetric_weight=1.0, kl_weight=1.0, margin_mse_weight=1.0, dimensions=[16, 4])
LOSSES: dict[str, Callable[[int], Loss]] = {
    "distinct": lambda max_scores: BiEncoderNllLoss(candidates="distinct", max_scores=max_scores),
    "every term": lambda max_scores: Objective(EVERY_TERM, max_scores=max_scores),
}


def step_of(model: BiEncoder, loss: Loss, max_tokens: int, device: torch.device) -> Step:
    if max_tokens:
        return CachedStep(model, loss, max_tokens=max_tokens, ranks=Ranks(), device=device)
    return DirectStep(model, loss, ranks=Ranks(), device=device)


@pytest.mark.parametrize(
    ("max_tokens", "name", "max_scores"),
    [(0, "distinct", 1 << 22), (0, "every term", 20), (120, "every term", 1 << 22)],
)
def test_nobody_waits_for_the_device(
    tmp_path: Path, max_tokens: int, name: str, max_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device has shapes and no values: whoever asks it for one fails."""
    # which does not know this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **options: nullcontext())
    monkeypatch.setattr(grad_cache, "graph_bytes_per_token", lambda model, **options: 1e9)
    model = tiny_model(tmp_path, dropout=0.1, options=TowerOptions(learn_temperature=True)).to(META).train()
    batch = batch_for(model)
    assert len(batch) * len(batch.context_row) > 20 and not batch.context_valid.all()
    result = step_of(model, LOSSES[name](max_scores), max_tokens, META)(batch, num_batches=1, is_last=True)
    assert result.loss.device == result.num_correct.device == META
    assert all(each.grad is not None and each.grad.device == META for each in model.parameters())


def test_candidates_are_found_on_the_host(tmp_path: Path) -> None:
    batch = batch_for(tiny_model(tmp_path)).to(META)
    for fact in "positive_idx context_valid context_ids known_positive_ids known_positive_valid".split():
        assert getattr(batch, fact).device.type == "cpu", fact
    assert batch.context_row.device == batch.loss_weights.device == batch.contexts.tokens.device == META


class Wrong(Loss):
    def __init__(self, result: Any) -> None:
        self.result = result

    def __call__(self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "found"),
    [(torch.zeros(8), "a Tensor"), (LossResult(torch.zeros(()), torch.zeros(())), r"losses of shape \(\)")],
)
def test_a_loss_of_another_shape_is_refused(tmp_path: Path, result: Any, found: str) -> None:
    model = tiny_model(tmp_path)
    step = step_of(model, Wrong(result), 0, torch.device("cpu"))
    with pytest.raises(ConfigError, match=rf"Wrong returned {found}; expected a LossResult"):
        step(batch_for(model), num_batches=1, is_last=True)


@pytest.mark.parametrize("grad_cache_tokens", [0, 60])
def test_every_part_of_a_step_has_a_range(tmp_path: Path, grad_cache_tokens: int) -> None:
    steps, accumulation = 2, 2
    model = tiny_model(encoder_folder(tmp_path / "encoder"))
    source, options = (ListSource(make_samples(32)), {"grad_cache_tokens": grad_cache_tokens})
    options |= {"gradient_accumulation_steps": accumulation, "batch_size": 4}
    trainer = make_trainer(model, [source], [], tmp_path / "run", max_steps=steps, **options)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer.train()
    counts = Counter(event.name for event in seen.events() if event.name.startswith("dpr/"))
    batches = steps * accumulation
    parts = dict.fromkeys(("dpr/data", "dpr/encode", "dpr/loss", "dpr/backward"), batches)
    assert counts == parts | {"dpr/update": steps}


def elements_summed(folder: Path) -> list[tuple[list[list[int]], int]]:
    """``elements_of`` whole batches and of gradient caching."""
    return [elements_of(folder, grad_cache_tokens) for grad_cache_tokens in (0, 40)]


def elements_of(folder: Path, grad_cache_tokens: int) -> tuple[list[list[int]], int]:
    """The elements that ranks sum in two micro-batches of an update, and those of the model's gradient."""
    model = tiny_model(folder / "encoder")
    options = {"grad_cache_tokens": grad_cache_tokens, "gradient_accumulation_steps": 2, "batch_size": 2}
    sets = [ListSource(make_samples(32))]
    trainer = make_trainer(model, sets, [], folder / f"run-{grad_cache_tokens}", max_steps=1, **options)
    summed: list[list[int]] = []
    real = BiEncoderTrainer.forward_backward

    def watched(self: BiEncoderTrainer, *arguments: Any) -> Any:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            result = real(self, *arguments)
        summed.append(
            [math.prod(event.input_shapes[0]) for event in seen.events() if event.name == "gloo:all_reduce"]
        )
        return result

    BiEncoderTrainer.forward_backward = watched  # type: ignore[method-assign]  # this process is the test's own
    try:
        trainer.train()
    finally:
        BiEncoderTrainer.forward_backward = real  # type: ignore[method-assign]
    return summed, sum(parameter.numel() for parameter in model.parameters())


def test_gradients_travel_once_an_update(tmp_path: Path) -> None:
    """With every micro-batch travels the gradient of its vectors alone."""
    encoder_folder(tmp_path / "encoder")
    for of_rank in run_on_ranks(elements_summed, 2, tmp_path):
        for summed, whole in of_rank:
            vectors = summed[0]
            assert len(vectors) == 1 and vectors[0] < whole
            assert summed == [vectors, [*vectors, whole]]


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_cache, "MIN_CHUNK_TOKENS", 10)


def gradient(model: BiEncoder, max_tokens: int, *, seed: int = 5) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(seed)
    step = CachedStep(model.train(), BiEncoderNllLoss(), max_tokens=max_tokens, ranks=Ranks(), device=CPU)
    step(batch_for(model), num_batches=1, is_last=True)
    return gradients(model)


def lengths_seen(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch, *, bytes_per_token: float = 1e9
) -> list[tuple[int, bool]]:
    """Notes (tokens, with graph) of every forward; with 1e9 bytes a token vectors take almost no budget."""
    calls: list[tuple[int, bool]] = []
    monkeypatch.setattr(grad_cache, "graph_bytes_per_token", lambda model, **options: bytes_per_token)
    for tower in {model.question_model, model.ctx_model}:
        forward = tower.forward

        def recorded(tokens: TokenBatch, forward: Any = forward) -> torch.Tensor:
            calls.append((len(tokens.tokens), torch.is_grad_enabled()))
            return forward(tokens)

        monkeypatch.setattr(tower, "forward", recorded)
    return calls


@pytest.mark.parametrize("packed", [True, False])
def test_dropout_repeats_for_chunks(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth keeps every chunk's graph: the same masks by construction, and one backward through all."""
    model = tiny_model(tmp_path, dropout=0.3, options=TowerOptions(packed=packed))
    recomputed = gradient(model, 40)
    step = CachedStep(model, BiEncoderNllLoss(), max_tokens=40, ranks=Ranks(), device=CPU)
    chunks = [chunk._replace(is_kept=True) for chunk in step._chunks(batch_for(model))]
    assert len(chunks) > 4
    with monkeypatch.context() as patch:
        patch.setattr(CachedStep, "_chunks", lambda self, batch: iter(chunks))
        kept = gradient(model, 10**9)
    assert kept.keys() == recomputed.keys()
    for name, expected in kept.items():
        torch.testing.assert_close(recomputed[name], expected, rtol=1e-9, atol=1e-10, msg=name)
    other = gradient(model, 40, seed=6)
    assert any(not torch.allclose(other[name], recomputed[name]) for name in other)


def test_graphs_keep_to_the_budget_and_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    total = batch_for(model).num_tokens
    calls = lengths_seen(model, monkeypatch)
    for max_tokens in (40, total // 2, total):
        calls.clear()
        gradient(model, max_tokens)
        first = sum(size for size, graph in calls if not graph)
        with_graph = [size for size, graph in calls if graph]
        assert max(with_graph) <= max_tokens
        assert sum(with_graph) == total, "every sequence goes through backward once"
        assert first <= total - max_tokens + 24, "of the budget less than one sequence is left unused"
    assert all(graph for _, graph in calls), "a batch that fits is encoded once"


def test_vectors_take_their_part_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the memory of the budget goes into them here, so half the tokens are kept."""
    model = tiny_model(tmp_path)
    batch, max_tokens = batch_for(model), batch_for(model).num_tokens // 2
    in_bytes = 2 * 4 * model.dimension * (len(batch) + len(batch.context_row))
    calls = lengths_seen(model, monkeypatch, bytes_per_token=in_bytes / (max_tokens / 2))
    gradient(model, max_tokens)
    kept = batch.num_tokens - sum(size for size, graph in calls if not graph)
    assert max_tokens / 2 - 24 <= kept <= max_tokens / 2


def test_chunks_go_on_without_the_global_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, carry_on = tiny_model(tmp_path), CachedStep._carry_on
    batch = batch_for(model)
    global_batch, of_global_batch = grad_cache.global_batch_loss, list[weakref.ref[torch.Tensor]]()

    def noted_loss(loss: Any, questions: torch.Tensor, *arguments: Any) -> Any:
        of_global_batch.append(weakref.ref(questions))
        return global_batch(loss, questions, *arguments)

    def noted(
        step: CachedStep, batch: BiEncoderBatch, chunks: Any, gradients: dict[str, torch.Tensor], *rest: Any
    ) -> None:
        assert [reference() for reference in of_global_batch] == [None]
        sizes = {side: tuple(gradient.shape) for side, gradient in gradients.items()}
        sides = {"ctx": len(batch.contexts), "question": len(batch)}
        assert sizes == {side: (count, model.dimension) for side, count in sides.items()}
        carry_on(step, batch, chunks, gradients, *rest)

    monkeypatch.setattr(grad_cache, "global_batch_loss", noted_loss)
    monkeypatch.setattr(CachedStep, "_carry_on", noted)
    assert len(batch.contexts) < len(batch.context_row), "some passage is listed twice"
    assert gradient(model, 60)


def test_word_tables_have_dense_gradients_and_are_as_before(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    gradient(model, 40)
    for tower in (model.question_model, model.ctx_model):
        words = tower.backbone.get_input_embeddings()
        assert not words.sparse and not words.weight.grad.is_sparse


def test_a_frozen_tower_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path, options=TowerOptions(fix_ctx_encoder=True))
    batch, calls = batch_for(model), lengths_seen(model, monkeypatch)
    found = gradient(model, 24)
    most = batch.contexts.tokens.shape[0] + 2 * batch.questions.tokens.shape[0]
    assert sum(size for size, _ in calls) <= most
    assert not any(name.startswith("ctx_model") for name in found)


def test_bytes_per_token_are_those_autograd_keeps(tmp_path: Path) -> None:
    folders = [encoder_folder(tmp_path / str(width), hidden_size=width) for width in (16, 64)]
    small, wide = (tiny_model(folder, dropout=0.1) for folder in folders)
    per_token = graph_bytes_per_token(small)
    assert per_token > 2 * 16 * 8, "each of two layers keeps more than its input"
    assert 2 * per_token < graph_bytes_per_token(wide) < 8 * per_token


def test_a_tokenizer_without_special_tokens_can_be_trained_with(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    for lacking in ("sep_token", "cls_token", "pad_token"):
        setattr(model.tensorizer.tokenizer, lacking, None)
    assert graph_bytes_per_token(model) == graph_bytes_per_token(tiny_model(tmp_path))
    assert gradient(model, 40)
