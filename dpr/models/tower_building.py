"""The towers of a bi-encoder, built from a backbone and settings: each over its own, two adapters over one, or a
static embedding table beside a transformer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from dpr.core.errors import CheckpointError, ConfigError, DprError
from dpr.models.adapters import TRAINED, Adapter, BaseModel, installed_peft, update_digest
from dpr.models.backbones import backbone_from_config, is_without_weights, load_backbone
from dpr.models.encoder import Encoder
from dpr.models.folders.model_parts import ModelParts
from dpr.models.properties import distinct_weights, is_static, layers_of
from dpr.models.settings import EncoderSettings, TowerOptions
from dpr.models.sources import base_model

ALL = "all"


def towers_of(
    parts: ModelParts, options: TowerOptions, *, source: Path, base: str | None, dropout: float | None
) -> tuple[Encoder, Encoder]:
    """Builds the towers whose weights ``parts`` holds, with other weights. ``base`` is the model of adapters
    in place of the one that ``source`` names.

    Raises:
        CheckpointError: the config makes no model.
    """
    make: Callable[..., nn.Module] = partial(backbone_from_config, parts.config)
    if parts.base is not None:
        make = partial(load_base, parts.base, source, base)
    make = partial(make, dropout=dropout, attention_dropout=options.attention_dropout)
    if parts.backbone is not None:
        make = lambda: parts.backbone
    try:
        return build_towers(make, parts.settings, options, parts.base or BaseModel(str(source), ""))
    except DprError:
        raise
    except Exception as error:  # model classes raise anything for an inconsistent config
        raise CheckpointError(
            f"its config makes no model ({type(error).__name__}: {str(error)[:200]})", file=source
        ) from error


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


def add_adapters(backbone: nn.Module, base: BaseModel, settings: EncoderSettings) -> list[Adapter]:
    """Freezes a backbone and adds an adapter for each tower, which changes no output before it is trained.

    Raises:
        ConfigError: peft is not installed, or the backbone has no such layers.
    """
    peft = installed_peft()
    if is_without_weights(base.name):
        raise ConfigError(
            f"encoder.adapter={settings.adapter} needs pretrained weights, but {base.name} has none; leave"
            " it out"
        )
    if not base.fingerprint:
        name = str(Path(base.name).resolve()) if Path(base.name).exists() else base.name
        base = BaseModel(name, weights_fingerprint(backbone))
    # Last names of the linear layers that get an adapter.
    layers = sorted(
        {
            name.rpartition(".")[2]
            for layer in layers_of(backbone)
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        }
    )
    if not layers:
        raise ConfigError(
            f"encoder.adapter=lora: a {type(backbone).__name__} has no linear layers to adapt; leave it out"
        )
    wanted = settings.lora_targets
    targets = layers if wanted == ALL else [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in targets if name not in layers]:
        raise ConfigError(
            f"encoder.lora_targets={wanted}: {unknown[0]} is no linear layer of a {type(backbone).__name__}; "
            f"set it to {ALL} or to some of {', '.join(layers)}"
        )
    configs = {}
    for name in ("question",) if settings.shared else ("question", "ctx"):
        configs[name] = peft.LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            target_modules=targets,
            fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in backbone.modules()),
            base_model_name_or_path=base.name,
            task_type="FEATURE_EXTRACTION",
        )
        peft.inject_adapter_in_model(configs[name], backbone, adapter_name=name)
        del backbone.peft_config  # it would warn of the second adapter
    # set here, because the weights that peft marks depend on the order of adapters
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(TRAINED in name)
    return [Adapter(backbone, name, base, config) for name, config in configs.items()]


def load_base(stored: BaseModel, source: Path, given: str | None = None, **dropout: Any) -> nn.Module:
    """Loads the backbone that a checkpoint's adapters belong to: ``given``, or the model that the checkpoint
    names. The latter is looked up on this machine only.

    Raises:
        CheckpointError: it is not here, or its weights are not those that the adapters were trained with.
    """
    with base_model(given, stored.name, source) as name:
        backbone = load_backbone(name, **dropout)
    if stored.fingerprint and weights_fingerprint(backbone) != stored.fingerprint:
        raise CheckpointError(
            f"its adapters belong to {stored.name}; {name} has other weights",
            file=source,
            hint="set encoder.pretrained_model_cfg=<folder of that model>",
        )
    return backbone


def weights_fingerprint(module: nn.Module) -> str:
    """Returns a hash that changes with any weight."""
    digest = sha256()
    update_digest(digest, distinct_weights(module))
    return digest.hexdigest()[:32]
