"""Number of cores that this process may use. Imports nothing, since ``import dpr`` asks for it."""

import os


def quota(groups: str = "/sys/fs/cgroup") -> int | None:
    """Returns the maximum number of cores that this process's container may use, rounded up; None if there is
    no limit.

    ``groups`` is the folder of Linux's control groups. Version 2 has quota and period in one file, version 1
    in two.
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
    """Returns the number of cores that this process may use: those it is bound to, limited by its container's
    quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota() or cores)
