"""The contract of an index, its recall against exact search, and a kind with its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError
from dpr.core.settings import NO_EFFECT, Settings, rule_of
from dpr.core.user_classes import load_class
from dpr.indexer.ranking import SearchResult
from dpr.indexer.settings import KINDS, require_known

if TYPE_CHECKING:
    import torch

DEPTH = 100
"""Passages per question that are compared to measure recall."""
AT = (10, DEPTH)
NUM_QUESTIONS = 400
"""Most questions that are compared at a build."""


class IndexTexts(NamedTuple):
    """Corpus of an index over words: ids, and title and text of each in the same order, both to be read once."""

    ids: Iterable[str]
    texts: Iterable[str]


@dataclass(frozen=True, slots=True)
class Recall:
    """Recall of an index when it was built, on questions that did not tune it.

    ``values`` are means by name. recall@10, for example, is the share of the 10 passages of exact search that
    are among the first 10 of the index. ``questions`` is their number, ``breadth`` the setting of the
    search's breadth.
    """

    values: dict[str, float]
    questions: int
    breadth: dict[str, int]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.3f}" for name, value in self.values.items())
        breadth = "".join(f", {name}={value}" for name, value in self.breadth.items())
        return f"{values} ({self.questions} held-back questions{breadth})"


def held_back(count: int) -> np.ndarray:
    """Returns the rows of at most NUM_QUESTIONS of ``count`` questions, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, NUM_QUESTIONS)).astype(np.int64))


def recall_values(results: Iterable[Sequence[str]], truth: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns recall by name, over questions that each have a true passage."""
    pairs = list(zip(results, truth, strict=True))
    values = {}
    for k in AT:
        shares = [len({*found[:k]} & {*best[:k]}) / len(best[:k]) for found, best in pairs]
        values[f"recall@{k}"] = float(np.mean(shares))
    return values


class Index(ABC):
    """An index that finds the passages nearest to a question. Retrieval, search and mining use only this
    interface.

    Subclass it and name the class as ``indexer.kind=module:Class``. An implementation promises:

    * A result depends on the corpus, the settings and the questions, but not on the order or the number of
      the questions.
    * ``save`` writes everything that ``open`` needs into an empty folder. The opened index finds the same
      passages as the saved one, is not changed by searching, and may be open in several processes. It need
      not write a manifest or checksums, or compare settings.
    * A saved index of other settings is refused. Fields of ``Settings`` made with
      ``dpr.core.settings.setting(..., on_resume="no effect")`` are not compared.
    """

    reads: ClassVar[str] = "vectors"
    """Input of ``build`` and ``search``: "vectors", a sequence of ``VectorSource`` and an array (Q, D)
    float32; or "texts", ``IndexTexts`` and a list of questions."""
    is_saved: ClassVar[bool] = True
    """False for an index that keeps nothing and is built each time."""
    made_by: ClassVar[Mapping[str, Any]] = {}
    """Facts, besides its settings, that determine an index, such as the version of a rule in the code. A
    saved index with other values is refused."""
    Settings: ClassVar[type[Any]] = Settings
    """Dataclass of the settings, given as ``indexer.options.<name>`` for a user-defined class."""
    can_filter: ClassVar[bool] = False
    """True if ``among`` is implemented. Approximate indexes have none: the passages they miss depend on those
    left out."""
    recall: Recall | None = None
    """Recall measured when the index was built; None if it was not."""

    @classmethod
    @abstractmethod
    def build(cls, corpus: Any, settings: Any, *, device: torch.device | str = "cpu") -> Index:
        """Indexes a corpus. Raises InputError if it is empty or cannot be indexed."""

    @property
    @abstractmethod
    def num_passages(self) -> int:
        """Returns the number of passages."""

    @abstractmethod
    def search(self, questions: Any, k: int) -> SearchResult:
        """Returns up to ``k`` passages of each question in the form of ``dpr.indexer.ranking``: score
        descending, then id ascending."""

    def among(self, ids: np.ndarray) -> Index:
        """Returns a view of the passages with these ids (n,), fixed-width bytes, ascending and distinct. It
        finds what a search of all passages finds, without the other passages and with the same scores."""
        raise NotImplementedError(f"{type(self).__name__} cannot search a part of its passages")

    def save(self, folder: Path) -> None:
        """Writes the index into an empty folder."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved; define save and open, or set is_saved = False"
        )

    @classmethod
    def open(cls, folder: Path, settings: Any) -> Index:
        """Opens the index that was saved in a folder, whose files are verified before. Raises InputError if
        they cannot be read."""
        raise NotImplementedError(
            f"{cls.__name__} cannot be opened; define save and open, or set is_saved = False"
        )

    @property
    def breadth(self) -> dict[str, int]:
        """Returns the setting that makes a search broader, slower and with a higher recall, and its value;
        empty if there is none."""
        return {}

    def tune(self, questions: Any, truth: Sequence[Sequence[str]]) -> bool:
        """Chooses the breadth of an index that is being built, from the results of exact search for some
        questions. Returns False if there is nothing to choose."""
        return False

    def recall_in_words(self) -> str:
        """Returns the recall measured at build, as far as it applies to the current breadth."""
        if self.recall is None:
            return "recall not measured, since it was built without questions"
        if self.recall.breadth != self.breadth:
            breadth = "".join(f"{name}={value}" for name, value in self.breadth.items())
            return f"recall not measured with {breadth}; at build {self.recall}"
        return f"{self.recall}, measured at build"


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """A kind of index with its settings."""

    kind: str
    settings: Any

    @classmethod
    def of(cls, kind: str, values: Mapping[str, Any], *, key: str) -> IndexChoice:
        """Returns a kind with those of ``values`` that are its settings; ``key`` is the section they stand
        in.

        Raises:
            ConfigError: the kind is not known, is not an ``Index``, or its settings do not accept the values.
        """
        made = index_class(kind)
        known = [item.name for item in fields(made.Settings)]
        if unknown := sorted(set(values) - set(known)):
            raise ConfigError(
                f"{key}{unknown[0]} is not a setting of indexer.kind={kind}; it has"
                f" {', '.join(known) or 'none'}"
            )
        settings = made.Settings(**values)
        if isinstance(settings, Settings):
            settings.check(key)
        return cls(kind, settings)

    @property
    def index_class(self) -> type[Index]:
        return index_class(self.kind)

    def metadata(self) -> dict[str, Any]:
        """Returns kind, settings and ``made_by``, without settings that do not affect what is found or saved."""
        return {"kind": self.kind, **self.index_class.made_by, **self.decisive_settings()}

    def decisive_settings(self) -> dict[str, Any]:
        """Returns the settings that determine what is saved."""
        names = [item.name for item in fields(self.settings) if rule_of(item).on_resume != NO_EFFECT]
        return {name: getattr(self.settings, name) for name in names}


def index_class(kind: str) -> type[Index]:
    """Returns the class of a kind.

    Raises:
        ConfigError: no kind has that name, or the path does not name an ``Index``.
    """
    require_known(kind)
    return load_class(KINDS[kind].path if kind in KINDS else kind, Index, setting="indexer.kind")
