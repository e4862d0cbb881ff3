"""The time, memory and disk space that a run would take, from two of its steps and one validation."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from dpr.core.errors import DivergedError
from dpr.training.callbacks.defaults import ValidateAndSave, duration
from dpr.training.callbacks.verdict import is_start_measured, validations_ahead
from dpr.training.metrics import peak_memory_gb, wait_for
from dpr.training.trainer import Trainer
from dpr.training.validations.protocol import run_validations


@dataclass(frozen=True, slots=True)
class DryRun:
    """Measured: seconds of a step and of a validation, tokens per second, memory. Counted: steps,
    validations, checkpoints."""

    step_s: float
    validation_s: float
    tokens_per_s: float
    memory_gb: float
    num_steps: int
    num_validations: int
    num_checkpoints: int
    checkpoint_gb: float
    free_gb: float

    @property
    def total_s(self) -> float:
        """Seconds of training and validation; saving is left out."""
        return self.num_steps * self.step_s + self.num_validations * self.validation_s

    @property
    def disk_gb(self) -> float:
        """The most that the output folder will hold."""
        return self.num_checkpoints * self.checkpoint_gb

    def lines(self) -> list[str]:
        """For a person."""
        room = "" if self.disk_gb < self.free_gb else ": NOT ENOUGH"
        return [
            f"memory      {self.memory_gb:.2f} GiB at most so far",
            f"speed       {self.tokens_per_s:.0f} tokens/s, {self.step_s:.3g} s a step",
            f"validation  {self.validation_s:.3g} s, {self.num_validations} times",
            (
                f"the run     {self.num_steps} steps, about {duration(self.total_s)}"
                f" ({self.total_s / 3600:.2f} hours)"
            ),
            (
                f"disk        {self.num_checkpoints} checkpoints of {self.checkpoint_gb:.2f} GB,"
                f" {self.disk_gb:.2f} GB at most; {self.free_gb:.1f} GB are free{room}"
            ),
        ]


def dry_run(trainer: Trainer) -> DryRun:
    """Does two steps (the second is timed) and the validations that the run will reach. Nothing is written,
    but the model is changed.

    ``trainer`` is a new one.
    """
    batches = trainer.micro_batches()
    folder = trainer.output_dir.absolute()
    trainer.model.train()
    elapsed = tokens = 0.0
    for _ in range(min(2, trainer.total_steps)):
        ready = [next(batches) for _ in range(trainer.plan.accumulation)]
        wait_for(trainer.device)
        start = time.perf_counter()
        tokens = float(sum(batch.num_tokens for batch in ready))
        trainer.results = [trainer.forward_backward(batch, index) for index, batch in enumerate(ready)]
        trainer.update()
        wait_for(trainer.device)
        elapsed = time.perf_counter() - start
        trainer.progress.step += 1
    loss = trainer.metrics.take()["train/loss"]
    if loss != loss:
        raise DivergedError(
            "the loss is NaN after two steps; lower train.learning_rate or use train.precision=fp32"
        )
    start = time.perf_counter()
    run_validations(validations_ahead(trainer), trainer.model)
    wait_for(trainer.device)
    periods = ValidateAndSave(trainer.settings.train)
    total = trainer.total_steps
    due = [periods.due_at(step, total, trainer.steps_per_epoch) for step in range(1, total + 1)]
    validations, saves = (sum(times) for times in zip(*due))
    train = trainer.settings.train
    kept = trainer.checkpoints.keep_last
    validations += is_start_measured(trainer)
    baseline_of = int(train.keep == "better")  # the start
    weights = sum(tensor.nbytes for tensor in trainer.model.weights().values())
    fields = 3 if train.ema_decay else 2
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    moments = sum(fields * parameter.nbytes for parameter in trained)
    existing = next(path for path in [folder, *folder.parents] if path.is_dir())
    return DryRun(
        step_s=elapsed,
        validation_s=time.perf_counter() - start,
        tokens_per_s=tokens * trainer.ranks.world_size / elapsed,
        memory_gb=peak_memory_gb(trainer.device),
        num_steps=trainer.total_steps,
        num_validations=validations if trainer.validations else 0,
        num_checkpoints=baseline_of
        + (min(saves, kept + 2) if kept else saves),  # besides the newest, the best and the one being written
        checkpoint_gb=(weights + moments) / 1e9,
        free_gb=shutil.disk_usage(existing).free / 1e9,
    )
