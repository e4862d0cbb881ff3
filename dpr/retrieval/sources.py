"""Files and options of question sets and passage collections, which are given as names, paths, globs, or
entries of the catalogues ``datasets`` and ``ctx_sources``. Nothing is opened here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpr.core.catalogue import EntryKind, published_form, read_entry, unknown_entry
from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import matching_paths
from dpr.core.records import Question
from dpr.embedding.settings import PassageSourceConfig
from dpr.embedding.source import PassageSource
from dpr.formats.question_sets import read_questions
from dpr.retrieval.settings import QuestionSetConfig

_QUESTION_SETS = EntryKind(
    "datasets",
    "question set",
    QuestionSetConfig,
    ("dpr.data.retriever_data.CsvQASrc", "dpr.data.retriever_data.JsonlQASrc"),
)
_PASSAGES = EntryKind(
    "ctx_sources", "passage collection", PassageSourceConfig, ("dpr.data.retriever_data.CsvCtxSrc",)
)
_READ_OPTIONS = ("question_col", "answers_col", "id_col", "question_attr", "answers_attr", "id_attr")


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
            message = (
                f"has {len(questions)} questions, none of them in data_range_start={start} data_size={size}"
            )
            raise InputError(message, file=self.file, hint="set data_range_start and data_size to fit")
        return chosen


def resolve_question_set(name: str, catalogue: Mapping[str, Any]) -> QuestionSet:
    """Returns the set of ``name``: an existing file, or else a key of the ``datasets`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    return QuestionSet(*_resolve_file(_QUESTION_SETS, name, catalogue, setting="qa_dataset="))


def resolve_passage_sources(names: Sequence[str], catalogue: Mapping[str, Any]) -> list[PassageSource]:
    """Returns the collections of names: existing files, all files that a pattern matches, sorted, or else keys of the
    ``ctx_sources`` catalogue.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    sources = []
    for name in names:
        matches = [] if name in catalogue else [str(path) for path in matching_paths(name)]
        for file in matches or [name]:
            short_name, path, options = _resolve_file(_PASSAGES, file, catalogue)
            given = {}
            for item in fields(PassageSource):
                if item.name not in ("file", "name") and (value := getattr(options, item.name)) is not None:
                    given[item.name] = value
            sources.append(PassageSource(path, short_name, **given))
    return sources


def resolve_passage_source(name: str, catalogue: Mapping[str, Any]) -> PassageSource:
    """Returns the collection of ``name``, as ``resolve_passage_sources``.

    Raises:
        ConfigError: as there, or a pattern matches several files.
    """
    sources = resolve_passage_sources([name], catalogue)
    if len(sources) > 1:
        raise ConfigError(
            f"{name} matches {len(sources)} files; a corpus to embed is one file, so join them, or embed each"
        )
    return sources[0]


def _resolve_file(
    kind: EntryKind, name: str, entries: Mapping[str, Any], *, setting: str = ""
) -> tuple[str, Path, Any]:
    """Returns short name, file and options of ``name``: an existing file, or else a key of the catalogue."""
    path = Path(name)
    if path.is_file():
        return path.name.partition(".")[0] or path.name, path, kind.options()
    if name not in entries:
        if path.is_dir():
            raise ConfigError(f"{setting}{name} is a folder, expected the file of a {kind.what}")
        raise unknown_entry(kind, name, entries, setting=setting)
    options = read_entry(kind, name, entries[name])
    if not options.file:
        raise ConfigError(f"{kind.key}.{name}.file is not set; set {kind.key}.{name}.file=<path>")
    return name, published_form(kind, name, options.file, options.source), options
