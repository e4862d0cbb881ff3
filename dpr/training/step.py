"""One batch of training: forward through both towers, candidates of all ranks, loss, backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from dpr.core.batch import BiEncoderBatch, Temperature
from dpr.core.compute_settings import autocast
from dpr.core.distributed import Ranks, average_gradients
from dpr.core.errors import ConfigError
from dpr.losses.protocol import GlobalBatch, Loss, LossResult
from dpr.models.towers import BiEncoderVectors
from dpr.training.compute import averaging, row_tables
from dpr.training.global_batch_gather import GlobalBatchGather

OnGlobalBatch = Callable[[Tensor, GlobalBatch, BiEncoderBatch], None]


class Step(ABC):
    """One micro-batch, which adds its gradient to the parameters. ``on_global_batch`` is called with the arguments of
    the loss, without gradient."""

    on_global_batch: OnGlobalBatch | None = None

    def __init__(
        self, model: nn.Module, loss: Loss, *, ranks: Ranks, device: torch.device, precision: str = "fp32"
    ) -> None:
        self.model = model
        self.loss = loss
        self.ranks = ranks
        self.device = device
        self._precision = precision
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._by_rows = row_tables(model)

    @abstractmethod
    def __call__(self, batch: BiEncoderBatch, *, num_batches: int, is_last: bool) -> LossResult:
        """Takes one of the ``num_batches`` micro-batches of an optimizer step. With the last, gradients are
        averaged over ranks. The result is detached, and its losses are without loss weights."""


def global_batch_loss(
    loss: Loss,
    questions: Tensor,
    gather: GlobalBatchGather,
    batch: BiEncoderBatch,
    temperature: Temperature,
    on_global_batch: OnGlobalBatch | None,
) -> LossResult:
    """Returns the loss of this rank's question vectors (B, D) in the global batch of all ranks.

    Raises:
        ConfigError: a user-defined loss does not return one loss for each question.
    """
    global_batch = gather.global_batch(questions, temperature)
    with record_function("dpr/loss"):
        result = loss(questions, global_batch, batch)
    if not isinstance(result, LossResult) or result.losses.shape != (len(batch),):
        name = type(loss).__name__
        found = (
            f"losses of shape {tuple(result.losses.shape)}"
            if isinstance(result, LossResult)
            else f"a {type(result).__name__}"
        )
        raise ConfigError(
            f"the loss {name} returned {found}; expected a LossResult with one loss per question,"
            f" ({len(batch)},)"
        )
    if on_global_batch is not None:
        with torch.no_grad():
            on_global_batch(questions.detach(), global_batch, batch)
    return result._replace(losses=temperature.touched_by(result.losses))


def objective_share(result: LossResult, batch: BiEncoderBatch, num_batches: int) -> Tensor:
    """Returns the scalar that this rank differentiates: W / Q times the weighted sum over its questions,
    divided by the step's number of global batches.

    The global batch has Q = W * B questions. W / Q = 1 / B makes the mean over ranks the gradient of its
    weighted mean.
    """
    return (result.losses * batch.loss_weights.to(result.losses.dtype)).sum() * (
        1 / (len(batch) * num_batches)
    )


class DirectStep(Step):
    """A step with both towers at once, the whole batch in one forward."""

    def __call__(self, batch: BiEncoderBatch, *, num_batches: int, is_last: bool) -> LossResult:
        batch = batch.to(self.device)
        gather = GlobalBatchGather(batch, self.loss, self.ranks)
        with averaging(self.model, is_last=is_last):
            with autocast(self.device, self._precision), record_function("dpr/encode"):
                vectors: BiEncoderVectors = self.model(
                    batch.questions, batch.contexts, batch.encoder_type, on_contexts=gather.start
                )
            result = global_batch_loss(
                self.loss, vectors.questions, gather, batch, vectors.temperature, self.on_global_batch
            )
            with record_function("dpr/backward"):
                self.scaler.scale(objective_share(result, batch, num_batches)).backward()
                if self._by_rows and is_last:
                    average_gradients(self.model.parameters(), by_rows=self._by_rows)
        return LossResult(result.losses.detach(), result.correct)
