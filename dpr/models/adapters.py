"""LoRA adapters (Hu et al., 2021): small trained matrices beside the frozen linear layers of a backbone,
through peft.

Two towers are two adapters over one backbone. Every forward of a tower makes its adapter the active one;
peft's own switch would take the gradient from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpr.core.machine import require

TRAINED = "lora_"


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
    lora: Any = installed_peft().tuners.lora
    return {name: module for name, module in backbone.named_modules() if isinstance(module, lora.LoraLayer)}


def is_stored(name: str) -> bool:
    """True if a weight of a model with adapters is stored in checkpoints, as all are but those of the frozen
    backbone."""
    return ".backbone." not in name or TRAINED in name


def update_digest(digest: Any, weights: Mapping[str, Tensor]) -> None:
    """Feeds weights and their names to a digest of hashlib."""
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def installed_peft() -> Any:
    return require("peft", extra="lora", purpose="encoder.adapter=lora")
