"""The contract of data sets, and the base of user-defined ones."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpr.core.errors import ConfigError
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


def opened_sets(sets: Any, name: str) -> list[Any]:
    """Returns one data set, or each of a list of them, as a ``SampleSource``, or as a pair of that and the
    options given with it.

    Anything that ``open_training_set`` takes is opened and named after its file, else ``name``. A list of
    dictionaries, or of questions with their passages, is one data set. A dictionary names several.

    Raises:
        InputError: as ``open_training_set``.
        ConfigError: something else was given.
    """
    if type(sets) is dict:
        return [each for key, part in sets.items() for each in opened_sets([part], key)]
    is_one = not isinstance(sets, list | tuple) or any(map(_is_row, sets))
    opened: list[Any] = []
    taken: set[str] = set()
    for item in [sets] if is_one or _is_pair(sets) else sets:
        source, *options = item if _is_pair(item) else (item,)
        if not hasattr(source, "fingerprint") or hasattr(source, "column_names"):
            stem = Path(source).name.split(".")[0] if isinstance(source, str | Path) else ""
            plain = stem if stem.isidentifier() else name
            names = (plain, *(f"{plain}_{number}" for number in range(2, len(taken) + 2)))
            free = next(each for each in names if each not in taken)
            taken.add(free)
            # every format of files; a data set of the user's needs none
            from dpr.formats.training_sets import open_training_set

            source = open_training_set(source, name=free)
        elif missing := [
            part
            for part in ("name", "__len__", "__getitem__", "known_positives")
            if not hasattr(source, part)
        ]:
            raise ConfigError(
                f"a data set of type {type(source).__name__} has no {missing[0]}; dpr.data.training_data says"
                " what it needs"
            )
        opened.append((source, *options) if options else source)
    return opened


def _is_row(item: Any) -> bool:
    """True for a dictionary, an InputExample of sentence-transformers, or a question and its passages. Texts
    that look like files are taken for files."""
    if isinstance(item, list | tuple) and len(item) > 1 and all(isinstance(text, str) for text in item):
        return not any(re.fullmatch(r"\S*[./*]\S*", text) or os.path.exists(text) for text in item)
    if isinstance(item, Mapping):
        return not hasattr(item, "column_names")
    return hasattr(item, "texts") and not hasattr(item, "fingerprint")


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and not isinstance(item[1], str | Path | Mapping | list)
        and not hasattr(item[1], "__getitem__")
    )


class TrainingData(ABC):
    """Training or dev samples from anywhere: subclasses define their number and each sample.

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
            scores = [
                passage.teacher_score
                for passage in sample.positives + sample.hard_negatives + sample.other_negatives
            ]
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
