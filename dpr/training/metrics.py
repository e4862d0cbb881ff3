"""Running sums between two log lines. Nothing is read back from the device, and nothing travels between ranks, before a line is due."""

from __future__ import annotations

import time

import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import sum_over_ranks
from dpr.training.step import StepResult

Metrics = dict[str, float]


class TrainingMetrics:
    """Sums of loss, correct answers, questions and tokens since the last ``take``."""

    def __init__(self, device: torch.device, *, packed: tuple[bool, bool] = (False, False)) -> None:
        """``packed``: whether the question and the context tower compute real tokens only."""
        self._device, self._packed = device, packed
        self._reset()

    def _reset(self) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        self._questions = self._tokens = self._computed = 0
        self._start = time.perf_counter()

    def add(self, result: StepResult, batch: BiEncoderBatch) -> None:
        self._sums += torch.stack([result.loss_sum.double(), result.num_correct.double()])
        self._questions += result.num_questions
        self._tokens += batch.num_tokens
        for tokens, is_packed in zip((batch.questions, batch.contexts), self._packed, strict=True):
            self._computed += tokens.tokens.shape[0] if is_packed else tokens.padded_size

    def take(self) -> Metrics:
        """Metrics over all ranks since the last call; empties the sums. All ranks must call it together."""
        counts = torch.tensor([self._questions, self._tokens, self._computed], dtype=torch.float64, device=self._device)
        loss, correct, questions, tokens, computed = sum_over_ranks(torch.cat([self._sums, counts])).tolist()
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        self._reset()
        if not questions:
            return {}
        return {
            "train/loss": loss / questions,
            "train/in_batch_acc": correct / questions,
            "perf/questions_per_s": questions / elapsed,
            "perf/tokens_per_s": tokens / elapsed,
            "perf/padding_share": 1.0 - tokens / computed,
        }
