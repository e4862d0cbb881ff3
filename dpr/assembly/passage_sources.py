"""Names and paths of passage collections, resolved to files and options. Nothing is opened here."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpr.assembly.catalogue import Catalogue
from dpr.core.errors import ConfigError
from dpr.embedding.settings import PassageSourceConfig
from dpr.embedding.source import PassageSource

_CATALOGUE = Catalogue(
    "ctx_sources",
    PassageSourceConfig,
    "passage collection",
    targets=("dpr.data.retriever_data.CsvCtxSrc",),
    told_apart="formats are told by suffix",
)


def resolve_passage_sources(names: Sequence[str], catalogue: Mapping[str, Any]) -> list[PassageSource]:
    """The collections that names stand for; one that is a pattern stands for every file it matches, sorted.

    Raises:
        ConfigError: see ``resolve_passage_source``.
    """
    return [resolve_passage_source(file, catalogue) for name in names for file in _matches(name, catalogue) or [name]]


def resolve_passage_source(name: str, catalogue: Mapping[str, Any]) -> PassageSource:
    """The collection that ``name`` stands for: an existing file, or else a key of the ``ctx_sources`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    matches = _matches(name, catalogue)
    if len(matches) > 1:
        raise ConfigError(f"{name} matches {len(matches)} files; a corpus to embed is one file, so join them, or embed each")
    short_name, file, options = _CATALOGUE.resolve_file(matches[0] if matches else name, catalogue)
    return PassageSource(
        file,
        name=short_name,
        id_col=options.id_col,
        text_col=options.text_col,
        title_col=options.title_col,
        id_prefix=options.id_prefix or "",
        normalize=options.normalize,
        passage_prefix=options.passage_prefix or "",
    )


def _matches(name: str, catalogue: Mapping[str, Any]) -> list[str]:
    is_pattern = glob.has_magic(name) and name not in catalogue and not Path(name).expanduser().exists()
    return sorted(glob.glob(str(Path(name).expanduser()))) if is_pattern else []
