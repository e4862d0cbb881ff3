"""How many examples a property is tried with, and which cases of one kind."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_THOROUGH = 1000


IS_THOROUGH = "DPR_FUZZ_CASES" in os.environ
"""``make fuzz`` sets it; ``make test`` does not."""


def examples(few: int) -> int:
    """``few`` in ``make test``; at least 1,000 in ``make fuzz``."""
    return max(few, _THOROUGH) if IS_THOROUGH else few


def some(cases: Sequence[T], *few: T) -> Sequence[T]:
    """``few`` of the cases in ``make test``; all in ``make fuzz``."""
    return cases if IS_THOROUGH else few
