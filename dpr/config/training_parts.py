"""Sections of the training settings."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.config.checks import require_at_least, require_choice
from dpr.core.errors import ConfigError


@dataclass
class AugmentConfig:
    """Changes made to training texts only; each is a function of (seed, epoch, data set, row)."""

    crop_tokens: int = 0
    """Passages longer than this are cut to a random window of this many tokens; 0 = no cropping."""
    mask_probability: float = 0.0
    """Share of tokens (of questions and passages) replaced by the mask token."""

    def check(self) -> None:
        require_at_least("train.augment.crop_tokens", self.crop_tokens, 0)
        if not 0 <= self.mask_probability < 1:
            raise ConfigError(f"train.augment.mask_probability={self.mask_probability} is out of range; it must be in [0, 1)")


@dataclass
class SamplingConfig:
    """Which rows make up the pools of an epoch (docs/training.md, "Several data sets")."""

    weights: list[float] | None = None
    """One number per train set: its share of an epoch, relative to the others'; or datasets.<name>.weight in each entry."""
    temperature: float | None = None
    """T: a set's share is proportional to rows ** (1/T). 1 = as many as there are, large = all sets alike."""
    epoch_pools: int = 0
    """Pools of an epoch; 0 = as many as the sets have together."""
    mixed: bool = False
    """Draw every pool from all sets together; false: every pool from one set."""
    group_by_length: bool = False
    """Make pools of rows of like length."""

    def check(self, *, rates: list[float] | None, local_shards: bool) -> None:
        ways = {"train_sampling_rates": rates, "train.sampling.weights": self.weights, "train.sampling.temperature": self.temperature}
        given = [key for key, value in ways.items() if value is not None]
        if self.epoch_pools and rates is not None:
            given.append("train.sampling.epoch_pools")
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} contradict, both say what a set gives; leave one of them out")
        if self.temperature is not None and self.temperature <= 0:
            raise ConfigError(f"train.sampling.temperature={self.temperature} is out of range; it must be above 0")
        require_at_least("train.sampling.epoch_pools", self.epoch_pools, 0)
        for key in ("mixed", "group_by_length"):
            if local_shards and getattr(self, key):
                raise ConfigError(f"train.sampling.{key}=true and local_shards_dataloader=true contradict; leave one of them out")


@dataclass
class TrackingConfig:
    """Figures for programs that show them; metrics.jsonl and report.html are written in any case."""

    tensorboard: bool = False
    """Write TensorBoard event files into <output_dir>/tensorboard; needs the extra tb."""
    wandb: bool = False
    """Log to Weights & Biases; needs the extra wandb."""
    wandb_mode: str = "online"
    """online, or offline: keep the run in <output_dir>/wandb for `wandb sync`."""
    project: str = "dpr"
    """The project there."""
    run_name: str | None = None
    """The run's name there; absent = the last part of output_dir."""

    def check(self) -> None:
        require_choice("tracking.wandb_mode", self.wandb_mode, ("online", "offline"))


@dataclass
class EarlyStoppingConfig:
    """Ends a run that has stopped getting better."""

    patience: int = 0
    """Validations in a row without an improvement after which the run ends; 0 = never."""
    min_delta: float = 0.0
    """What counts as an improvement is better than the best by more than this."""
    metric: str | None = None
    """A figure of the validation, e.g. eval/in_batch_acc; absent = the one that the best checkpoint is chosen by."""
    highest: bool = False
    """More is better, for a metric named here."""

    def check(self) -> None:
        require_at_least("train.early_stopping.patience", self.patience, 0)
        require_at_least("train.early_stopping.min_delta", self.min_delta, 0)
