"""What one batch means: forward through both towers, candidates of all ranks, loss, backward."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import Ranks
from dpr.losses.nll import BiEncoderNllLoss, LossResult
from dpr.models.biencoder import BiEncoder, BiEncoderVectors
from dpr.training.pool_gather import PoolGather

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class StepResult(NamedTuple):
    """Sums over this rank's questions, detached: ``loss_sum`` () without loss weights, ``num_correct`` (), ``num_questions``."""

    loss_sum: Tensor
    num_correct: Tensor
    num_questions: int


class Step(Protocol):
    """One micro-batch. Adds its gradient to the parameters."""

    scaler: torch.amp.GradScaler

    def __call__(self, batch: BiEncoderBatch, *, num_pools: int, is_last: bool) -> StepResult:
        """``num_pools`` pools make up the optimizer step; gradients are joined over ranks with the last."""
        ...


def pool_loss(
    loss: BiEncoderNllLoss, questions: Tensor, gather: PoolGather, batch: BiEncoderBatch, ranks: Ranks, temperature: Tensor | float
) -> LossResult:
    """The loss of this rank's question vectors (B, D) in the pool that all ranks' contexts make up."""
    pool = gather.wait()
    with record_function("dpr/loss"):
        return loss(
            questions,
            pool,
            batch.positive_idx + ranks.rank * len(batch.context_valid),
            batch.known_positive_ids,
            batch.known_positive_valid,
            temperature,
        )


def objective_share(result: LossResult, batch: BiEncoderBatch, num_pools: int) -> Tensor:
    """What this rank differentiates: W / Q times the weighted sum over its questions, divided by the step's pools.

    The pool has Q = W * B questions; W / Q = 1 / B makes the mean over ranks the gradient of the pool's weighted mean.
    """
    return (result.losses * batch.loss_weights.to(result.losses.dtype)).sum() * (1 / (len(batch) * num_pools))


class DirectStep:
    """Both towers at once, the whole batch in one forward."""

    def __init__(self, model: nn.Module, loss: BiEncoderNllLoss, *, ranks: Ranks, device: torch.device, precision: str = "fp32") -> None:
        self.model, self.loss, self.ranks, self.device = model, loss, ranks, device
        self._autocast_dtype = PRECISIONS[precision]
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        unwrapped: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        assert isinstance(unwrapped, BiEncoder)
        self._fixed_temperature = unwrapped.options.temperature

    def __call__(self, batch: BiEncoderBatch, *, num_pools: int, is_last: bool) -> StepResult:
        batch = batch.to(self.device)
        gather = PoolGather(batch)
        with self._reduction(is_last):
            with self._autocast(), record_function("dpr/encode"):
                vectors: BiEncoderVectors = self.model(batch.questions, batch.contexts, batch.encoder_type, on_contexts=gather.start)
            temperature = self._fixed_temperature if vectors.temperature is None else vectors.temperature
            result = pool_loss(self.loss, vectors.questions, gather, batch, self.ranks, temperature)
            with record_function("dpr/backward"):
                self.scaler.scale(objective_share(result, batch, num_pools)).backward()
        return StepResult(result.loss.detach(), result.num_correct, len(batch))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None)

    def _reduction(self, is_last: bool) -> AbstractContextManager[None]:
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return self.model.no_sync()
        return nullcontext()
