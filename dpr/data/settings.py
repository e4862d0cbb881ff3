"""Settings of data: one set, how several share an epoch, and random changes to texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import IDENTITY, Settings, setting


@dataclass
class Augmentation(Settings):
    """Changes made to training texts only; each is a function of (seed, epoch, data set, row)."""

    crop_tokens: int = setting(0, unit="tokens", least=0, on_resume=IDENTITY)
    """Passages longer than this are cut to a random window of this many tokens; 0 = no cropping."""
    mask_probability: float = setting(0.0, least=0, below=1, on_resume=IDENTITY)
    """Share of tokens (of questions and passages) replaced by the mask token."""


@dataclass
class SamplingSettings(Settings):
    """Which rows make up the pools of an epoch (docs/training.md, "Several data sets")."""

    weights: list[float] | None = setting(None, least=0, on_resume=IDENTITY)
    """One number per train set: its share of an epoch, relative to the others'; or datasets.<name>.weight in each entry."""
    temperature: float | None = setting(None, above=0, on_resume=IDENTITY)
    """T: a set's share is proportional to rows ** (1/T). 1 = as many as there are, large = all sets alike."""
    epoch_pools: int = setting(0, unit="pools", least=0, on_resume=IDENTITY)
    """Pools of an epoch; 0 = as many as the sets have together."""
    mixed: bool = setting(False, on_resume=IDENTITY)
    """Draw every pool from all sets together; false: every pool from one set."""
    group_by_length: bool = setting(False, on_resume=IDENTITY)
    """Make pools of rows of similar length."""

    def check_shares(self, rates: Sequence[float] | None) -> None:
        """Raises ConfigError where several settings determine the sets' shares, or no share is above 0."""
        given = self.share_settings(rates)
        if self.epoch_pools and rates is not None:
            given.append("train.sampling.epoch_pools")
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} are mutually exclusive, both determine what a set gives; leave one of them out")
        for key, values in (("train_sampling_rates", rates), ("train.sampling.weights", self.weights)):
            if values is not None and (min(values, default=0) < 0 or not any(values)):
                raise ConfigError(f"{key}={list(values)}: expected numbers of at least 0, one of them above")

    def share_settings(self, rates: Sequence[float] | None) -> list[str]:
        """The settings given that determine the sets' shares."""
        ways = {"train_sampling_rates": rates, "train.sampling.weights": self.weights, "train.sampling.temperature": self.temperature}
        return [key for key, value in ways.items() if value is not None]

    def refuse_local_shards(self) -> None:
        """Raises ConfigError where pools are made of rows from anywhere, which a rank that reads only its own part does not have."""
        for name in ("mixed", "group_by_length"):
            if getattr(self, name):
                found = f"train.sampling.{name}=true and local_shards_dataloader=true are mutually exclusive"
                raise ConfigError(f"{found}; leave one of them out")


@dataclass
class DataSetSettings(Settings):
    """Options of one training or dev set (an entry of ``datasets``)."""

    file: Any = None
    """Path, glob, or list of them."""
    selector: int | str | None = setting(None, least=0)
    """Where the question vector is read: absent = first token; an integer = that position; a string = first occurrence of that token."""
    special_token: str | None = None
    """Put before every question of this set, with a space between."""
    query_prefix: str | None = None
    """Put before every question as it is, an instruction for example: "query: ". After special_token, if there is one."""
    passage_prefix: str | None = None
    """Put before every passage as it is: before its title or, without one, its text."""
    query_special_suffix: str | None = None
    """Appended to questions that do not end with it."""
    encoder_type: str | None = setting(None, choices=("question", "ctx"))
    """question or ctx: both sides of this set go through that tower."""
    shuffle_positives: bool = False
    """Draw one of the positives instead of the first."""
    normalize: bool = False
    """Clean passage texts (newlines, quotes) as DPR's normalize does."""
    exclude_gold: bool = False
    """Drop positives that have no ``score`` key, unless none would remain."""
    weight: float | None = setting(None, least=0)
    """As a train set: its share of an epoch, relative to the weights of the others (train.sampling)."""
    loss_scale: float | None = setting(None, least=0)
    """As a train set: multiplies the loss of its questions; absent = 1, or what loss_scale_factors says."""
    reader: str | None = None
    """A user-defined class, module:Class, a subclass of dpr.data.training_data.TrainingData; called with the files (docs/training.md)."""
    source: str | None = None
    """Where the file is published; named in the error when it is missing. Nothing is downloaded."""

    def before_questions(self) -> str | None:
        """Special token and prefix as one text."""
        return (f"{self.special_token} " if self.special_token else "") + (self.query_prefix or "") or None
