"""Grouping sequences of different lengths so that little padding is computed."""

from __future__ import annotations

import numpy as np


def plan_token_batches(lengths: np.ndarray, max_tokens: int, max_sequences: int = 1 << 30) -> list[np.ndarray]:
    """Cuts sequences, longest first, into batches whose padded size (longest x count) stays within ``max_tokens``.

    Every batch has at least one sequence, so a single sequence longer than the budget still gets through. Returns index arrays
    that cover every sequence once; longest first, so that running out of memory happens at once and not after an hour.
    """
    order = np.argsort(-lengths, kind="stable")
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        count = max(1, min(max_tokens // longest, max_sequences))
        batches.append(order[start : start + count])
        start += count
    return batches
