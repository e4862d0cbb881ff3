"""What the machine and a launcher (torchrun) offer this process."""

from __future__ import annotations

import os

from dpr.core.errors import ConfigError


def usable_cores() -> int:
    """Cores this process may use, where the system knows; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launched(name: str, default: int = 0) -> int:
    """``RANK``, ``LOCAL_RANK`` or ``WORLD_SIZE`` as the launcher put it into the environment; ``default``
    without one.

    Raises:
        ConfigError: it is no number from 0 on.
    """
    value = os.environ.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ConfigError(
            f"the environment has {name}={value[:40]!r}, not a number from 0 on; start with torchrun, or"
            f" unset {name}"
        )
    return int(value)
