"""Settings of mining: what becomes a hard negative, and the model that finds it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dpr.core.compute_settings import ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, setting
from dpr.embedding.settings import CheckpointEncoderConfig


@dataclass
class MiningSettings(Settings):
    """What becomes a negative."""

    per_question: int = setting(5, unit="passages", least=1)
    """Negatives per question, at most."""
    from_rank: int = setting(1, least=1)
    """First rank to take from, counted over all that was found."""
    to_rank: int = setting(100, least=1)
    """Last rank to take from."""
    pick: str = setting("top", choices=("top", "sample"))
    """top: the best that pass the filters; sample: any of them, drawn by seed and row."""
    seed: int = setting(0, least=0)
    """Decides what is drawn with pick=sample."""
    keep_answers: bool = False
    """Keep passages that hold an answer string."""
    near_duplicate: float = setting(0.8, least=0, most=1)
    """Share of common words from which two passages are the same, so that repeats of a positive or of a
    negative that is taken are left out; 0 = not compared."""
    max_relative_score: float = setting(0.0, least=0)
    """Highest share of the model's score p of the positive: leaves out what scores above p - (1 - this) *
    |p|; 0 = any."""
    absolute_margin: float | None = setting(None, also=("margin",))
    """Leaves out what the model scores above the positive's score less this; absent = any."""
    veto_above: float | None = setting(None, above=0, most=1)
    """Probability of being relevant from which the cross-encoder leaves a passage out; absent = 0.5 where
    there is one."""
    keep_existing: bool = False
    """Keep the hard negatives that the training data have, before the mined ones."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.pick != "sample":
            yield "seed"

    def check_together(self, prefix: str) -> None:
        if self.to_rank < self.from_rank:
            raise ConfigError(f"{prefix}to_rank={self.to_rank} is below {prefix}from_rank={self.from_rank}")
        if self.absolute_margin is not None and not math.isfinite(self.absolute_margin):
            raise ConfigError(
                f"{prefix}absolute_margin={self.absolute_margin} is not a number to subtract from a score"
            )

    def highest_score(self, positive_score: float | None) -> float:
        """The score up to which a passage may be a negative; infinite where no rule applies.

        A positive that scores exactly 0 (no word in common, for BM25) says nothing about shares.
        """
        if positive_score is None:
            return float("inf")
        highest = float("inf")
        if self.absolute_margin is not None:
            highest = positive_score - self.absolute_margin
        if self.max_relative_score and positive_score:
            highest = min(highest, positive_score - (1 - self.max_relative_score) * abs(positive_score))
        return highest


@dataclass
class ModelSearchSettings(ForwardSettings, CheckpointEncoderConfig):
    """The bi-encoder that negatives are searched with, its index, and the vectors that there are of the
    corpus."""

    model_file: str = setting("", path="input")
    """Checkpoint, run folder, Hugging Face or sentence-transformers folder."""
    vectors: list[str] = setting(list, path="input")
    """Vectors of the corpus by this model, by ``dpr embed``; without them they are made."""
    query_prefix: str = ""
    """Put before every question as it is, as in training; prompts are stored with the model."""
    passage_prefix: str = ""
    """The same before every passage; vectors must have been made with it."""
    prompt: str | None = None
    """Name of the model's prompt for these questions."""
    indexer: str = "exact"
    """Kind of the index, or module:Class."""
    indexer_options: dict[str, Any] = field(default_factory=dict)
    """Settings of the index."""
