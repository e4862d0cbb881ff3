"""Settings of what is done every so often in a training run: validation, checkpoints, log lines, and stopping
early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dpr.core.settings import NO_EFFECT, WARNED, Settings, setting


@dataclass
class EarlyStoppingSettings(Settings):
    """Ends a run that has stopped getting better."""

    patience: int = setting(0, unit="validations", least=0, on_resume=WARNED)
    """Validations in a row without an improvement after which the run ends; 0 = never."""
    min_delta: float = setting(0.0, least=0, on_resume=WARNED)
    """An improvement exceeds the best value by more than this."""

    def unused(self) -> Iterator[str]:
        if not self.patience:
            yield "min_delta"


@dataclass
class Periods(Settings):
    """What is done every so often, what is kept of it, and what is validated on."""

    log_batch_step: int = setting(100, unit="steps", least=0, on_resume=NO_EFFECT)
    """Optimizer steps between log lines; 0 = none."""
    eval_per_epoch: int = setting(
        1,
        unit="validations",
        least=0,
        on_resume=WARNED,
    )
    """Validations per epoch; 0 = none but those of eval_every_steps."""
    eval_every_steps: int = setting(0, unit="steps", least=0, on_resume=WARNED)
    """Validate every so many optimizer steps instead of per epoch; 0 = per epoch."""
    sanity_validation: int = setting(2, unit="pools", least=0, on_resume=NO_EFFECT)
    """Pools of each dev set that are validated before training to check that it works; 0 = none."""
    eval_at_start: bool | None = setting(None, on_resume=NO_EFFECT)
    """Validate before the first step too, and at the end compare with that; absent = where the run starts
    from weights, unless it would encode more than a fifth of what training does."""
    best_metric: str | None = setting(None, on_resume=WARNED)
    """The metric by which the best checkpoint is chosen; absent = the average rank, or the NLL before
    val_av_rank_start_epoch."""
    best_is_highest: bool = setting(False, on_resume=WARNED)
    """More is better, for best_metric; known of metrics of retrieval."""
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    keep: str = setting(
        "best",
        choices=("best", "better"),
        on_resume=WARNED,
    )
    """Which model a finished run is opened as: its best checkpoint, or, with better, the start where no
    checkpoint is ahead of it."""
    export: list[str] | None = setting(None, on_resume=NO_EFFECT)
    """When dpr train ends, write the best checkpoint in these formats, as <output_dir>/export/<format>:
    sentence-transformers, transformers, hf-dpr, onnx, pyserini (docs/interop.md)."""
    callbacks: Any = setting(None, on_resume=WARNED)
    """User-defined callbacks: module:Class, or {use: module:Class, argument: value}, or a list of them
    (docs/training.md)."""
    save_every_steps: int = setting(0, unit="steps", least=0, on_resume=NO_EFFECT)
    """Extra checkpoints every so many optimizer steps; 0 = only after validations."""
    keep_last: int = setting(3, unit="checkpoints", least=0, on_resume=NO_EFFECT)
    """Checkpoints kept besides the best one; 0 = all."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.eval_per_epoch and self.eval_every_steps:
            yield "eval_per_epoch"
        if self.best_metric is None:
            yield "best_is_highest"


@dataclass
class DevSetSettings(Settings):
    """Validation over dev sets."""

    metrics: list[str] | None = setting(None, on_resume=WARNED)
    """User-defined validation metrics: functions module:name of (scores, labels), as eval/<name>
    (docs/training.md)."""
    dev_batch_size: int = setting(64, unit="questions", least=1, on_resume=WARNED)
    """Questions per validation pool over all ranks."""
    val_av_rank_hard_neg: int = setting(30, unit="passages", least=0, on_resume=WARNED)
    """Hard negatives of each dev question in the average-rank pool."""
    val_av_rank_other_neg: int = setting(30, unit="passages", least=0, on_resume=WARNED)
    """Other negatives of each dev question in the average-rank pool."""
    val_av_rank_bsz: int = setting(128, unit="passages", least=1, on_resume=NO_EFFECT)
    """Passages (questions, in their turn) per forward pass of validation on dev sets, of the NLL and of the
    average rank."""
    val_av_rank_max_qs: int = setting(10000, unit="questions", least=1, on_resume=WARNED)
    """Dev questions used for the average rank, over all ranks."""
