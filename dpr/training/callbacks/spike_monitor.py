"""Warnings about steps with an unusual loss or gradient."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from dpr.core.logs import get_logger
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run

logger = get_logger(__name__)

WATCHED = ("loss", "gradient norm")
_WINDOW, _LIMIT = 128, 6.0


class HostCopy:
    """A copy of ``tensor`` on the host, under way: nobody waits for the device until ``wait``."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy, self._arrival = tensor, None
        if tensor.is_cuda:
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(tensor.device))

    @property
    def has_arrived(self) -> bool:
        return self._arrival is None or self._arrival.query()

    def wait(self) -> Tensor:
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._copy


class RunningScore:
    """How far a value lies above the mean of those before it, in standard deviations."""

    def __init__(self, *, window: int, least: int) -> None:
        self.values: deque[float] = deque(maxlen=window)
        self._least = least

    def score(self, value: float, *, limit: float) -> float:
        """The score of a new value; 0 while there are too few before it. A score above ``limit`` is remembered as one of ``limit``, so that
        one spike does not hide the next and a lasting rise is accepted after a while.
        """
        if len(self.values) < self._least:
            self.values.append(value)
            return 0.0
        mean = sum(self.values) / len(self.values)
        variance = sum((other - mean) ** 2 for other in self.values) / len(self.values)
        # Without a lower bound, values that hardly differ would make a spike of nothing.
        deviation = max(math.sqrt(variance), 0.02 * abs(mean), 1e-12)
        score = (value - mean) / deviation
        self.values.append(min(value, mean + limit * deviation))
        return score


class SpikeMonitor(Callback):
    """Warns where the loss or the gradient norm of a step exceeds mean + 6 standard deviations of the last 128 steps; changes nothing.

    ``train/spikes`` counts such steps between two log lines. On rank 0, which sees its share of the loss and the norm of the whole
    gradient. On a GPU it looks one step later, so that the host never waits for the device.
    """

    def __init__(self, *, least: int = 32) -> None:
        self._scores = {name: RunningScore(window=_WINDOW, least=least) for name in WATCHED}
        self._pending: tuple[int, HostCopy] | None = None
        self._spikes = 0

    def on_step_end(self, run: Run) -> None:
        if not run.ranks.is_main:
            return
        loss = torch.stack([result.loss_sum for result in run.results]).sum() / sum(result.num_questions for result in run.results)
        values = torch.stack([loss.float(), run.grad_norm.float()])
        self._judge_pending()
        self._pending = run.progress.step, HostCopy(values)
        if not values.is_cuda:
            self._judge_pending()

    def on_log(self, run: Run, metrics: Metrics) -> None:
        metrics["train/spikes"] = float(self._spikes)
        self._spikes = 0

    def on_train_end(self, run: Run) -> None:
        self._judge_pending()

    def _judge_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._judge(*pending)

    def _judge(self, step: int, values: HostCopy) -> None:
        spikes = []
        for name, value in zip(WATCHED, values.wait().tolist(), strict=True):
            if math.isfinite(value) and (score := self._scores[name].score(value, limit=_LIMIT)) > _LIMIT:
                spikes.append(f"{name} {value:.4g} ({score:.0f} standard deviations above its mean)")
        if spikes:
            self._spikes += 1
            logger.warning("step %d stands out: %s", step, ", ".join(spikes))

    def state_dict(self) -> dict[str, Any]:
        self._judge_pending()
        return {"spikes": self._spikes, **{name: list(score.values) for name, score in self._scores.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._spikes = int(state["spikes"])
        for name, score in self._scores.items():
            score.values.extend(state[name])
