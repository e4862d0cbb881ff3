"""Options of one data set: an entry of the catalogue ``datasets``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpr.config.checks import require_at_least, require_choice


@dataclass
class DatasetConfig:
    """Options of one training or dev set (an entry of ``datasets``)."""

    file: Any = None
    """Path, glob, or list of them."""
    selector: Any = None
    """Where the question vector is read: absent = first token; an integer = that position; a string = first occurrence of that token."""
    special_token: str | None = None
    """Put before every question of this set, with a space between."""
    query_prefix: str | None = None
    """Put before every question as it is, an instruction for example: "query: ". After special_token, if there is one."""
    passage_prefix: str | None = None
    """Put before every passage as it is: before its title or, without one, its text."""
    query_special_suffix: str | None = None
    """Appended to questions that do not end with it."""
    encoder_type: str | None = None
    """question or ctx: both sides of this set go through that tower."""
    shuffle_positives: bool = False
    """Draw one of the positives instead of the first."""
    normalize: bool = False
    """Clean passage texts (newlines, quotes) as DPR's normalize does."""
    exclude_gold: bool = False
    """Drop positives that have no ``score`` key, unless none would remain."""
    weight: float | None = None
    """As a train set: its share of an epoch, relative to the weights of the others (train.sampling)."""
    loss_scale: float | None = None
    """As a train set: multiplies the loss of its questions; absent = 1, or what loss_scale_factors says."""
    reader: str | None = None
    """Your own class, as module:Class, a subclass of dpr.data.training_data.TrainingData; called with the files (docs/training.md)."""
    source: str | None = None
    """Where the file is published; named in the error when it is missing. Nothing is downloaded."""

    def before_questions(self) -> str | None:
        """Special token and prefix as one text."""
        return (f"{self.special_token} " if self.special_token else "") + (self.query_prefix or "") or None

    def check(self, name: str) -> None:
        if self.encoder_type is not None:
            require_choice(f"datasets.{name}.encoder_type", self.encoder_type, ("question", "ctx"))
        for key in ("weight", "loss_scale"):
            if (value := getattr(self, key)) is not None:
                require_at_least(f"datasets.{name}.{key}", value, 0)
