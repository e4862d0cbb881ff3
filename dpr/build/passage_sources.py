"""Names and paths of passage collections, resolved to files and options. Nothing is opened here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpr.config.embedding import PassageSourceConfig
from dpr.core.errors import ConfigError
from dpr.embedding.source import PassageSource

_KNOWN_TARGETS = ("dpr.data.retriever_data.CsvCtxSrc",)


def resolve_passage_source(name: str, catalogue: Mapping[str, Any]) -> PassageSource:
    """The collection that ``name`` stands for: an existing file, or else a key of the ``ctx_sources`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return PassageSource(path, name=path.name.partition(".")[0] or path.name)
    if name in catalogue:
        return _from_catalogue(name, catalogue[name])
    if path.is_dir():
        raise ConfigError(f"{name} is a folder, expected a passages TSV or JSON-lines file")
    near = difflib.get_close_matches(name, catalogue, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"the catalogue has {', '.join(sorted(catalogue)) or 'no entries'}"
    raise ConfigError(f"{name} is neither a file nor a passage collection of ctx_sources; {hint}")


def _from_catalogue(name: str, entry: Any) -> PassageSource:
    options = _options(name, entry)
    if not options.file:
        raise ConfigError(f"ctx_sources.{name}.file is not set; set ctx_sources.{name}.file=<path>")
    path = Path(options.file).expanduser()
    published = path.with_name(options.source.rpartition("/")[2]) if options.source else path
    file = next((found for found in (path, path.with_name(path.name + ".gz"), published) if found.is_file()), None)
    if file is None:
        where = f"it is published at {options.source}; put it there (.gz as it is will do)" if options.source else "put it there"
        raise ConfigError(f"passages {name}: {options.file} does not exist\n{where}, or name your copy: ctx_sources.{name}.file=<path>")
    return PassageSource(
        file,
        name=name,
        id_col=options.id_col,
        text_col=options.text_col,
        title_col=options.title_col,
        id_prefix=options.id_prefix or "",
        normalize=options.normalize,
    )


def _options(name: str, entry: Any) -> PassageSourceConfig:
    entry = {"file": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping):
        raise ConfigError(f"ctx_sources.{name} is not a set of options such as file=<path>")
    target = entry.get("_target_")
    if target is not None and target not in _KNOWN_TARGETS:
        raise ConfigError(
            f"ctx_sources.{name}._target_={target} is not supported; leave _target_ out, TSV and JSON lines are told by suffix"
        )
    known = {item.name: item.default for item in fields(PassageSourceConfig)}
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "_target_":
            continue
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=3, cutoff=0.5)
            raise ConfigError(f"unknown setting ctx_sources.{name}.{key}; did you mean {', '.join(near or known)}?")
        kind = str if known[key] is None else type(known[key])
        if value is not None and type(value) is not kind:
            raise ConfigError(f"ctx_sources.{name}.{key}={value!r} is not a {kind.__name__}")
        values[key] = known[key] if value is None else value
    options = PassageSourceConfig(**values)
    options.check(name)
    return options
