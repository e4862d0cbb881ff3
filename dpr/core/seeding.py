"""Randomness as a function of named integers, never of earlier draws."""

from __future__ import annotations

import random

import numpy as np
import torch


def generator_for(*key: int) -> np.random.Generator:
    """Returns a numpy generator that depends on ``key`` alone, the same in every process and on every
    machine."""
    # The numbers are the same either way, but SeedSequence spends most of its time splitting Python integers
    # into words of 32 bits.
    is_words = min(key) >= 0 and max(key) < 2**32
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence(np.array(key, dtype=np.uint32) if is_words else key))
    )


def seed_torch(*key: int) -> None:
    """Seeds torch's global generators on all devices, so that dropout is a function of ``key``."""
    torch.manual_seed(int(np.random.SeedSequence(key).generate_state(2, np.uint64)[0]) & (2**63 - 1))


def seed_everything(seed: int) -> None:
    """Seeds Python, numpy and torch, for third-party code that uses their global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
