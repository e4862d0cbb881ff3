"""JSON as the standard has it: no repeated keys, no NaN or infinity, no numbers that no float or memory holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated!a} appears twice in one object")
    return value


def refuse_constant(name: str) -> Any:
    """Raises ValueError for NaN and infinity, which Python's parser accepts."""
    raise ValueError(f"{name} is not a JSON number")


def _parse_int(digits: str) -> int:
    if len(digits) > 1000:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def finite_float(digits: str) -> float:
    """The number in these digits; ValueError where no float is that large and Python would read infinity."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


STRICT = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=refuse_constant, parse_int=_parse_int, parse_float=finite_float)
