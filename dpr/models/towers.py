"""Two towers of a backbone: two copies, one for both sides, or one frozen backbone with two adapters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from dpr.core.errors import CheckpointError, DprError
from dpr.models.adapters import BaseModel, add_adapters, load_base
from dpr.models.backbones import backbone_from_config
from dpr.models.encoder import Encoder
from dpr.models.parts import ModelParts
from dpr.models.settings import EncoderSettings, TowerOptions


def build_towers(
    make_backbone: Callable[[], nn.Module], settings: EncoderSettings, options: TowerOptions, base: BaseModel
) -> tuple[Encoder, Encoder]:
    """The question and the context tower, which are the same object if shared. ``base`` is what ``make_backbone`` loads."""
    names = ("pooling", "projection_dim", "projection_activation", "normalize", "residual_words", "dimensions")
    made_as: dict[str, Any] = {name: getattr(settings, name) for name in names}
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


def stored_towers(
    parts: ModelParts, settings: EncoderSettings, options: TowerOptions, *, source: Path, base: str | None, dropout: float | None
) -> tuple[Encoder, Encoder]:
    """The towers of a model that was read from ``source``, without its weights; ``base`` names the model that adapters belong to.

    Raises:
        CheckpointError: the config makes no model, or the model that adapters belong to is not here.
    """
    make: Callable[..., nn.Module] = partial(backbone_from_config, parts.config)
    if parts.base is not None:
        make = partial(load_base, parts.base, source, base)
    make = partial(make, dropout=dropout, attention_dropout=options.attention_dropout)
    try:
        return build_towers(make, settings, options, parts.base or BaseModel(str(source), ""))
    except DprError:
        raise
    except Exception as error:  # model classes raise anything for an inconsistent config
        raise CheckpointError(f"its config makes no model ({type(error).__name__}: {str(error)[:200]})", file=source) from error
