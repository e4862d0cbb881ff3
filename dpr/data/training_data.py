"""What a data set has to offer, and the base of user-defined ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from hashlib import sha256
from typing import Any, Protocol

from dpr.core.records import Passage, TrainingSample
from dpr.data.negatives import AnyPassage, AnySample


class SampleSource(Protocol):
    """A training or dev set whose rows are read when asked for."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> AnySample: ...

    def known_positives(self, row: int) -> tuple[AnyPassage, ...]:
        """Every passage known to answer the question of this row, its own positives included."""
        ...


def questions_fingerprint(source: Any) -> str:
    """Changes with the questions of a train set and their order, not with its passages."""
    questions: Iterable[str] = source.questions() if hasattr(source, "questions") else (source[row].question for row in range(len(source)))
    digest = sha256()
    for question in questions:
        text = question.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


class TrainingData(ABC):
    """Training or dev samples from anywhere: subclasses define how many there are and what each one is.

    The same number must always give the same sample, in every process. Named in a configuration
    (``datasets.<name>.reader=my_module:MyData``), the class is called with the list of the entry's files.
    """

    name: str = "data"
    """Used in logs and in the names of metrics; in a configuration the entry's name replaces it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, row: int) -> TrainingSample: ...

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the data, so that a run is not resumed on other data. Reads every row once; override it if that takes long."""
        digest = sha256()
        for row in range(len(self)):
            sample = self[row]
            digest.update(repr(sample).encode("utf-8", "surrogatepass"))
            scores = [passage.teacher_score for passage in sample.positives + sample.hard_negatives + sample.other_negatives]
            if any(score is not None for score in scores):
                digest.update(repr(scores).encode())
        return digest.hexdigest()

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        """Every passage known to answer the question of ``row``; they are not its negatives."""
        return tuple(dict.fromkeys(passage for other in self._rows_of[self[row].question] for passage in self[other].positives))

    @cached_property
    def _rows_of(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row in range(len(self)):
            rows.setdefault(self[row].question, []).append(row)
        return rows
