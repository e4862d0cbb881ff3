"""What the machine offers this process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores this process may use, where the system knows; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
