"""On a GPU the monitor looks at a step when the next one is done, so that the host never waits for the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpr.training.callbacks.spike_monitor import SpikeMonitor
from dpr.training.step import StepResult


@pytest.mark.gpu
def test_a_spike_is_flagged_one_step_later_and_none_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    monitor = SpikeMonitor(least=8)
    losses = [2.0 + 0.1 * (step % 3) for step in range(1, 20)] + [2e4, 2.0]
    for step, loss in enumerate(losses, 1):
        result = StepResult(torch.tensor(loss * 4, device="cuda"), torch.tensor(1, device="cuda"), 4)
        trainer: Any = SimpleNamespace(
            ranks=SimpleNamespace(is_main=True),
            results=[result],
            grad_norm=torch.tensor(1.0, device="cuda"),
            progress=SimpleNamespace(step=step),
        )
        monitor.on_step_end(trainer)
        assert ("step 20 stands out" in caplog.text) == (step == 21)
    assert len(monitor.state_dict()["loss"]) == len(losses), "the last one is looked at when a checkpoint is written"
