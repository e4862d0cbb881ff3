"""Overrides -> a dataclass object, for commands whose configuration is not composed of files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from dpr.cli.arguments import Arguments, exists, items_of, unquoted
from dpr.core.errors import ConfigError
from dpr.core.settings import Setting, Settings, without_none

Config = TypeVar("Config", bound=Settings)
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def filled(config_class: type[Config], given: Arguments, known: Mapping[str, Setting]) -> Config:
    """The checked settings. A list that is given twice gets the values of both.

    Raises:
        ConfigError: a value is of the wrong type, out of range, or does not fit another.
    """
    config = config_class()
    values: dict[str, Any] = dict(given.operands)
    for override in given.overrides:
        key, _, text = override.partition("=")
        key = key.strip().lstrip("+")
        value = value_of(known[key], text.strip())
        values[key] = values[key] + value if isinstance(value, list) and key in values else value
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        setattr(getattr(config, section) if section else config, name, value)
    config.check()
    return config


def value_of(entry: Setting, text: str) -> Any:
    """The value that a text stands for, or the text itself where it cannot be one of that type, for the check to refuse."""
    kind = without_none(entry.type)
    if text.lower() == "null":
        if NoneType not in get_args(entry.type):
            raise ConfigError(f"{entry.key} does not accept null; leave it out for the default")
        return None
    if kind is bool:
        return _TRUTH.get(text.lower(), text)
    if kind in (int, float):
        with suppress(ValueError):
            return kind(text)
        return text
    if get_origin(kind) is list:
        return [unquoted(text)] if exists(text) else [unquoted(item) for item in items_of(text)]
    if get_origin(kind) is dict:
        with suppress(ValueError):
            return json.loads(text)
        raise ConfigError(f"{entry.key}={text} is not JSON, expected e.g. '{{\"name\": 1}}'")
    return unquoted(text)
