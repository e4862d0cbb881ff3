"""Names and paths of question sets, resolved to a file and options; and the questions read as those options say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.assembly.catalogue import Catalogue
from dpr.core.errors import InputError
from dpr.core.records import Question
from dpr.formats.question_sets import read_questions
from dpr.retrieval.settings import QuestionSetConfig

_CATALOGUE = Catalogue(
    "datasets",
    QuestionSetConfig,
    "question set",
    targets=("dpr.data.retriever_data.CsvQASrc", "dpr.data.retriever_data.JsonlQASrc"),
    told_apart="CSV and JSON lines are told by suffix",
)


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
    return QuestionSet(*_CATALOGUE.resolve_file(name, catalogue, setting="qa_dataset="))
