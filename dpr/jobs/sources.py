"""Names, paths and globs of training sets, question sets and passage collections -> files and options.
Nothing is opened here."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.paths import matching_paths, user_path
from dpr.core.records import Question
from dpr.core.settings import listed
from dpr.data.settings import DataSetSettings
from dpr.embedding.settings import PassageSourceConfig
from dpr.embedding.source import PassageSource
from dpr.formats.question_sets import read_questions
from dpr.formats.training_files.registry import look_at
from dpr.jobs.catalogue import Catalogue, published_form
from dpr.retrieval.settings import QuestionSetConfig

logger = get_logger(__name__)

_TRAINING_SETS = Catalogue(
    "datasets",
    DataSetSettings,
    "data set",
    # DPR's dataset classes say how a file is read; here its content does.
    targets=("dpr.data.biencoder_data.JsonQADataset", "dpr.data.biencoder_data.JsonlQADataset"),
    instead="JSON and JSONL files are told apart by suffix",
    # Settings of those classes that need no counterpart: the rows of a JSONL file are always counted.
    without_effect=("total_data_size", "data_range_start"),
)
_QUESTION_SETS = Catalogue(
    "datasets",
    QuestionSetConfig,
    "question set",
    targets=("dpr.data.retriever_data.CsvQASrc", "dpr.data.retriever_data.JsonlQASrc"),
    instead="CSV and JSON lines are told apart by suffix",
)
_PASSAGES = Catalogue(
    "ctx_sources",
    PassageSourceConfig,
    "passage collection",
    targets=("dpr.data.retriever_data.CsvCtxSrc",),
    instead="formats are told apart by suffix",
)
_READ_OPTIONS = ("question_col", "answers_col", "id_col", "question_attr", "answers_attr", "id_attr")


@dataclass(frozen=True, slots=True)
class NamedSource:
    """One training or dev set: ``name`` is unique within its list and stands in logs and metric keys."""

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
        if isinstance(name, Mapping) and isinstance(file := name.get("file"), str):
            key = _short_name(Path(file).name)
            short_name, files, options = _resolve(key, {key: name}, is_entry=True)
        elif isinstance(name, str) and name:
            short_name, files, options = _resolve(name, catalogue)
        else:
            raise ConfigError(
                f"{name!r} is not a data set; give names of the catalogue, paths, entries with a file, or a"
                " list of them"
            )
        unique, number = short_name, 2
        while unique in sources:
            unique, number = f"{short_name}_{number}", number + 1
        sources[unique] = NamedSource(unique, files, options)
    return list(sources.values())


def _resolve(
    name: str, catalogue: Mapping[str, Any], *, is_entry: bool = False
) -> tuple[str, tuple[Path, ...], DataSetSettings]:
    path = Path(name)
    if name in catalogue and (is_entry or not path.is_file()):
        options = _TRAINING_SETS.read_entry(name, catalogue[name])
        return name, _catalogue_files(name, options), options
    if name in catalogue:
        logger.warning(
            "%s is a file here and a data set of the catalogue; the file is used (write ./%s to say so)",
            name,
            name,
        )
    files = _expand(name) or ((path,) if path.is_dir() and look_at(path).is_training_data else ())
    if files:
        return _short_name(path.name), files, DataSetSettings()
    if path.is_dir():
        raise ConfigError(f"{name} is a folder; name its files, e.g. '{name.rstrip('/')}/*.json'")
    if glob.has_magic(name):
        raise ConfigError(f"no file matches {name}")
    beside = (
        str(path.parent / other) for other in difflib.get_close_matches(path.name, _names_beside(path), n=2)
    )
    raise _TRAINING_SETS.unknown(name, catalogue, also=beside)


def _catalogue_files(name: str, options: DataSetSettings) -> tuple[Path, ...]:
    if options.reader is not None and options.file is None:
        return ()
    files: list[Path] = []
    for entry in [None] if options.file is None else listed(options.file):
        if not isinstance(entry, str) or not entry:
            raise ConfigError(
                f"datasets.{name}.file={entry!r} is not a path; set datasets.{name}.file=<path>"
            )
        published = published_form(user_path(entry), options.source)
        matches = _expand(entry) or ((published,) if published else ())
        if not matches:
            raise _TRAINING_SETS.missing(name, entry, options)
        files.extend(matches)
    return tuple(files)


def _expand(pattern: str) -> tuple[Path, ...]:
    return tuple(path for path in matching_paths(pattern) if path.is_file())


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


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A question file with its options; ``name`` stands in logs and metrics."""

    name: str
    file: Path
    options: QuestionSetConfig

    def read(self) -> list[Question]:
        """The questions of the range that the options name.

        Raises:
            InputError: a bad row (file and line), or no question in the range.
        """
        start, size = self.options.data_range_start, self.options.data_size
        questions = read_questions(self.file, **{name: getattr(self.options, name) for name in _READ_OPTIONS})
        chosen = questions if start < 0 else questions[start : None if size < 0 else start + size]
        if not chosen and start >= 0:
            message = f"no question from number {start} on (data_size {size}); it has {len(questions)}"
            raise InputError(message, file=self.file, hint="set data_range_start and data_size to fit")
        return chosen


def resolve_question_set(name: str, catalogue: Mapping[str, Any]) -> QuestionSet:
    """The set that ``name`` stands for: an existing file, or else a key of the ``datasets`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    return QuestionSet(*_QUESTION_SETS.resolve_file(name, catalogue, setting="qa_dataset="))


def resolve_passage_sources(names: Sequence[str], catalogue: Mapping[str, Any]) -> list[PassageSource]:
    """The collections that names stand for; one that is a pattern stands for every file it matches, sorted.

    Raises:
        ConfigError: see ``resolve_passage_source``.
    """
    return [
        resolve_passage_source(file, catalogue)
        for name in names
        for file in _matches(name, catalogue) or [name]
    ]


def resolve_passage_source(name: str, catalogue: Mapping[str, Any]) -> PassageSource:
    """The collection that ``name`` stands for: an existing file, or else a key of the ``ctx_sources``
    catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    matches = _matches(name, catalogue)
    if len(matches) > 1:
        raise ConfigError(
            f"{name} matches {len(matches)} files; a corpus to embed is one file, so join them, or embed each"
        )
    short_name, file, options = _PASSAGES.resolve_file(matches[0] if matches else name, catalogue)
    given = {
        item.name: getattr(options, item.name)
        for item in fields(PassageSource)
        if item.name not in ("file", "name")
    }
    return PassageSource(
        file, short_name, **{key: value for key, value in given.items() if value is not None}
    )


def _matches(name: str, catalogue: Mapping[str, Any]) -> list[str]:
    return [] if name in catalogue else [str(path) for path in matching_paths(name)]
