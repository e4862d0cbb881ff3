"""Two towers of a backbone: two copies, one for both sides, or one frozen backbone with two adapters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from dpr.models.adapters import BaseModel, add_adapters
from dpr.models.encoder import Encoder
from dpr.models.settings import EncoderSettings, TowerOptions


def build_towers(
    make_backbone: Callable[[], nn.Module], settings: EncoderSettings, options: TowerOptions, base: BaseModel
) -> tuple[Encoder, Encoder]:
    """The question and the context tower, which are the same object if shared. ``base`` is what ``make_backbone`` loads."""
    made_as: dict[str, Any] = {"pooling": settings.pooling, "projection_dim": settings.projection_dim, "normalize": settings.normalize}
    made_as |= {"residual_words": settings.residual_words, "dimensions": settings.dimensions}
    make_tower: Callable[..., Encoder] = partial(Encoder, **made_as, packed=options.packed, attention=options.attention)
    if settings.adapter != "none":
        backbone = make_backbone()
        adapters = add_adapters(backbone, base, settings, options)
        towers = [make_tower(backbone, adapter=adapters[0])]
        towers += [make_tower(backbone, adapter=adapter, fast=towers[0].fast) for adapter in adapters[1:]]
    else:
        # All backbones before the projections: random weights are drawn in this order.
        backbones = [make_backbone() for _ in range(1 if settings.shared else 2)]
        towers = [make_tower(backbone) for backbone in backbones]
    return towers[0], towers[-1]
