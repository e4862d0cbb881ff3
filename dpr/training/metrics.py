"""Training metrics between two log lines, and the memory that training takes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.distributed import current_ranks, sum_over_ranks
from dpr.models.biencoder import BiEncoder

Metrics = dict[str, float]


class StepResult(NamedTuple):
    """Of this rank's questions, detached: ``losses`` (B,) without loss weights, ``correct`` as in
    ``LossResult``."""

    losses: Tensor
    correct: Tensor
    num_questions: int

    @property
    def loss_sum(self) -> Tensor:
        return self.losses.sum()

    @property
    def num_correct(self) -> Tensor:
        return self.correct.sum()


class TrainingMetrics:
    """Sums of loss, correct answers, questions and tokens since the last ``take``; a micro-batch
    whose loss is NaN or infinite does not count. Of several train sets ``names``, each has its own metrics
    beside the total.

    Nothing is read back from the device, and nothing travels between ranks, before ``take``.
    """

    def __init__(self, model: BiEncoder, names: Sequence[str] = ()) -> None:
        self._device = model.device
        self._names = names
        towers = {"question": model.question_model, "ctx": model.ctx_model}
        self._packed = {side: tower.is_packed for side, tower in towers.items()}
        self.begin()

    def begin(self, stored: Sequence[float] = ()) -> None:
        """Begins anew, or with what ``settled`` gave of the steps before a checkpoint."""
        self._sums = torch.zeros(max(len(self._names), 1), 3, dtype=torch.float64, device=self._device)
        self._questions = self._tokens = self._computed = 0.0
        self._start = time.perf_counter()
        if len(stored) == self._sums.numel() + 3 and current_ranks().is_main:
            *sums, self._questions, self._tokens, self._computed = stored
            self._sums += torch.tensor(sums, dtype=torch.float64).view_as(self._sums).to(self._device)

    def settled(self) -> list[float]:
        """All sums, of all ranks; rank 0 keeps them from now on. All ranks must call it together."""
        start = self._start
        totals = self._totals()
        self.begin(totals)
        self._start = start
        return totals

    def _totals(self) -> list[float]:
        counts = torch.tensor(
            [self._questions, self._tokens, self._computed], dtype=torch.float64, device=self._device
        )
        totals: list[float] = sum_over_ranks(torch.cat([self._sums.flatten(), counts])).tolist()
        return totals

    def add(self, result: StepResult, batch: BiEncoderBatch) -> None:
        """Adds one micro-batch; ``batch`` is the one on the CPU."""
        losses = result.losses.double()
        size = result.num_questions
        # a user-defined loss may say how many, not which
        correct = result.correct.double() / (1 if result.correct.dim() else size)
        values = torch.stack([losses, correct.expand(size), torch.ones_like(losses)], dim=1)
        members = torch.zeros(len(self._sums), size, dtype=torch.float64)
        members[torch.tensor(batch.datasets) if self._names else 0, torch.arange(size)] = 1.0
        self._sums += on_device(members, self._device) @ torch.where(
            torch.isfinite(losses.sum()), values, 0.0
        )
        self._questions += result.num_questions
        self._tokens += batch.num_tokens
        for side, tokens in (("question", batch.questions), ("ctx", batch.contexts)):
            tower = batch.encoder_type or side
            self._computed += tokens.tokens.shape[0] if self._packed[tower] else tokens.padded_size

    def take(self) -> Metrics:
        """Metrics over all ranks since the last call. All ranks must call it together."""
        *sums, questions, tokens, computed = self._totals()
        of_sets = [sums[start : start + 3] for start in range(0, len(sums), 3)]
        loss, correct, judged = map(sum, zip(*of_sets, strict=True))
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        self.begin()
        if not questions:
            return {}
        metrics = {
            "train/loss": loss / judged if judged else math.nan,
            "train/in_batch_acc": correct / judged if judged else math.nan,
            "perf/questions_per_s": questions / elapsed,
            "perf/tokens_per_s": tokens / elapsed,
            "perf/padding_share": 1.0 - tokens / computed,
        }
        for name, (loss_of_set, correct_of_set, size) in zip(self._names, of_sets, strict=False):
            if size and len(of_sets) > 1:
                own = {
                    "loss": loss_of_set / size,
                    "in_batch_acc": correct_of_set / size,
                    "share": size / judged,
                }
                metrics |= {f"train/{name}/{kind}": value for kind, value in own.items()}
        return metrics


def wait_for(device: torch.device) -> None:
    """Waits until the device has done all work that is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_gb(device: torch.device) -> float:
    """The peak memory so far, in GiB: of tensors on a GPU, of this process elsewhere; NaN on Windows, which
    does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if sys.platform == "win32":
        return math.nan
    import resource  # Windows has no such module

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
