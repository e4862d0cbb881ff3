"""Skipped updates are reported with the number of the update that was skipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpr.core.errors import DivergedError
from dpr.training.stopping import FiniteCheck

NAN_AT = (3, 5, 6)


@pytest.mark.parametrize("reads_later", [False, True])
def test_a_skipped_update_is_reported_with_its_own_step(
    reads_later: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, optimizer = (
        FiniteCheck(torch.device("cpu"), most_in_row=2),
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]),
    )
    if reads_later:  # as on CUDA, where the host reads the counts of the update before
        event: Any = SimpleNamespace(synchronize=lambda: None, record=lambda stream: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        guard._arrived = event

    def run() -> None:
        for step in range(1, 9):
            guard.check(optimizer, torch.tensor(float("nan") if step in NAN_AT else 1.0))
            assert bool(optimizer.found_inf) == (step in NAN_AT)  # type: ignore[attr-defined]
            guard.stop_if_hopeless(step)

    with pytest.raises(DivergedError, match="in 2 updates in a row, the last at step 6"):
        run()
    assert guard.num_skipped == 3
    assert [int(text.split()[1].rstrip(":")) for text in caplog.messages] == list(NAN_AT)


@pytest.mark.parametrize("has_loss_scale", [False, True])
def test_a_finite_gradient_whose_norm_is_infinite_changes_no_weight(has_loss_scale: bool) -> None:
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weights], lr=0.1, fused=True)
    guard, scaler = (
        FiniteCheck(torch.device("cpu"), has_loss_scale=has_loss_scale),
        torch.amp.GradScaler("cpu", enabled=has_loss_scale),
    )
    moved = []
    for size in (1.0, 3e38, 1.0):
        before = weights.detach().clone()
        weights.grad = torch.full((3,), size)
        scaler.scale(torch.ones(()))  # a scaler begins with its first loss
        if has_loss_scale:
            weights.grad = weights.grad * scaler.get_scale()
            weights.grad = weights.grad.clamp(max=3e38)
        scaler.unscale_(optimizer)
        norm = (
            torch.nn.utils.clip_grad_norm_([weights], float("inf"))
            if size == 1.0
            else torch.tensor(torch.inf)
        )
        guard.check(optimizer, norm)
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(weights, before))
    assert moved == [True, False, True]
    assert bool(torch.isfinite(weights).all())
