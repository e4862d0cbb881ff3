"""The distillation terms of an objective: a batch's teacher scores against the model's."""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.logs import get_logger
from dpr.core.temperature import Temperature
from dpr.losses.distillation import kl_divergence, margin_mse
from dpr.losses.own_slots import own_positive
from dpr.losses.settings import DistillationSettings

logger = get_logger(__name__)

# Above it, the softmax of a teacher's scores is 0 in fp32 for all but the best.
WIDEST_SPREAD = 100.0
# Data sets with and without scores may alternate.
MOST_WITHOUT = 10


class Teacher:
    """The weighted sum of the distillation terms. It warns once of scores that cannot be learned from."""

    def __init__(self, settings: DistillationSettings) -> None:
        self.settings, self._has_warned, self._num_without = settings, False, 0

    def __call__(self, scores: Tensor, temperature: Temperature, batch: BiEncoderBatch) -> Tensor:
        """Of each question, (B,), from its scores for its own slots, (B, n), which no temperature divides yet."""
        settings = self.settings
        found = batch.teacher_scores if batch.teacher_scores is not None else torch.full((scores.numel(),), torch.nan)
        found = found.where(batch.context_valid, torch.nan).view_as(scores)
        self._warn(found)
        teacher = on_device(found, scores.device).to(scores.dtype)
        is_scored, total = ~teacher.isnan(), torch.zeros_like(scores[:, 0])
        if settings.kl_weight:
            student = scores / (temperature if settings.kl_temperature is None else settings.kl_temperature)
            total = total + settings.kl_weight * kl_divergence(student, teacher / settings.teacher_temperature, is_scored)
        if settings.margin_mse_weight:
            positive = on_device(own_positive(batch), scores.device)
            total = total + settings.margin_mse_weight * margin_mse(scores, settings.margin_mse_scale * teacher, is_scored, positive)
        return total

    def _warn(self, teacher: Tensor) -> None:
        """Looks at teacher scores (B, n) on the host."""
        if self._has_warned:
            return
        is_scored, divisor = ~teacher.isnan(), self.settings.teacher_temperature
        spread = float((teacher.where(is_scored, -torch.inf).amax(1) - teacher.where(is_scored, torch.inf).amin(1)).amax())
        if not is_scored.any():
            self._num_without += 1
            if self._num_without == MOST_WITHOUT:
                self._has_warned = True
                found = "no passage of %d batches in a row has a teacher score, which loss.kl_weight and loss.margin_mse_weight learn from"
                logger.warning(found, MOST_WITHOUT)
            return
        self._num_without = 0
        if self.settings.kl_weight and spread > WIDEST_SPREAD * divisor:
            self._has_warned = True
            logger.warning(
                "teacher scores of one question differ by %.3g, more than %g times loss.teacher_temperature=%g: its softmax is 0 for all "
                "but the best; set loss.teacher_temperature to about %.2g",
                *(spread, WIDEST_SPREAD, divisor, spread / 10),
            )
