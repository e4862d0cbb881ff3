"""The towers of a bi-encoder, built from a backbone and settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from dpr.core.errors import ConfigError
from dpr.models.adapters import BaseModel, add_adapters
from dpr.models.encoder import Encoder
from dpr.models.settings import EncoderSettings, TowerOptions
from dpr.models.trials import is_static


def build_towers(
    make_backbone: Callable[[], nn.Module], settings: EncoderSettings, options: TowerOptions, base: BaseModel
) -> tuple[Encoder, Encoder]:
    """Builds the question and the context tower, the same object if shared. ``base`` is the model that
    ``make_backbone`` loads."""
    make_tower = partial(
        Encoder,
        pooling=settings.pooling,
        projection_dim=settings.projection_dim,
        projection_activation=settings.projection_activation,
        normalize=settings.normalize,
        dimensions=settings.dimensions,
        packed=options.packed,
        attention=options.attention,
    )
    if settings.adapter != "none":
        backbone = make_backbone()
        adapters = add_adapters(backbone, base, settings)
        towers = [make_tower(backbone, adapter=adapters[0])]
        towers += [make_tower(backbone, adapter=adapter, fast=towers[0].fast) for adapter in adapters[1:]]
    elif settings.static_questions:
        ctx = make_tower(make_backbone())
        towers = [table_beside(ctx, settings, options), ctx]
    else:
        # All backbones before the projections: random weights are drawn in this order.
        backbones = [make_backbone() for _ in range(1 if settings.shared else 2)]
        towers = [make_tower(backbone) for backbone in backbones]
    return towers[0], towers[-1]


def table_beside(ctx: Encoder, settings: EncoderSettings, options: TowerOptions) -> Encoder:
    """Builds a question tower without layers: a row for each token of ``ctx``, as wide as the vectors of
    ``ctx`` before they are cut, and the pooling ``idf``.

    Raises:
        ConfigError: ``ctx`` has no layers either.
    """
    # registers the family with transformers; most models have no table
    from dpr.models.static import StaticBackbone, StaticConfig

    if is_static(ctx.backbone):
        raise ConfigError(
            "encoder.static_questions=true, but the model of the passages is static itself; leave it out"
        )
    width = ctx.pooled_width if ctx.encode_proj is None else ctx.encode_proj.out_features
    return Encoder(
        StaticBackbone(StaticConfig(int(ctx.config.vocab_size), width, ctx.config.pad_token_id)),
        pooling="idf",
        normalize=settings.normalize,
        packed=options.packed,
        dimensions=settings.dimensions,
    )
