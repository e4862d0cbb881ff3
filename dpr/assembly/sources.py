"""Names, paths and globs of training and dev sets, resolved to files and options. Nothing is opened here."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.assembly.catalogue import Catalogue, published_form
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.settings import DataSetSettings
from dpr.formats.training_files.registry import look_at

logger = get_logger(__name__)

_CATALOGUE = Catalogue(
    "datasets",
    DataSetSettings,
    "data set",
    # DPR's dataset classes say how a file is read; here its content does.
    targets=("dpr.data.biencoder_data.JsonQADataset", "dpr.data.biencoder_data.JsonlQADataset"),
    told_apart="JSON and JSONL files are told apart by suffix",
    # Settings of those classes that need no counterpart: JSONL is never counted wrongly, so nobody has to say how long it is.
    without_effect=("total_data_size", "data_range_start"),
)


@dataclass(frozen=True, slots=True)
class NamedSource:
    """One data set: ``name`` is unique within its list and stands in logs and metric keys."""

    name: str
    files: tuple[Path, ...]
    options: DataSetSettings


def resolve_training_files(names: Any, catalogue: Mapping[str, Any]) -> list[NamedSource]:
    """Resolves the value of ``train_datasets`` or ``dev_datasets``.

    Args:
        names: a catalogue key, a path, a glob (its files are one set), or a list of these; None gives an empty list.
        catalogue: the ``datasets`` settings, name -> options. Relative files are taken from the working directory.

    Raises:
        ConfigError: a name is unknown, a file is missing, an option is unknown or of the wrong type.
    """
    if names is None:
        return []
    listed = names if isinstance(names, list | tuple) else [names]
    sources: list[NamedSource] = []
    for name in listed:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{name!r} is not a data set; give names of the catalogue, paths, or a list of them")
        source = _resolve(name, catalogue)
        taken = {other.name for other in sources}
        number = 2
        unique = source.name
        while unique in taken:
            unique, number = f"{source.name}_{number}", number + 1
        sources.append(NamedSource(unique, source.files, source.options))
    return sources


def _resolve(name: str, catalogue: Mapping[str, Any]) -> NamedSource:
    path = Path(name).expanduser()
    if path.is_file():
        if name in catalogue:
            logger.warning("%s is a file here and a data set of the catalogue; the file is used (write ./%s to say so)", name, name)
        return NamedSource(_short_name(path.name), (path,), DataSetSettings())
    if name in catalogue:
        options = _CATALOGUE.read_entry(name, catalogue[name])
        return NamedSource(name, _catalogue_files(name, options), options)
    if found := _expand(name):
        return NamedSource(_short_name(path.name), found, DataSetSettings())
    if path.is_dir():
        if look_at(path).is_training_data:
            return NamedSource(_short_name(path.name), (path,), DataSetSettings())
        raise ConfigError(f"{name} is a folder; name its files, e.g. '{name.rstrip('/')}/*.json'")
    if glob.has_magic(name):
        raise ConfigError(f"no file matches {name}")
    beside = (str(path.parent / other) for other in difflib.get_close_matches(path.name, _names_beside(path), n=2))
    raise _CATALOGUE.unknown(name, catalogue, also=beside)


def _catalogue_files(name: str, options: DataSetSettings) -> tuple[Path, ...]:
    if options.reader is not None and options.file is None:
        return ()
    given = options.file if isinstance(options.file, list | tuple) else [options.file]
    files: list[Path] = []
    for entry in given:
        if not isinstance(entry, str) or not entry:
            raise ConfigError(f"datasets.{name}.file={entry!r} is not a path; set datasets.{name}.file=<path>")
        published = published_form(Path(entry).expanduser(), options.source)
        found = _expand(entry) or ((published,) if published else ())
        if not found:
            raise _CATALOGUE.missing(name, entry, options)
        files.extend(found)
    return tuple(files)


def _expand(pattern: str) -> tuple[Path, ...]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return (path,)
    return tuple(Path(found) for found in sorted(glob.glob(str(path), recursive=True)) if Path(found).is_file())


def _short_name(file_name: str) -> str:
    """``nq-train.json.gz`` -> ``nq-train``; ``part-*.jsonl`` -> ``part``."""
    stem = file_name
    for suffix in (".gz", ".jsonl", ".json", ".tsv", ".parquet"):
        stem = stem.removesuffix(suffix)
    return "".join("" if letter in "*?[]" else letter for letter in stem).strip("-_. ") or "data"


def _names_beside(path: Path) -> list[str]:
    try:
        return [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError:
        return []
