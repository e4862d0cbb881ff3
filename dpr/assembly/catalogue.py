"""Entries of the catalogues (``datasets``, ``ctx_sources``): name -> options, read into the dataclass of their kind."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.settings import Settings

Options = TypeVar("Options", bound=Settings)

logger = get_logger(__name__)
_PREFIXES = {"query_prefix", "passage_prefix"}


def read_entry(
    options_class: type[Options],
    entry: Any,
    *,
    key: str,
    targets: Collection[str],
    told_apart: str,
    without_effect: Collection[str] = (),
) -> Options:
    """Reads one entry; a text or a list stands for its ``file``. Options given as null keep their default.

    Args:
        options_class: a dataclass of options.
        entry: what the configuration holds.
        key: the entry's dotted key, e.g. ``datasets.nq_dev``.
        targets: ``_target_`` values of the original that mean this kind of entry; any other is refused.
        told_apart: what takes the place of ``_target_``, for the message.
        without_effect: options of the original that are accepted and do nothing.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range.
    """
    if isinstance(entry, str | list | tuple):
        entry = {"file": entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key} is not a set of options such as file=<path>")
    target = entry.get("_target_")
    if target is not None and target not in targets:
        raise ConfigError(f"{key}._target_={target} is not supported; leave _target_ out, {told_apart}")
    known = [item.name for item in fields(options_class)]
    values: dict[str, Any] = {}
    for name, value in entry.items():
        if name == "_target_" or name in without_effect:
            continue
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
            raise ConfigError(f"unknown setting {key}.{name}; did you mean {', '.join(near or known)}?")
        if value is not None:
            values[name] = value
    options = options_class(**values)
    options.check(f"{key}.")
    for name in _PREFIXES & values.keys():
        warn_of_lost_space(f"{key}.{name}", values[name])
    return options


def warn_of_lost_space(key: str, prefix: str) -> None:
    """Warns of a prefix that ends in a colon: most models know "query: ", and its space is easily lost on the way here."""
    if prefix.endswith(":"):
        logger.warning(
            "%s=%r ends without a space, so texts follow the colon at once; write %r if one belongs there", key, prefix, prefix + " "
        )
