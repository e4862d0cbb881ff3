"""Training metrics between two log lines."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.distributed import current_ranks, sum_over_ranks
from dpr.losses.protocol import LossResult
from dpr.models.towers import Towers
from dpr.training.throughput import TowerCost
from dpr.training.validations.protocol import Metrics


class TrainingMetrics:
    """Sums of loss, correct answers, questions, tokens and arithmetic since the last ``take``. A micro-batch
    whose loss is NaN or infinite does not count. With several train sets ``names``, each has its own metrics
    besides the total.

    Nothing is read back from the device, and nothing is sent between ranks, before ``take``.
    """

    def __init__(self, model: Towers, names: Sequence[str] = ()) -> None:
        self._device = model.device
        self._names = names
        towers = {"question": model.question_model, "ctx": model.ctx_model}
        self._packed = {side: tower.is_packed for side, tower in towers.items()}
        self._cost = {side: TowerCost(tower) for side, tower in towers.items()}
        self.begin()

    def begin(self, stored: Sequence[float] = ()) -> None:
        """Starts from scratch, or from the sums that ``settled`` returned for the steps before a
        checkpoint."""
        self._sums = torch.zeros(max(len(self._names), 1), 3, dtype=torch.float64, device=self._device)
        self._questions = self._tokens = self._computed = self._flops = 0.0
        self._start = time.perf_counter()
        if len(stored) == self._sums.numel() + 4 and current_ranks().is_main:
            *sums, self._questions, self._tokens, self._computed, self._flops = stored
            self._sums += self._sums.new_tensor(sums).view_as(self._sums)

    def settled(self) -> list[float]:
        """Returns all sums, over all ranks; rank 0 keeps them afterwards. All ranks must call it together."""
        start = self._start
        totals = self._totals()
        self.begin(totals)
        self._start = start
        return totals

    def _totals(self) -> list[float]:
        counts = self._sums.new_tensor([self._questions, self._tokens, self._computed, self._flops])
        totals: list[float] = sum_over_ranks(torch.cat([self._sums.flatten(), counts])).tolist()
        return totals

    def add(self, result: LossResult, batch: BiEncoderBatch) -> None:
        """Adds one micro-batch; ``batch`` is the one on the CPU."""
        losses = result.losses.double()
        size = len(losses)
        # a user-defined loss may return the number of correct questions only
        correct = result.correct.double() / (1 if result.correct.dim() else size)
        values = torch.stack([losses, correct.expand(size), torch.ones_like(losses)], dim=1)
        members = torch.zeros(len(self._sums), size, dtype=torch.float64)
        members[torch.tensor(batch.datasets) if self._names else 0, torch.arange(size)] = 1.0
        self._sums += on_device(members, self._device) @ torch.where(
            torch.isfinite(losses.sum()), values, 0.0
        )
        self._questions += size
        self._tokens += batch.num_tokens
        for side, tokens in (("question", batch.questions), ("ctx", batch.contexts)):
            tower = batch.encoder_type or side
            self._computed += tokens.tokens.shape[0] if self._packed[tower] else tokens.padded_size
            self._flops += self._cost[tower].of(tokens.lengths)

    def take(self, *, matrix_speed: float = 0.0) -> Metrics:
        """Returns the metrics over all ranks since the last call. All ranks must call it together.

        ``matrix_speed`` is the number of operations per second that a device can do. ``perf/mfu`` is the MFU: the
        share of it that the model's arithmetic took.
        """
        *sums, questions, tokens, computed, flops = self._totals()
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
        if matrix_speed:
            metrics["perf/mfu"] = flops / elapsed / (matrix_speed * current_ranks().world_size)
        for name, (loss_of_set, correct_of_set, size) in zip(self._names, of_sets, strict=False):
            if size and len(of_sets) > 1:
                metrics[f"train/{name}/loss"] = loss_of_set / size
                metrics[f"train/{name}/in_batch_acc"] = correct_of_set / size
                metrics[f"train/{name}/share"] = size / judged
        return metrics
