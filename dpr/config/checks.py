"""Checks that name the key, what was found and what may be."""

from __future__ import annotations

from dpr.core.errors import ConfigError


def require_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ConfigError(f"{key}={value} is not known; choose one of {', '.join(choices)}")


def require_at_least(key: str, value: float, least: float) -> None:
    """Raises ConfigError when ``value`` is below ``least``."""
    if value < least:
        raise ConfigError(f"{key}={value} is out of range; it must be at least {least}")
