"""Indexes: what one promises, and the kinds there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from dpr.core.errors import ConfigError
from dpr.core.settings import NO_EFFECT, Settings, rule_of
from dpr.core.user_classes import load_class
from dpr.indexer.ranking import Ranking, SearchResult, to_rankings
from dpr.indexer.recall import Recall
from dpr.indexer.settings import KINDS, require_known


class Texts(NamedTuple):
    """The corpus of an index over words: ids, and title and text of each in the same order, to be read
    once."""

    ids: Sequence[str]
    texts: Iterable[str]


class Index(ABC):
    """A way to find the passages nearest to a question. Retrieval, search and mining use it through this
    class alone.

    Subclass it and name the class as ``indexer.kind=module:Class``. An implementation promises:

    * A result is a function of the corpus, the settings and the questions: not of the order in which
      questions come or of their number.
    * ``save`` writes into an empty folder whatever ``open`` needs. The opened index finds what the saved one
      found, is not changed by searching, and may be open in several processes. Manifest, checksums and the
      comparison of settings are not its business.
    * Fields of ``Settings`` made with ``dpr.core.settings.setting`` say by ``on_resume`` what a changed value
      means for a saved index: identity refuses it, warned keeps the saved value with a warning, no effect
      takes the new one. Plain fields are identity.
    """

    reads: ClassVar[str] = "vectors"
    """What ``build`` and ``search`` get: "vectors", a sequence of ``VectorSource`` and an array (Q, D)
    float32; or "texts", ``Texts`` and a list of questions."""
    is_saved: ClassVar[bool] = True
    """False for an index that keeps nothing and is built each time."""
    made_by: ClassVar[Mapping[str, Any]] = {}
    """What decides an index beside its settings, such as the version of a rule in the code; a saved one of
    another is refused."""
    Settings: ClassVar[type[Any]] = Settings
    """A dataclass of what can be set, as ``indexer.options.<name>`` for a user-defined class."""
    needs_vectors: ClassVar[bool] = False
    """True for an index over vectors that reads them while it searches: it gets them by ``use_vectors`` when
    it is opened."""
    breadth_setting: str = ""
    """The setting that makes a search broader: slower, with a higher recall. Empty: there is none."""
    recall: Recall | None = None
    """What was measured when the index was built; None where it was not."""

    @classmethod
    @abstractmethod
    def build(cls, corpus: Any, settings: Any, *, device: torch.device | str = "cpu") -> Index:
        """Indexes a corpus; raises InputError where it is empty or cannot be indexed."""

    @property
    @abstractmethod
    def num_passages(self) -> int:
        """How many passages it holds."""

    @abstractmethod
    def search(self, questions: Any, k: int) -> SearchResult:
        """Up to ``k`` passages of each question, as ``dpr.indexer.ranking`` says: score descending, then id
        ascending."""

    def search_beside(self, question: str, k: int, rows: Sequence[int]) -> tuple[Ranking, list[float]]:
        """As ``search`` for one question, and the scores of the ``rows``-th passages as far as they are
        known; for mining with texts."""
        return to_rankings(self.search([question], k))[0], []

    def save(self, folder: Path) -> None:
        """Writes the index into an empty folder."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved; define save and open, or set is_saved = False"
        )

    @classmethod
    def open(cls, folder: Path, settings: Any) -> Index:
        """The index that was saved there, its files verified before; raises InputError where they cannot be
        read."""
        raise NotImplementedError(
            f"{cls.__name__} cannot be opened; define save and open, or set is_saved = False"
        )

    def use_vectors(self, corpus: Sequence[Any]) -> None:  # noqa: B027  (most need none)
        """Gets the ``VectorSource``s that it was built of."""

    @property
    def breadth(self) -> int:
        """How broad the next search is, in terms of ``breadth_setting``."""
        return 0

    def breadths(self, k: int) -> Sequence[int]:
        """Values worth trying where ``k`` passages are wanted, ascending."""
        return ()

    def search_with(self, breadth: int) -> None:  # noqa: B027
        """Sets the breadth of later searches."""

    def recall_in_words(self) -> str:
        """The recall that was measured at build, as far as it holds for the present breadth."""
        if self.recall is None:
            return "recall not measured, as it was built without questions"
        name = self.breadth_setting
        if name and self.recall.breadth.get(name) != self.breadth:
            return f"recall not measured with {name}={self.breadth}; at build {self.recall}"
        return f"{self.recall}, measured at build"


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """A kind of index with its settings."""

    kind: str
    settings: Any

    @classmethod
    def of(cls, kind: str, values: Mapping[str, Any], *, key: str) -> IndexChoice:
        """A kind and those of ``values`` that are its settings; ``key`` is the section they stand in.

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

    def facts(self) -> dict[str, Any]:
        """Kind and settings, but those without effect on what is found or saved, and what else decides it."""
        effective = {item.name for item in fields(self.settings) if rule_of(item).on_resume != NO_EFFECT}
        values = {name: value for name, value in asdict(self.settings).items() if name in effective}
        return {"kind": self.kind, **self.index_class.made_by, **values}


def index_class(kind: str) -> type[Index]:
    """The class of a kind.

    Raises:
        ConfigError: there is none of that name, or what the path names is not an ``Index``.
    """
    require_known(kind)
    return load_class(KINDS[kind].path if kind in KINDS else kind, Index, setting="indexer.kind")
