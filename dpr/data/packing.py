"""Grouping sequences of different lengths so that little padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SHRINK = 0.8


def plan_token_batches(
    lengths: np.ndarray, max_tokens: int, max_sequences: int = 1 << 30
) -> list[np.ndarray]:
    """Cuts sequences, longest first, into batches whose padded size (longest x count) stays within
    ``max_tokens``.

    Every batch has at least one sequence, so a single sequence longer than the budget still gets through.
    Returns index arrays that cover every sequence once; longest first, so that running out of memory happens
    at once and not after an hour.
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


def plan_packs(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Cuts consecutive sequences into packs of at most ``max_tokens`` tokens (at least one sequence each)."""
    packs: list[slice] = []
    start = tokens = 0
    for row, length in enumerate(lengths):
        if row > start and tokens + length > max_tokens:
            packs.append(slice(start, row))
            start, tokens = row, 0
        tokens += length
    return [*packs, slice(start, len(lengths))] if start < len(lengths) else packs


class Bucket(NamedTuple):
    """Sequences of similar length, side by side in a pack: tokens ``start`` to ``stop``, ``num_sequences`` up
    to ``longest`` tokens."""

    start: int
    stop: int
    num_sequences: int
    longest: int


def plan_buckets(
    lengths: Sequence[int], *, min_tokens: int = 512, min_unpadded: int | None = None
) -> list[Bucket]:
    """Cuts sequences, longest first, where attention over them is to be padded to one length.

    A new bucket begins when sequences have become shorter than ``_SHRINK`` times its longest and it holds
    ``min_tokens`` tokens; smaller buckets would cost more in calls than they save in padding. Sequences of
    ``min_unpadded`` tokens or more share one with their equals alone.
    """
    buckets: list[Bucket] = []
    start = stop = count = longest = 0
    for length in lengths:
        is_worth_a_call = min_unpadded is not None and longest >= min_unpadded and length < longest
        if count and (is_worth_a_call or (length < _SHRINK * longest and stop - start >= min_tokens)):
            buckets.append(Bucket(start, stop, count, longest))
            start, count, longest = stop, 0, 0
        stop, count, longest = stop + length, count + 1, max(longest, length)
    return [*buckets, Bucket(start, stop, count, longest)] if count else buckets
