"""Settings that commands have in common: device, forward passes and precision. Importing this module does not
import torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from dpr.core.errors import ConfigError
from dpr.core.settings import NO_EFFECT, Settings, setting

if TYPE_CHECKING:
    import torch

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Names of torch's dtypes by the values of the setting."""


def dtype_of(precision: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, PRECISIONS[precision])
    return dtype


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Runs the matrix products of a block in ``precision``; fp32 switches autocast off."""
    import torch

    return torch.autocast(
        device.type, dtype=None if precision == "fp32" else dtype_of(precision), enabled=precision != "fp32"
    )


@dataclass
class DeviceSettings(Settings):
    """Device that a command computes on."""

    device: str | None = setting(None, on_resume=NO_EFFECT)
    """cpu, cuda or cuda:N; absent = CUDA if available."""


@dataclass
class CudaSettings(DeviceSettings):
    """Device settings with DPR's key ``no_cuda``."""

    no_cuda: bool = setting(False, on_resume=NO_EFFECT)
    """DPR's key; true is the same as device=cpu."""

    @property
    def device_or_cpu(self) -> str | None:
        """Returns ``device``, or ``cpu`` if ``no_cuda`` is set. Raises ConfigError if the two contradict each
        other."""
        if self.no_cuda and self.device not in (None, "cpu"):
            raise ConfigError(
                f"device={self.device} and no_cuda=true are mutually exclusive; leave one of them out"
            )
        return "cpu" if self.no_cuda else self.device


@dataclass
class ForwardSettings(DeviceSettings):
    """Device, precision and size of forward passes."""

    precision: str = setting("fp32", choices=tuple(PRECISIONS))
    """Arithmetic of models; bf16 is several times faster than fp32 on recent GPUs."""
    batch_tokens: int = setting(0, unit="tokens", least=0)
    """Maximum number of tokens in one forward pass, halved where embedding runs out of memory; 0 = 65,536 on
    a GPU, 4,096 on a CPU."""


@dataclass
class ClusterSettings(Settings):
    """Workers on several machines, which must see the same files at the same paths."""

    kind: str = setting("none", choices=("none", "ray"), on_resume=NO_EFFECT)
    """none, or ray: the work is shared by the workers of a Ray cluster (extra "ray")."""
    address: str | None = setting(None, on_resume=NO_EFFECT)
    """The cluster's head, host:port, or auto for the cluster that this machine belongs to; absent =
    $RAY_ADDRESS, else a cluster of this machine alone, which ends with the command."""
    workers: int = setting(0, unit="workers", least=0, on_resume=NO_EFFECT)
    """Workers that run at the same time, each with a CPU and, where the cluster has any and device=cpu is not
    set, a GPU; 0 = as many as the cluster has room for."""

    def unused(self) -> Iterator[str]:
        if self.kind != "ray":
            yield from (item.name for item in fields(self) if item.name != "kind")

    def check_together(self, prefix: str) -> None:
        if (self.address or "").startswith("ray://"):
            raise ConfigError(
                f"{prefix}address={self.address}: Ray Client is not used; give the head's host:port, on one"
                " of its machines"
            )
