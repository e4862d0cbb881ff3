"""Settings of the commands whose work several machines can share."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.core.errors import ConfigError
from dpr.core.settings import NO_EFFECT, Settings, setting


@dataclass
class ClusterSettings(Settings, requires="kind=ray"):
    """Workers on several machines, which must see the same files at the same paths."""

    kind: str = setting("none", choices=("none", "ray"), on_resume=NO_EFFECT)
    """none, or ray: the work is shared by the workers of a Ray cluster (extra "ray")."""
    address: str | None = setting(None, on_resume=NO_EFFECT)
    """The cluster's head, host:port, or auto for the cluster that this machine belongs to; absent = $RAY_ADDRESS, else a cluster of this
    machine alone, which ends with the command."""
    workers: int = setting(0, unit="workers", least=0, on_resume=NO_EFFECT)
    """Workers at a time; 0 = as many as the cluster has room for."""
    cpus: int = setting(1, unit="CPUs", least=1, on_resume=NO_EFFECT)
    """CPUs of a worker, which has as many threads."""
    gpus: float | None = setting(None, unit="GPUs", least=0, on_resume=NO_EFFECT)
    """GPUs of a worker, or a part of one; absent = 1 where the cluster has any and device=cpu is not set."""
    retries: int = setting(10, least=0, on_resume=NO_EFFECT)
    """How often a piece of work is given to another worker because its own, or that one's machine, was lost."""

    def check_together(self, prefix: str) -> None:
        if (self.address or "").startswith("ray://"):
            raise ConfigError(f"{prefix}address={self.address}: Ray Client is not used; give the head's host:port, on one of its machines")
