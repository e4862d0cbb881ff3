"""Settings by their dotted keys."""

from typing import Any

from dpr.core.settings import Settings, leaves


def put(config: Settings, key: str, value: Any) -> None:
    """Sets one value by its dotted key."""
    leaf = leaves(config)[key]
    setattr(leaf.owner, leaf.name, value)
