"""What decides the vector of a text, and how towers are run. Imports no torch, so that a configuration can be made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """What, besides the backbone's own config, decides the vector of a text. Stored in every checkpoint."""

    pooling: str = "cls"
    projection_dim: int = 0
    normalize: bool = False
    shared: bool = False
    sequence_length: int = 256
    question_length: int = 0
    dpr_trailing_sep: bool = False
    """The original's stray [SEP]: one more token, at position sequence_length - 1, that every shorter sequence attends to."""

    def as_dict(self) -> dict[str, Any]:
        """Names and values; ``dpr_trailing_sep`` only where it is on, so that fingerprints of other models stay what they were."""
        return {name: value for name, value in asdict(self).items() if name != "dpr_trailing_sep" or value}


@dataclass(frozen=True, slots=True)
class TowerOptions:
    """How the towers are run: ``fix_ctx_encoder`` freezes the context tower (no dropout, no gradient), ``packed`` computes no padding,
    ``attention`` is sdpa or varlen (``Encoder``); ``attention_dropout`` None: as everywhere else in the towers. ``temperature`` None: that
    of the checkpoint, else 1."""

    fix_ctx_encoder: bool = False
    learn_temperature: bool = False
    temperature: float | None = None
    packed: bool = True
    attention: str = "sdpa"
    attention_dropout: float | None = None
