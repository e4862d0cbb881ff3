"""Entries of ``train.validation`` that name a kind of this toolkit, in place of a user-defined class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings
from dpr.core.suggestions import suggestion
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

KIND = "retrieval"
Kind = TypeVar("Kind", bound=Settings)


def is_built_in(entry: Any) -> bool:
    """Whether an entry names a kind."""
    return isinstance(entry, Mapping) and "kind" in entry


def read_entry(entry: Mapping[str, Any], number: int) -> RetrievalValidationSettings:
    """The settings of such an entry; ``number`` counts the entries from 0.

    Raises:
        ConfigError: another kind, an unknown key, a wrong value, or a file that is not there.
    """
    key = f"train.validation[{number}]"
    if entry["kind"] != KIND:
        raise ConfigError(f"{key}.kind={entry['kind']} is not known; choose {KIND}, or a class of yours with use: module:Class")
    if "keep_vectors" in entry:
        raise ConfigError(f"{key}.keep_vectors is no setting any more; after training, dpr embed model_file=<run> writes the same bytes")
    return settings_of(RetrievalValidationSettings, {name: value for name, value in entry.items() if name != "kind"}, f"{key}.")


def settings_of(kind: type[Kind], given: Mapping[str, Any], prefix: str) -> Kind:
    """The settings that ``given`` names, checked; ``prefix`` stands before their names in messages.

    Raises:
        ConfigError: an unknown name, or a value of the wrong type or out of range.
    """
    known = [item.name for item in fields(kind)]
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown setting {prefix}{name}" + suggestion(str(name), known, otherwise=f"; it has {', '.join(known)}"))
    settings = kind(**{str(name): value for name, value in given.items() if value is not None})
    settings.check(prefix)
    return settings
