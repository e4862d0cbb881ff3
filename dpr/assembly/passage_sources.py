"""Names and paths of passage collections, resolved to files and options. Nothing is opened here."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpr.assembly.catalogue import read_entry
from dpr.config.embedding import PassageSourceConfig
from dpr.core.errors import ConfigError
from dpr.embedding.source import PassageSource

_READ = "passages as TSV, CSV, JSON lines or Parquet"
_KNOWN_TARGETS = ("dpr.data.retriever_data.CsvCtxSrc",)


def resolve_passage_sources(names: Sequence[str], catalogue: Mapping[str, Any]) -> list[PassageSource]:
    """The collections that names stand for; one that is a pattern stands for every file it matches, sorted.

    Raises:
        ConfigError: see ``resolve_passage_source``.
    """
    found: list[str] = []
    for name in names:
        is_pattern = glob.has_magic(name) and name not in catalogue and not Path(name).exists()
        found += (sorted(glob.glob(str(Path(name).expanduser()))) if is_pattern else []) or [name]
    return [resolve_passage_source(name, catalogue) for name in found]


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
        raise ConfigError(f"{name} is a folder, expected {_READ}")
    if glob.has_magic(name) and (matches := glob.glob(str(path))):
        if len(matches) == 1:
            return resolve_passage_source(matches[0], catalogue)
        raise ConfigError(f"{name} matches {len(matches)} files; a corpus to embed is one file ({_READ}), so join them, or embed each")
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
        passage_prefix=options.passage_prefix or "",
    )


def _options(name: str, entry: Any) -> PassageSourceConfig:
    told_apart = "formats are told by suffix"
    options = read_entry(PassageSourceConfig, entry, key=f"ctx_sources.{name}", targets=_KNOWN_TARGETS, told_apart=told_apart)
    return options
