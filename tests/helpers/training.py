"""A trainer for tests, told its settings by their names alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpr.models.biencoder import BiEncoder
from dpr.training.callbacks import Callback
from dpr.training.settings import BatchSettings, CheckpointSettings, ComputeSettings, Periods
from dpr.training.trainer import BiEncoderTrainer

GROUPS: dict[str, type] = {"batches": BatchSettings, "periods": Periods, "checkpoints": CheckpointSettings, "compute": ComputeSettings}
DEFAULTS: dict[str, Any] = {"batch_size": 8, "num_train_epochs": 2, "log_every_steps": 1, "num_workers": 0}


def make_trainer(
    model: BiEncoder, train_sets: Sequence[Any], dev_sets: Sequence[Any], output_dir: Path, *callbacks: Callback, **options: Any
) -> BiEncoderTrainer:
    """``options`` are arguments of the trainer or fields of its groups of settings, each put where it belongs."""
    options = {**DEFAULTS, **options}
    groups = {
        name: kind(**{item.name: options.pop(item.name) for item in fields(kind) if item.name in options}) for name, kind in GROUPS.items()
    }
    return BiEncoderTrainer(model, train_sets, dev_sets, output_dir=output_dir, callbacks=callbacks, **groups, **options)
