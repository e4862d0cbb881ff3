"""The objective as a weighted sum of terms, each a function of a question and its pool. docs/numerics.md, section 1, has the formulas.

Letters: B questions of this rank, N context slots of this rank, n = N / B slots of each question, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.logs import get_logger
from dpr.losses.candidates import on_device
from dpr.losses.distillation import kl_divergence, margin_mse
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.own_slots import own_positive, own_scores
from dpr.losses.protocol import CONTEXTS, Loss, LossResult, Pool
from dpr.losses.settings import ObjectiveSettings

logger = get_logger(__name__)

# Above it, the softmax of a teacher's scores is 0 for all but the best in fp32.
WIDEST_SPREAD = 100.0


class Objective(Loss):
    """A weighted sum of terms; terms of weight 0 are neither computed nor gathered for.

    The terms run in the same order with the same operations in every step, whatever the data hold: a question without teacher scores has
    a distillation term of 0, and the divisor of the pool stays Q.
    """

    def __init__(self, settings: ObjectiveSettings, *, candidates: str = "distinct", max_scores: int = 1 << 22) -> None:
        self.settings, self.candidates = settings, candidates
        self._nll = BiEncoderNllLoss(candidates=candidates, max_scores=max_scores)
        self.needs = frozenset({CONTEXTS} if settings.nll_weight else ())
        self._has_warned = False

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        settings, losses, num_correct = self.settings, [], None
        if settings.nll_weight:
            nll = self._nll(questions, pool)
            losses.append(settings.nll_weight * nll.losses)
            num_correct = nll.num_correct
        if settings.uses_teacher or num_correct is None:
            scores, positive = own_scores(questions, pool), on_device(own_positive(batch), questions.device)
            if settings.uses_teacher:
                losses.append(self._distillation(scores, positive, pool, batch))
            if num_correct is None:
                valid = on_device(batch.context_valid, scores.device).view_as(scores)
                num_correct = (scores.detach().masked_fill(~valid, -torch.inf).argmax(1) == positive).sum()
        return LossResult(torch.stack(losses).sum(0) if len(losses) > 1 else losses[0], num_correct)

    def _distillation(self, scores: Tensor, positive: Tensor, pool: Pool, batch: BiEncoderBatch) -> Tensor:
        """The weighted distillation terms of each question, (B,), from its scores for its own slots, (B, n)."""
        settings = self.settings
        found = batch.teacher_scores if batch.teacher_scores is not None else torch.full((scores.numel(),), torch.nan)
        found = found.cpu().where(batch.context_valid, torch.nan).view_as(scores)
        self._warn(found)
        teacher = on_device(found, scores.device).to(scores.dtype)
        is_scored, total = ~teacher.isnan(), torch.zeros_like(scores[:, 0])
        if settings.kl_weight:
            divisor = pool.temperature if settings.kl_temperature is None else settings.kl_temperature
            total = total + settings.kl_weight * kl_divergence(scores / divisor, teacher / settings.teacher_temperature, is_scored)
        if settings.margin_mse_weight:
            total = total + settings.margin_mse_weight * margin_mse(scores, settings.margin_mse_scale * teacher, is_scored, positive)
        return total

    def _warn(self, teacher: Tensor) -> None:
        """Warns once of teacher scores (B, n), on the host, that cannot be learned from."""
        if self._has_warned:
            return
        is_scored, divisor = ~teacher.isnan(), self.settings.teacher_temperature
        spread = float((teacher.where(is_scored, -torch.inf).amax(1) - teacher.where(is_scored, torch.inf).amin(1)).amax())
        if not is_scored.any():
            self._has_warned = True
            logger.warning("no passage of this batch has a teacher score, which loss.kl_weight and loss.margin_mse_weight learn from")
        elif self.settings.kl_weight and spread > WIDEST_SPREAD * divisor:
            self._has_warned = True
            logger.warning(
                "teacher scores of one question differ by %.3g, more than %g times loss.teacher_temperature=%g: its softmax is 0 for all "
                "but the best; set loss.teacher_temperature to about %.2g",
                *(spread, WIDEST_SPREAD, divisor, spread / 10),
            )
