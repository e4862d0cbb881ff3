"""The contract of data sets, and the base of user-defined ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from hashlib import sha256
from typing import Protocol

import numpy as np

from dpr.core.records import (
    WHOLE_DOCUMENT,
    CutPassage,
    KnownDocument,
    Passage,
    StoredPassage,
    StoredSample,
    TrainingSample,
    composed,
)
from dpr.data.settings import DataSetSettings

AnyPassage = Passage | StoredPassage
"""A passage as text, or its tokens in a token store."""
AnySample = TrainingSample | StoredSample


class SampleSource(Protocol):
    """A training or dev set whose rows are read when asked for."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> AnySample: ...

    def known_positives(self, row: int) -> tuple[AnyPassage | KnownDocument, ...]:
        """Returns every passage known to answer the question of this row, including the row's positives."""
        ...


OpenedSets = list[tuple[SampleSource, DataSetSettings]]
"""Data sets with their options. Ids of passages count within sets of one name."""


def spread_rows(size: int, count: int) -> list[int]:
    """Returns ``count`` row numbers spread over ``size``, in order; all of them if there are fewer."""
    rows: list[int] = np.linspace(0, size - 1, min(count, size)).astype(int).tolist()
    return rows


def known_document(sample: AnySample) -> KnownDocument:
    """Returns the document of the passage that a pair was cut from."""
    (passage,) = sample.positives
    assert isinstance(passage, CutPassage | StoredPassage)
    return KnownDocument((passage.identity[0], WHOLE_DOCUMENT))


class TrainingData(ABC):
    """Training or dev samples from any source: subclasses define their number and each sample.

    The same number must always give the same sample, in every process. Named in a configuration
    (``datasets.<name>.reader=my_module:MyData``), the class is called with the list of the entry's files.
    """

    name: str = "data"
    """Name in logs and of metrics; in a configuration the entry's name replaces it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, row: int) -> TrainingSample: ...

    @cached_property
    def fingerprint(self) -> str:
        """Returns a hash that changes with the data, so that a run is not resumed on other data. Reads every
        row once; override it if that takes long."""
        digest = sha256()
        for row in range(len(self)):
            sample = self[row]
            digest.update(repr(sample).encode("utf-8", "surrogatepass"))
            scores = [passage.teacher_score for passage in sample.passages]
            if any(score is not None for score in scores):
                digest.update(repr(scores).encode())
        return digest.hexdigest()

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        """Returns every passage known to answer the question of ``row``; they are not its negatives."""
        return tuple(
            dict.fromkeys(
                passage
                for other in self._rows_of[composed(self[row].question)]
                for passage in self[other].positives
            )
        )

    @cached_property
    def _rows_of(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row in range(len(self)):
            rows.setdefault(composed(self[row].question), []).append(row)
        return rows
