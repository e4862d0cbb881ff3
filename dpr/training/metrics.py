"""Running sums between two log lines. Nothing is read back from the device, and nothing travels between ranks, before a line is due."""

from __future__ import annotations

import math
import time

import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import current_ranks, sum_over_ranks
from dpr.models.biencoder import BiEncoder
from dpr.training.step import StepResult
from dpr.training.throughput import TowerCost

Metrics = dict[str, float]


class TrainingMetrics:
    """Sums of loss, correct answers, questions, tokens and arithmetic since the last ``take``; a loss that is no number does not count."""

    def __init__(self, model: BiEncoder) -> None:
        self._device = model.device
        towers = {"question": model.question_model, "ctx": model.ctx_model}
        self._packed = {side: tower.is_packed for side, tower in towers.items()}
        self._cost = {side: TowerCost(tower) for side, tower in towers.items()}
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=self._device)
        self._questions = self._tokens = self._computed = 0
        self._flops = 0.0
        self._start = time.perf_counter()

    def add(self, result: StepResult, batch: BiEncoderBatch) -> None:
        """Adds one micro-batch; ``batch`` is the one on the CPU."""
        loss = result.loss_sum.double()
        figures = torch.stack([loss, result.num_correct.double(), torch.full_like(loss, result.num_questions)])
        self._sums += torch.where(torch.isfinite(loss), figures, 0.0)
        self._questions += result.num_questions
        self._tokens += batch.num_tokens
        for side, tokens in (("question", batch.questions), ("ctx", batch.contexts)):
            tower = batch.encoder_type or side
            self._computed += tokens.tokens.shape[0] if self._packed[tower] else tokens.padded_size
            self._flops += self._cost[tower].of(tokens.lengths)

    def take(self, *, peak: float = 0.0) -> Metrics:
        """Metrics over all ranks since the last call; empties the sums. All ranks must call it together.

        ``peak``: operations per second that a device could do, for ``perf/mfu``, the share of it that the model's arithmetic took.
        """
        counts = torch.tensor([self._questions, self._tokens, self._computed, self._flops], dtype=torch.float64, device=self._device)
        loss, correct, judged, questions, tokens, computed, flops = sum_over_ranks(torch.cat([self._sums, counts])).tolist()
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        self._reset()
        if not questions:
            return {}
        return {
            "train/loss": loss / judged if judged else math.nan,
            "train/in_batch_acc": correct / judged if judged else math.nan,
            "perf/questions_per_s": questions / elapsed,
            "perf/tokens_per_s": tokens / elapsed,
            "perf/padding_share": 1.0 - tokens / computed,
            **({"perf/mfu": flops / elapsed / (peak * current_ranks().world_size)} if peak else {}),
        }
