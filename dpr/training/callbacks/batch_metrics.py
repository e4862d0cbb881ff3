"""Metrics of the vectors of the global batch, which the loss does not show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpr.core.batch import BiEncoderBatch, on_device
from dpr.core.distributed import sum_over_ranks
from dpr.core.logs import get_logger
from dpr.losses.candidates import MASKED_SCORE, score_matrix
from dpr.losses.protocol import GlobalBatch
from dpr.training.run import Callback, Run
from dpr.training.settings import is_logged
from dpr.training.validations.protocol import Metrics

logger = get_logger(__name__)

OF_QUESTIONS = ("positive_similarity", "negative_similarity", "margin", "temperature", "candidates")
SAMPLE = 64
COLLAPSED = 3.0


class GlobalBatchMetrics(Callback):
    """Callback that adds ``pool/...``, metrics of the first global batch of a logged step, to those that are
    logged; ``metrics.jsonl`` has them. It warns when the vectors have collapsed.

    They are measured on at most ``SAMPLE`` questions, each in its whole global batch, and on at most
    ``SAMPLE`` passages, evenly spaced over all ranks. So they do not depend on the number of ranks if the
    loss gathers the passages. A collapse is an effective rank below ``COLLAPSED`` and below a quarter of the
    highest before. docs/training.md, "The log line", explains each metric.
    """

    state_key = "PoolMetrics"  # its name in checkpoints of all versions

    def __init__(self, log_every: int | None) -> None:
        self.log_every = log_every
        self._step = 0
        self._of_questions = torch.zeros(0)
        self._cosines = torch.zeros(0)
        self._highest_rank = 0.0
        self._has_warned = False

    def needs_global_batch(self, run: Run) -> bool:
        step = run.progress.step + 1
        return self._step != step and (step == 1 or is_logged(step, self.log_every, run.last_step))

    def on_global_batch(
        self, run: Run, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> None:
        if not self.needs_global_batch(run):
            return
        self._step = run.progress.step + 1

        # OF_QUESTIONS of the sampled questions, (R, 5); NaN if a question has no negative.
        stride = -(-len(questions) * run.ranks.world_size // SAMPLE)
        rows = torch.arange(-run.ranks.rank * len(questions) % stride, len(questions), stride)
        rows = on_device(rows, questions.device)
        target = global_batch.candidates.target[rows]
        candidates = global_batch.candidates._replace(
            target=target, masked=global_batch.candidates.masked[rows]
        )
        scores = candidates.mask_(score_matrix(questions[rows], global_batch.contexts))
        positive = scores.gather(1, target[:, None])[:, 0]
        others = scores.scatter(1, target[:, None], MASKED_SCORE)
        others = others.where(others > MASKED_SCORE, torch.nan)
        self._of_questions = torch.stack(
            [
                positive,
                others.nanmean(1),
                positive - others.nan_to_num(-torch.inf).amax(1),
                global_batch.temperature.like(positive).expand(len(rows)),
                1 + (~others.isnan()).sum(1),
            ],
            dim=1,
        )

        # Cosines of the sampled passages with each other, (n, n), in fp32 at least; 0 for passages that an
        # earlier slot holds.
        stride = -(-len(global_batch.contexts) // SAMPLE)
        passages = global_batch.contexts[::stride]
        passages = normalize(passages.to(torch.promote_types(passages.dtype, torch.float32)), dim=1)
        passages = passages * global_batch.candidates.counts[::stride, None]
        self._cosines = passages @ passages.T

    def on_step_end(self, run: Run) -> None:
        if run.progress.step == 1:  # reference for a collapse
            self._highest_rank = max(0.0, effective_rank(self._cosines.cpu()))

    def on_log(self, run: Run, metrics: Metrics) -> None:
        if self._step != run.progress.step:
            return
        rank = effective_rank(self._cosines.cpu())
        values = self._of_questions.double().cpu()
        sums = torch.cat([values.nansum(0), torch.tensor([rank], dtype=torch.float64).nan_to_num()])
        counts = torch.cat([(~values.isnan()).sum(0), torch.tensor([rank == rank])])
        sums, counts = sum_over_ranks(torch.stack([sums, counts.double()])).unbind()
        for name, value, count in zip((*OF_QUESTIONS, "effective_rank"), sums, counts, strict=True):
            if count:
                metrics[f"pool/{name}"] = float(value / count)
        self._highest_rank = max(self._highest_rank, rank)  # in this order a NaN is not larger
        if rank < min(COLLAPSED, self._highest_rank / 4) and not self._has_warned and run.ranks.is_main:
            self._has_warned = True
            logger.warning(
                "step %d: the vectors have collapsed: the effective rank of the passages is %.1f and was"
                " %.1f; restart with a lower learning rate, for example train.learning_rate=%g",
                self._step,
                rank,
                self._highest_rank,
                run.settings.train.learning_rate / 10,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"highest_rank": self._highest_rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._highest_rank = float(state["highest_rank"])


def effective_rank(cosines: Tensor) -> float:
    """Returns the exponential of the entropy of the vectors' singular values (Roy and Vetterli, 2007), from
    their cosines; NaN for fewer than two vectors."""
    counts = cosines.diagonal() > 0.5
    noise = torch.finfo(cosines.dtype).eps * len(cosines) ** 2
    cosines = cosines[counts][:, counts].double()
    if len(cosines) < 2:
        return torch.nan
    strengths = torch.threshold(torch.linalg.eigvalsh(cosines), noise, 0.0).sqrt()
    return float(torch.special.entr(strengths / strengths.sum()).sum().exp())
