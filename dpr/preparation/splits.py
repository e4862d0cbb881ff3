"""Parting records into train, dev and test so that what belongs together stays together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

TRAIN = "train"

# A group above the first share of a held-out set would make it a test of one topic; larger ones are taken where nothing else is left.
LARGEST_SHARES = (0.15, 0.5, 1.0)


def split_by_group(groups: Sequence[str], sizes: Mapping[str, int], *, seed: int) -> list[str]:
    """Names the split of each record; all records of a group get the same one.

    Groups are taken in an order that depends on ``seed`` and their names alone, and fill the held-out splits (``sizes``: name -> number of
    records) one after the other; the rest is ``train``. Small groups come first. A split exceeds its size by less than one group, and a
    group larger than a whole split never enters it, so a split can stay smaller than asked, or empty. None gets more than about a third.
    """
    members: defaultdict[str, int] = defaultdict(int)
    for group in groups:
        members[group] += 1
    # Hashes, not a shuffle: one more package in the environment does not move the others to another split.
    queue = sorted(members, key=lambda name: blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest())
    split_of = dict.fromkeys(queue, TRAIN)
    for split, wanted in sizes.items():
        wanted = min(wanted, len(groups) // 3)
        filled = 0
        for share in LARGEST_SHARES:
            for group in queue:
                if filled < wanted and split_of[group] == TRAIN and members[group] <= max(1, wanted * share):
                    split_of[group] = split
                    filled += members[group]
    return [split_of[group] for group in groups]
