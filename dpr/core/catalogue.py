"""Entries of the catalogues ``datasets`` and ``ctx_sources``: their options, and their files. Nothing is opened
here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dpr.core.errors import ConfigError
from dpr.core.paths import user_path
from dpr.core.settings import Settings, suggestion


class EntryKind(NamedTuple):
    """Rules for the entries of one kind."""

    key: str
    """Setting that holds them."""
    what: str
    options: type[Settings]
    targets: tuple[str, ...]
    """Classes of the original for such an entry. Here the content of a file determines its reader."""
    without_effect: tuple[str, ...] = ()
    """Options of the original that are accepted and ignored."""


def read_entry(kind: EntryKind, name: str, entry: Any) -> Any:
    """Returns the options of an entry. A text or a list is its ``file``; options given as null keep their default."""
    key = f"{kind.key}.{name}"
    if isinstance(entry, str | list | tuple):
        entry = {"file": entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key} is not a set of options such as file=<path>")
    if (target := entry.get("_target_")) is not None and target not in kind.targets:
        raise ConfigError(
            f"{key}._target_={target} is not supported; leave _target_ out, formats are recognised by their content"
        )
    ignored = ("_target_", *kind.without_effect)
    return kind.options.from_mapping(
        {option: value for option, value in entry.items() if option not in ignored}, f"{key}."
    )


def unknown_entry(
    kind: EntryKind, name: str, entries: Mapping[str, Any], *, setting: str = ""
) -> ConfigError:
    """Returns the error for a name that is neither a file nor an entry."""
    if Path(name).suffix:
        return ConfigError(f"{setting}{name}: there is no such file")
    hint = suggestion(
        name, entries, otherwise=f"; the catalogue has {', '.join(sorted(entries)) or 'no entries'}"
    )
    return ConfigError(
        f"{setting}{name} is neither a file nor a {kind.what} of the catalogue {kind.key}{hint}"
    )


def published_form(kind: EntryKind, name: str, file: str, source: str | None) -> Path:
    """Returns the file of an entry, or the same data as published: compressed, or under the server's name.

    Raises:
        ConfigError: no such file exists.
    """
    path = user_path(file)
    names = [path.name, path.name + ".gz"]
    if source:
        published = source.rpartition("/")[2]
        names += [published, published.removesuffix(".gz")]
    for found in names:
        if path.with_name(found).is_file():
            return path.with_name(found)
    where = f"it is published at {source}; download it, plain or as .gz" if source else "put it there"
    raise ConfigError(
        f"{kind.what} {name}: {file} does not exist\n{where}, or name your copy: {kind.key}.{name}.file=<path>"
    )
