"""Files and options of training sets, question sets and passage collections, which are given as names, paths,
globs, or entries of the catalogues ``datasets`` and ``ctx_sources``. Nothing is opened here."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import matching_paths, user_path
from dpr.core.records import Question
from dpr.core.settings import Settings, listed, suggestion
from dpr.data.settings import DataSetSettings
from dpr.embedding.settings import PassageSourceConfig
from dpr.embedding.source import PassageSource
from dpr.formats.question_sets import read_questions
from dpr.formats.training_files.registry import look_at
from dpr.retrieval.settings import QuestionSetConfig


class _Kind(NamedTuple):
    """Rules for the entries of one kind."""

    key: str
    """Setting that holds them."""
    what: str
    options: type[Settings]
    targets: tuple[str, ...]
    """Classes of the original for such an entry. Here the content of a file determines its reader."""
    without_effect: tuple[str, ...] = ()
    """Options of the original that are accepted and ignored."""


_TRAINING_SETS = _Kind(
    "datasets",
    "data set",
    DataSetSettings,
    ("dpr.data.biencoder_data.JsonQADataset", "dpr.data.biencoder_data.JsonlQADataset"),
    ("total_data_size", "data_range_start"),
)
_QUESTION_SETS = _Kind(
    "datasets",
    "question set",
    QuestionSetConfig,
    ("dpr.data.retriever_data.CsvQASrc", "dpr.data.retriever_data.JsonlQASrc"),
)
_PASSAGES = _Kind(
    "ctx_sources", "passage collection", PassageSourceConfig, ("dpr.data.retriever_data.CsvCtxSrc",)
)
_READ_OPTIONS = ("question_col", "answers_col", "id_col", "question_attr", "answers_attr", "id_attr")


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
                raise _unknown(_TRAINING_SETS, name, catalogue)
        if entry is not None:
            options = _read_entry(_TRAINING_SETS, short_name, entry)
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
        files += _expand(entry) or [_published_form(_TRAINING_SETS, name, entry, options.source)]
    return tuple(files)


def _expand(pattern: str) -> tuple[Path, ...]:
    return tuple(path for path in matching_paths(pattern) if path.is_file())


def _short_name(file_name: str) -> str:
    """Returns a name without its endings: ``nq-train.json.gz`` -> ``nq-train``; ``part-*.jsonl`` -> ``part``."""
    stem = file_name
    for suffix in (".gz", ".jsonl", ".json", ".tsv", ".parquet"):
        stem = stem.removesuffix(suffix)
    return "".join("" if letter in "*?[]" else letter for letter in stem).strip("-_. ") or "data"


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A question file with its options; ``name`` is used in logs and metrics."""

    name: str
    file: Path
    options: QuestionSetConfig

    def read(self) -> list[Question]:
        """Returns the questions of the range that the options name.

        Raises:
            InputError: a bad row (file and line), or no question in the range.
        """
        start = self.options.data_range_start
        size = self.options.data_size
        questions = read_questions(self.file, **{name: getattr(self.options, name) for name in _READ_OPTIONS})
        chosen = questions if start < 0 else questions[start : None if size < 0 else start + size]
        if not chosen and start >= 0:
            message = f"no question from number {start} on (data_size {size}); it has {len(questions)}"
            raise InputError(message, file=self.file, hint="set data_range_start and data_size to fit")
        return chosen


def resolve_question_set(name: str, catalogue: Mapping[str, Any]) -> QuestionSet:
    """Returns the set of ``name``: an existing file, or else a key of the ``datasets`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    return QuestionSet(*_resolve_file(_QUESTION_SETS, name, catalogue, setting="qa_dataset="))


def resolve_passage_sources(names: Sequence[str], catalogue: Mapping[str, Any]) -> list[PassageSource]:
    """Returns the collections of names; a pattern gives every file it matches, sorted.

    Raises:
        ConfigError: see ``resolve_passage_source``.
    """
    return [
        resolve_passage_source(file, catalogue)
        for name in names
        for file in _matches(name, catalogue) or [name]
    ]


def resolve_passage_source(name: str, catalogue: Mapping[str, Any]) -> PassageSource:
    """Returns the collection of ``name``: an existing file, or else a key of the ``ctx_sources`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    matches = _matches(name, catalogue)
    if len(matches) > 1:
        raise ConfigError(
            f"{name} matches {len(matches)} files; a corpus to embed is one file, so join them, or embed each"
        )
    short_name, file, options = _resolve_file(_PASSAGES, matches[0] if matches else name, catalogue)
    given = {}
    for item in fields(PassageSource):
        if item.name not in ("file", "name") and (value := getattr(options, item.name)) is not None:
            given[item.name] = value
    return PassageSource(file, short_name, **given)


def _matches(name: str, catalogue: Mapping[str, Any]) -> list[str]:
    return [] if name in catalogue else [str(path) for path in matching_paths(name)]


def _resolve_file(
    kind: _Kind, name: str, entries: Mapping[str, Any], *, setting: str = ""
) -> tuple[str, Path, Any]:
    """Returns short name, file and options of ``name``: an existing file, or else a key of the catalogue."""
    path = Path(name)
    if path.is_file():
        return path.name.partition(".")[0] or path.name, path, kind.options()
    if name not in entries:
        if path.is_dir():
            raise ConfigError(f"{setting}{name} is a folder, expected the file of a {kind.what}")
        raise _unknown(kind, name, entries, setting=setting)
    options = _read_entry(kind, name, entries[name])
    if not options.file:
        raise ConfigError(f"{kind.key}.{name}.file is not set; set {kind.key}.{name}.file=<path>")
    return name, _published_form(kind, name, options.file, options.source), options


def _read_entry(kind: _Kind, name: str, entry: Any) -> Any:
    """Returns the options of an entry. A text or a list is its ``file``; options given as null keep their default."""
    key = f"{kind.key}.{name}"
    if isinstance(entry, str | list | tuple):
        entry = {"file": entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key} is not a set of options such as file=<path>")
    if (target := entry.get("_target_")) is not None and target not in kind.targets:
        raise ConfigError(
            f"{key}._target_={target} is not supported; leave _target_ out, formats are told apart by content"
        )
    ignored = ("_target_", *kind.without_effect)
    return kind.options.from_mapping(
        {option: value for option, value in entry.items() if option not in ignored}, f"{key}."
    )


def _unknown(kind: _Kind, name: str, entries: Mapping[str, Any], *, setting: str = "") -> ConfigError:
    """Returns the error for a name that is neither a file nor an entry."""
    if Path(name).suffix:
        return ConfigError(f"{setting}{name}: there is no such file")
    hint = suggestion(
        name, entries, otherwise=f"; the catalogue has {', '.join(sorted(entries)) or 'no entries'}"
    )
    return ConfigError(
        f"{setting}{name} is neither a file nor a {kind.what} of the catalogue {kind.key}{hint}"
    )


def _published_form(kind: _Kind, name: str, file: str, source: str | None) -> Path:
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
    where = f"it is published at {source}; put it there (.gz as it is will do)" if source else "put it there"
    raise ConfigError(
        f"{kind.what} {name}: {file} does not exist\n{where}, or name your copy: {kind.key}.{name}.file=<path>"
    )
