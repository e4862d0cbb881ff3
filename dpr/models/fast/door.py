"""The door to what makes a tower quick: asked once for each backbone, it changes no vector but for rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpr.core.errors import ConfigError
from dpr.models.fast import varlen
from dpr.models.fast.attention import enable_packing
from dpr.models.fast.dropout import replace_dropout
from dpr.models.fast.gelu import replace_gelu
from dpr.models.fast.last_layer import enable_pruning


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backbone was found to do.

    ``first_position`` is the number of the first position of a packed forward, None where the backbone cannot be packed;
    ``prunes_last_layer``: the last layer may compute only the tokens that are read; ``attention`` is sdpa or varlen.
    """

    first_position: int | None
    prunes_last_layer: bool
    attention: str


def accelerate(backbone: Any, *, packed: bool, attention: str, reads_one_token: bool) -> Capabilities:
    """Makes a backbone quick, in place: cheaper dropout and GELU on a CPU, packing if ``packed``, a last layer for the tokens read.

    What does not pass its trial stays as it was.

    Raises:
        ConfigError: there is no ``attention`` of that name.
    """
    if attention not in varlen.KERNELS:
        raise ConfigError(f"encoder.attention={attention} is not one of {', '.join(varlen.KERNELS)}")
    replace_dropout(backbone)
    replace_gelu(backbone)
    first_position = enable_packing(backbone) if packed else None
    prunes = reads_one_token and first_position is not None and enable_pruning(backbone, first_position)
    return Capabilities(first_position, prunes, attention)
