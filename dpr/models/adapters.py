"""LoRA adapters (Hu et al., 2021): small trained matrices beside the frozen linear layers of a backbone,
through peft.

Two towers are two adapters over one backbone. Every forward of a tower makes its adapter the active one;
peft's own switch would take the gradient from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.machine import require
from dpr.models.backbones import base_model, distinct_weights, is_without_weights, load_backbone
from dpr.models.settings import EncoderSettings
from dpr.models.trials import layers_of

ALL = "all"
_TRAINED = "lora_"


class BaseModel(NamedTuple):
    """Frozen model that adapters belong to: a name or folder, and a fingerprint of its weights, empty if it
    is not yet known."""

    name: str
    fingerprint: str


class Adapter:
    """One adapter of a backbone; ``config`` is peft's."""

    def __init__(self, backbone: nn.Module, name: str, base: BaseModel, config: Any) -> None:
        self.name = name
        self.base = base
        self.config = config
        self.layers = adapted_layers(backbone)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Lets the backbone compute with this adapter inside the block. It does not change which weights
        require a gradient."""
        with _switched(self.layers, [self.name]):
            yield

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Returns contexts for a forward with checkpointed activations, which calls this method, and for its
        repetition in backward, when another adapter may be active.

        Both adapters of a backbone return the same contexts: those of the active one.
        """
        return nullcontext(), _switched(self.layers, next(iter(self.layers.values()))._active_adapter)


@contextmanager
def _switched(layers: Mapping[str, Any], active: list[str]) -> Iterator[None]:
    before = [layer._active_adapter for layer in layers.values()]
    try:
        for layer in layers.values():
            layer._active_adapter = active
        yield
    finally:
        for layer, names in zip(layers.values(), before, strict=True):
            layer._active_adapter = names


def adapted_layers(backbone: nn.Module) -> dict[str, Any]:
    """Returns the linear layers with adapters, by name."""
    lora: Any = _peft().tuners.lora
    return {name: module for name, module in backbone.named_modules() if isinstance(module, lora.LoraLayer)}


def add_adapters(backbone: nn.Module, base: BaseModel, settings: EncoderSettings) -> list[Adapter]:
    """Freezes a backbone and adds an adapter for each tower, which changes no output before it is trained.

    Raises:
        ConfigError: peft is not installed, or the backbone has no such layers.
    """
    peft = _peft()
    if is_without_weights(Path(base.name)):
        raise ConfigError(
            f"encoder.adapter={settings.adapter} trains beside given weights, and {base.name} has none; leave"
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
        parameter.requires_grad_(_TRAINED in name)
    return [Adapter(backbone, name, base, config) for name, config in configs.items()]


def is_stored(name: str) -> bool:
    """True if a weight of a model with adapters is stored in checkpoints, as all are but those of the frozen
    backbone."""
    return ".backbone." not in name or _TRAINED in name


def weights_fingerprint(module: nn.Module) -> str:
    """Returns a hash that changes with any weight."""
    digest = sha256()
    update_digest(digest, distinct_weights(module))
    return digest.hexdigest()[:32]


def update_digest(digest: Any, weights: Mapping[str, Tensor]) -> None:
    """Feeds weights and their names to a digest of hashlib."""
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


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


def _peft() -> Any:
    return require("peft", extra="lora", purpose="encoder.adapter=lora")
