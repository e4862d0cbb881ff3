"""Work of many equal parts on a CPU: one thread for each part, and one core for the operations of a thread.

An operation that all cores share ends with a wait for the slowest of them, and a forward pass has hundreds.
If other programs run, the slowest core is one that they have taken, and it delays every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch


def in_streams(work: Callable[[np.ndarray], None], parts: Iterable[np.ndarray]) -> None:
    """Calls ``work`` without gradient on every part, on as many threads as torch computes with.

    Raises the error of a part; parts that have not begun are then skipped.
    """
    threads = torch.get_num_threads()
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    def work_here(part: np.ndarray) -> None:
        # torch keeps for each thread whether gradients are recorded, autocast, and its number of cores (below).
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            work(part)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work_here, parts):
                pass
    finally:
        torch.set_num_threads(threads)  # for threads that are started later
