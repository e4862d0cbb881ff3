"""How many examples a property is tried with."""

from __future__ import annotations

import os

_THOROUGH = 1000


def examples(few: int) -> int:
    """``few`` in ``make test``; at least 1,000 in ``make fuzz``, which sets DPR_FUZZ_CASES."""
    return max(few, _THOROUGH) if "DPR_FUZZ_CASES" in os.environ else few
