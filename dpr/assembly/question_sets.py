"""Names and paths of question sets, resolved to a file and options; and the questions read as those options say."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.assembly.catalogue import read_entry
from dpr.config.retrieval import QuestionSetConfig
from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Question
from dpr.formats.question_sets import read_questions

_KNOWN_TARGETS = ("dpr.data.retriever_data.CsvQASrc", "dpr.data.retriever_data.JsonlQASrc")


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
        options = self.options
        questions = read_questions(
            self.file,
            question_col=options.question_col,
            answers_col=options.answers_col,
            id_col=options.id_col,
            question_attr=options.question_attr,
            answers_attr=options.answers_attr,
            id_attr=options.id_attr,
        )
        if options.data_range_start < 0:
            return questions
        stop = None if options.data_size < 0 else options.data_range_start + options.data_size
        chosen = questions[options.data_range_start : stop]
        if not chosen:
            found = f"no question from number {options.data_range_start} on (data_size {options.data_size}); it has {len(questions)}"
            raise InputError(found, file=self.file, hint="set data_range_start and data_size to fit")
        return chosen


def resolve_question_set(name: str, catalogue: Mapping[str, Any]) -> QuestionSet:
    """The set that ``name`` stands for: an existing file, or else a key of the ``datasets`` catalogue. Nothing is opened.

    Raises:
        ConfigError: neither, the catalogue's file is missing, or an option is unknown or of the wrong type.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return QuestionSet(path.name.partition(".")[0] or path.name, path, QuestionSetConfig())
    if name in catalogue:
        options = _options(name, catalogue[name])
        return QuestionSet(name, _file_of(name, options), options)
    if path.is_dir():
        raise ConfigError(f"{name} is a folder, expected a question file (CSV, TSV or JSON lines)")
    near = difflib.get_close_matches(name, catalogue, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"the catalogue has {', '.join(sorted(catalogue)) or 'no entries'}"
    raise ConfigError(f"qa_dataset={name} is neither a file nor a question set of the catalogue; {hint}")


def _file_of(name: str, options: QuestionSetConfig) -> Path:
    if not options.file:
        raise ConfigError(f"datasets.{name}.file is not set; set datasets.{name}.file=<path>")
    path = Path(options.file).expanduser()
    places = [path, path.with_name(path.name + ".gz")]
    if options.source:
        published = options.source.rpartition("/")[2]
        places += [path.with_name(published), path.with_name(published.removesuffix(".gz"))]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        where = f"it is published at {options.source}; put it there as it is" if options.source else "put it there"
        raise ConfigError(f"questions {name}: {options.file} does not exist\n{where}, or name your copy: datasets.{name}.file=<path>")
    return file


def _options(name: str, entry: Any) -> QuestionSetConfig:
    told_apart = "CSV and JSON lines are told by suffix"
    options = read_entry(QuestionSetConfig, entry, key=f"datasets.{name}", targets=_KNOWN_TARGETS, told_apart=told_apart)
    return options
