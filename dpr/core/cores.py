"""How many cores this process may use. Imports nothing, since ``import dpr`` asks."""

import os


def quota(groups: str = "/sys/fs/cgroup") -> int | None:
    """Cores that the container of this process may use at most, rounded up; None where it is not limited.

    ``groups`` is where Linux shows its control groups: version 2 has quota and period in one file, version 1 in two.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        words = []
        for name in names:
            try:
                with open(f"{groups}/{name}", encoding="ascii") as file:
                    words += file.read().split()
            except (OSError, ValueError):  # not there, or not text
                break
        # "max" and -1 are no limit
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            return max(1, -(-int(words[0]) // int(words[1])))
    return None


def usable_cores() -> int:
    """Cores this process may use: those it is bound to, and no more than its container may."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota() or cores)
