"""A step hands the device work and never waits for an answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.core.errors import ConfigError
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.objective import Objective
from dpr.losses.protocol import GlobalBatch, Loss, LossResult
from dpr.losses.settings import ObjectiveSettings
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training import grad_cache
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep, Step
from tests.helpers.tiny import tiny_model
from tests.helpers.training import batch_for

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
def test_a_loss_that_does_not_return_one_loss_a_question_is_refused(
    tmp_path: Path, result: Any, found: str
) -> None:
    model = tiny_model(tmp_path)
    step = step_of(model, Wrong(result), 0, torch.device("cpu"))
    with pytest.raises(ConfigError, match=rf"Wrong returned {found}; expected a LossResult"):
        step(batch_for(model), num_batches=1, is_last=True)
