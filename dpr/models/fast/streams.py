"""Work of many equal parts on a CPU: a part a thread, and one core for the operations of each.

An operation that all cores share ends with a wait for the slowest of them, and a forward pass has hundreds. Beside
other programs the slowest is one whose core is taken, and each wait costs as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import torch


def in_streams(work: Callable[[np.ndarray], None], parts: Iterable[np.ndarray]) -> None:
    """Calls ``work`` without gradient on every part, on as many threads as torch computes with.

    The first error is raised; parts that have not begun are left out then.
    """
    remaining = deque(parts)
    threads = torch.get_num_threads()
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    def stream() -> None:
        # What torch keeps for each thread: its number of cores, autocast and whether gradients are recorded.
        torch.set_num_threads(1)
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            while remaining:
                try:
                    part = remaining.popleft()
                except IndexError:  # another thread took the last one
                    return
                work(part)

    with ThreadPoolExecutor(threads, thread_name_prefix="stream") as pool:
        try:
            for done in as_completed([pool.submit(stream) for _ in range(min(threads, len(remaining)))]):
                done.result()
        finally:
            remaining.clear()
            torch.set_num_threads(threads)  # of threads that are started later
