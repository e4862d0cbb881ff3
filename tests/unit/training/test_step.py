"""A step hands the device work, never waits for an answer, and names its parts for a profiler."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.objective import Objective
from dpr.losses.protocol import GlobalBatch, Loss, LossResult
from dpr.losses.settings import ObjectiveSettings
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training import grad_cache
from dpr.training.bi_encoder_trainer import BiEncoderTrainer
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep, Step
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import batch_for, make_trainer

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
    monkeypatch.setattr(grad_cache, "MIN_CHUNK_TOKENS", 10)
    model = tiny_model(tmp_path, dropout=0.1, options=TowerOptions(learn_temperature=True)).to(META).train()
    batch = batch_for(model)
    assert len(batch) * len(batch.context_row) > 20 and not batch.context_valid.all()
    result = step_of(model, LOSSES[name](max_scores), max_tokens, META)(batch, num_batches=1, is_last=True)
    assert result.loss.device == result.num_correct.device == META
    assert all(
        parameter.grad is not None and parameter.grad.device == META for parameter in model.parameters()
    )


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
def test_a_loss_of_another_shape_than_the_questions_is_refused(
    tmp_path: Path, result: Any, found: str
) -> None:
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
