"""Files and options of training sets, which are given as names, paths, globs, or entries of the catalogue
``datasets``. Nothing is opened here."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.catalogue import EntryKind, published_form, read_entry, unknown_entry
from dpr.core.errors import ConfigError
from dpr.core.paths import matching_paths
from dpr.core.settings import listed
from dpr.data.settings import DataSetSettings
from dpr.formats.training_files.registry import look_at

_TRAINING_SETS = EntryKind(
    "datasets",
    "data set",
    DataSetSettings,
    ("dpr.data.biencoder_data.JsonQADataset", "dpr.data.biencoder_data.JsonlQADataset"),
    ("total_data_size", "data_range_start"),
)


@dataclass(frozen=True, slots=True)
class NamedSource:
    """One training or dev set. ``name`` is unique within its list and used in logs and metric keys."""

    name: str
    files: tuple[Path, ...]
    options: DataSetSettings


def resolve_training_files(names: Any, catalogue: Mapping[str, Any]) -> list[NamedSource]:
    """Resolves the value of ``train_datasets`` or ``dev_datasets``.

    Args:
        names: a catalogue key, a path, a glob (its files are one set), the options of an entry (``{file:
            corpus.tsv, pairs: crops}``), or a list of these; None gives an empty list.
        catalogue: the ``datasets`` settings, name -> options. Relative files are taken from the working
        directory.

    Raises:
        ConfigError: a name is unknown, a file is missing, an option is unknown or of the wrong type.
    """
    sources: dict[str, NamedSource] = {}
    for name in [names] if isinstance(names, Mapping) else listed(names):
        entry: Any = None
        if isinstance(name, Mapping) and isinstance(file := name.get("file"), str):
            short_name = _short_name(Path(file).name)
            entry = name
        elif not isinstance(name, str) or not name:
            raise ConfigError(
                f"{name!r} is not a data set; give names of the catalogue, paths, entries with a file, or a"
                " list of them"
            )
        elif name in catalogue and not Path(name).is_file():
            short_name = name
            entry = catalogue[name] or {}
        else:
            path = Path(name)
            short_name = _short_name(path.name)
            options = DataSetSettings()
            files = _expand(name)
            if not files and path.is_dir():
                if not look_at(path)[0]:
                    raise ConfigError(f"{name} is a folder; name its files, e.g. '{name.rstrip('/')}/*.json'")
                files = (path,)
            elif not files and glob.has_magic(name):
                raise ConfigError(f"no file matches {name}")
            elif not files:
                raise unknown_entry(_TRAINING_SETS, name, catalogue)
        if entry is not None:
            options = read_entry(_TRAINING_SETS, short_name, entry)
            files = _entry_files(short_name, options)
        unique = short_name
        number = 2
        while unique in sources:
            unique = f"{short_name}_{number}"
            number += 1
        sources[unique] = NamedSource(unique, files, options)
    return list(sources.values())


def _entry_files(name: str, options: DataSetSettings) -> tuple[Path, ...]:
    if options.reader is not None and options.file is None:
        return ()
    files: list[Path] = []
    for entry in listed(options.file) or [None]:
        if not isinstance(entry, str) or not entry:
            raise ConfigError(
                f"datasets.{name}.file={entry!r} is not a path; set datasets.{name}.file=<path>"
            )
        files += _expand(entry) or [published_form(_TRAINING_SETS, name, entry, options.source)]
    return tuple(files)


def _expand(pattern: str) -> tuple[Path, ...]:
    return tuple(path for path in matching_paths(pattern) if path.is_file())


def _short_name(file_name: str) -> str:
    """Returns a name without its endings: ``nq-train.json.gz`` -> ``nq-train``; ``part-*.jsonl`` -> ``part``."""
    stem = file_name
    for suffix in (".gz", ".jsonl", ".json", ".tsv", ".parquet"):
        stem = stem.removesuffix(suffix)
    return "".join("" if letter in "*?[]" else letter for letter in stem).strip("-_. ") or "data"
