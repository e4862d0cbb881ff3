"""Settings by their dotted keys, and other values than their defaults."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from dpr.core.errors import ConfigError
from dpr.core.settings import Leaf, Setting, Settings, leaves, settings


@cache
def entries(config_class: type) -> dict[str, Setting]:
    """Every setting by its key."""
    return {entry.key: entry for entry in settings(config_class)}


def put(config: Settings, key: str, value: Any) -> None:
    """Sets one value by its dotted key."""
    leaf = leaves(config)[key]
    setattr(leaf.owner, leaf.name, value)


def away(entry: Setting, leaf: Leaf) -> Any:
    """A value away from the default, of the setting's type."""
    default, kinds = leaf.default, (entry.type, *get_args(entry.type))
    if entry.rule.choices:
        other = next(
            choice
            for choice in entry.rule.choices
            if choice not in ([default] if isinstance(default, str) else [])
        )
        return [other] if "list" in str(entry.type) else other
    if bool in kinds:
        return not default
    for kind in (int, float):
        if kind in kinds:
            return next(
                value
                for value in map(kind, (1, 2, 0.5, 0.25, 3, 30, 0, -1))
                if value != default and _is_allowed(entry, value)
            )
    if entry.is_open:
        return {"name": "value"}
    return (
        [1]
        if "list[int]" in str(entry.type) or "list[float]" in str(entry.type)
        else ["a:B"]
        if "list" in str(entry.type)
        else "a:B"
    )


def _is_allowed(entry: Setting, value: float) -> bool:
    try:
        entry.rule.check(entry.key, value)
    except ConfigError:
        return False
    return True
