"""Estimate of the time, memory and disk space of a run, from two of its steps and one validation."""

from __future__ import annotations

import shutil
import time

from dpr.core.errors import DivergedError
from dpr.core.logs import duration
from dpr.training.callbacks.base_comparison import is_base_measured, validations_ahead
from dpr.training.callbacks.saving import ValidateAndSave
from dpr.training.throughput import peak_memory_gb, wait_for
from dpr.training.trainer import Trainer
from dpr.training.validations.protocol import run_validations


def dry_run(trainer: Trainer) -> list[str]:
    """Runs two steps, the second of them timed, and the validations that the run will reach. Returns the
    time, memory and disk space of the whole run, as lines of text. Nothing is written, but the model is
    changed.

    ``trainer`` must be a new one.
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
    validation_s = time.perf_counter() - start

    train = trainer.settings.train
    steps = trainer.total_steps
    periods = ValidateAndSave(train)
    due = [periods.due_at(step, steps, trainer.steps_per_epoch) for step in range(1, steps + 1)]
    validations, saves = (sum(times) for times in zip(*due))
    validations = validations + is_base_measured(trainer) if trainer.validations else 0
    kept = trainer.checkpoints.keep_last
    # the kept ones, the best and the one being written; and the base model
    checkpoints = (min(saves, kept + 2) if kept else saves) + (train.keep == "better")
    total_s = steps * elapsed + validations * validation_s  # saving is left out

    gb = sum(tensor.nbytes for tensor in trainer.model.weights().values()) / 1e9
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            gb += (3 if train.ema_decay else 2) * parameter.nbytes / 1e9
    existing = next(path for path in [folder, *folder.parents] if path.is_dir())
    free_gb = shutil.disk_usage(existing).free / 1e9
    room = "" if checkpoints * gb < free_gb else ": NOT ENOUGH"
    speed = tokens * trainer.ranks.world_size / elapsed
    return [
        f"memory      {peak_memory_gb(trainer.device):.2f} GiB (peak of the two steps)",
        f"speed       {speed:,.0f} tokens/s, {elapsed:.3g} s per step",
        f"validation  {validation_s:.3g} s each, {validations} times",
        f"whole run   {steps:,} steps, about {duration(total_s)}",
        (
            f"disk        up to {checkpoints} checkpoints of {gb:.3g} GB, {checkpoints * gb:.3g} GB in total;"
            f" {free_gb:.1f} GB are free{room}"
        ),
    ]
