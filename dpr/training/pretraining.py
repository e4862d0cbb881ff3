"""Pre-training as an objective of the trainer: masked tokens of the pool, beside the contrastive loss of its pairs, and what is logged."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import current_ranks, sum_over_ranks
from dpr.data.order import MASKS
from dpr.losses.protocol import Loss, LossResult, Pool
from dpr.models.pretraining import PretrainingHeads
from dpr.training.callbacks.protocol import Callback
from dpr.training.metrics import Metrics
from dpr.training.run import Run


class PretrainingLoss(Loss):
    """``weight`` times a loss of pairs, plus the means of the heads' losses over what is guessed in the whole pool.

    The losses returned are those of the pairs alone: the heads add theirs to the gradient (``PretrainingHeads``), for which this sets their
    share in the objective of a step of ``num_pools`` pools. Weight 0: nothing is gathered, and pairs count nothing.
    """

    def __init__(self, heads: PretrainingHeads, of_pairs: Loss, *, weight: float, num_pools: int) -> None:
        self._heads, self._of_pairs, self._weight, self._num_pools = heads, of_pairs, weight, num_pools
        self.candidates, self.needs = of_pairs.candidates, of_pairs.needs if weight else frozenset()

    def __call__(self, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> LossResult:
        counts = self._heads.counts(batch.questions.lengths, batch.contexts.lengths).to(questions.device, non_blocking=True)
        # The mean over ranks of what each differentiates is the gradient of the pool's mean (docs/numerics.md, section 2).
        self._heads.shares = current_ranks().world_size / (sum_over_ranks(counts).clamp_min(1) * self._num_pools)
        if not self._weight:
            # Backward has to reach every vector: the heads' losses hang on them.
            return LossResult(0.0 * (questions.sum(1) + pool.contexts.sum()), torch.zeros_like(questions[:, 0], dtype=torch.bool))
        result = self._of_pairs(questions, pool, batch)
        return result._replace(losses=self._weight * result.losses)

    def content(self) -> dict[str, object]:
        return dict(self._of_pairs.content())


class Pretraining(Callback):
    """Tells the heads which step masks are drawn for, and adds their losses to the log line; ``train/loss`` is then the whole objective."""

    def __init__(self, heads: PretrainingHeads, seed: int, *, has_pairs: bool) -> None:
        self._heads, self._seed, self._has_pairs = heads, seed, has_pairs

    def on_train_begin(self, run: Run) -> None:
        self._heads.key = int(np.random.SeedSequence((MASKS, self._seed, run.progress.step)).generate_state(1)[0])

    def on_step_end(self, run: Run) -> None:
        self.on_train_begin(run)

    def on_log(self, run: Run, metrics: Metrics) -> None:
        (of_tokens, right, count), (of_decoder, _, decoded) = sum_over_ranks(self._heads.sums.to(run.device)).tolist()
        self._heads.sums = torch.zeros_like(self._heads.sums)
        if not self._has_pairs:
            metrics.pop("train/in_batch_acc", None)
        elif "train/loss" in metrics:
            metrics["train/pair_loss"] = metrics["train/loss"]
        own = {"train/masked_loss": (of_tokens, count), "train/masked_acc": (right, count), "train/decoder_loss": (of_decoder, decoded)}
        metrics |= {name: total / size for name, (total, size) in own.items() if size}
        if "train/loss" in metrics:
            metrics["train/loss"] += metrics.get("train/masked_loss", 0.0) + metrics.get("train/decoder_loss", 0.0)
