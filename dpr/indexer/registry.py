"""Indexes: what one promises, the kinds there are, and saved ones that are opened again only for what they were made of."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from dpr.core.errors import ConfigError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, NO_EFFECT, WARNED, Settings, rule_of
from dpr.core.user_classes import load_class
from dpr.formats.durable import durable_folder, read_manifest, verify_folder
from dpr.indexer.ranking import Ranking, SearchResult, to_rankings
from dpr.indexer.settings import KINDS

logger = get_logger(__name__)


class Texts(NamedTuple):
    """The corpus of an index over words: ids, and title and text of each in the same order, to be read once."""

    ids: Sequence[str]
    texts: Iterable[str]


class Index(ABC):
    """A way to find the passages nearest to a question. Retrieval, search and mining use it through this class alone.

    Subclass it and name the class as ``indexer.kind=module:Class``. An implementation promises:

    * A result is a function of the corpus, the settings and the questions: not of the order in which questions come or of their number.
    * ``save`` writes into an empty folder whatever ``open`` needs. The opened index finds what the saved one found, is not changed by
      searching, and may be open in several processes. Manifest, checksums and the comparison of settings are not its business.
    * Fields of ``Settings`` made with ``dpr.core.settings.setting`` say by ``on_resume`` what a changed value means for a saved index:
      identity refuses it, warned keeps the saved value with a warning, no effect takes the new one. Plain fields are identity.
    """

    reads: ClassVar[str] = "vectors"
    """What ``build`` and ``search`` get: "vectors", a sequence of ``VectorSource`` and an array (Q, D) float32; or "texts", ``Texts`` and
    a list of questions."""
    is_saved: ClassVar[bool] = True
    """False for an index that keeps nothing and is built each time."""
    Settings: ClassVar[type[Any]] = Settings
    """A dataclass of what can be set, as ``indexer.options.<name>`` for a user-defined class."""

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
        """Up to ``k`` passages of each question, as ``dpr.indexer.ranking`` says: score descending, then id ascending."""

    def search_beside(self, question: str, k: int, rows: Sequence[int]) -> tuple[Ranking, list[float]]:
        """As ``search`` for one question, and the scores of the ``rows``-th passages as far as they are known; for mining with texts."""
        return to_rankings(self.search([question], k))[0], []

    def save(self, folder: Path) -> None:
        """Writes the index into an empty folder."""
        raise NotImplementedError(f"{type(self).__name__} cannot be saved; define save and open, or set is_saved = False")

    @classmethod
    def open(cls, folder: Path, settings: Any) -> Index:
        """The index that was saved there, its files verified before; raises InputError where they cannot be read."""
        raise NotImplementedError(f"{cls.__name__} cannot be opened; define save and open, or set is_saved = False")


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
            raise ConfigError(f"{key}{unknown[0]} is not a setting of indexer.kind={kind}; it has {', '.join(known) or 'none'}")
        settings = made.Settings(**values)
        if isinstance(settings, Settings):
            settings.check(key)
        return cls(kind, settings)

    @property
    def index_class(self) -> type[Index]:
        return index_class(self.kind)

    def facts(self) -> dict[str, Any]:
        """Kind and settings, but those without effect on what is found or saved."""
        effective = {item.name for item in fields(self.settings) if rule_of(item).on_resume != NO_EFFECT}
        return {"kind": self.kind} | {name: value for name, value in asdict(self.settings).items() if name in effective}

    def open(
        self,
        corpus: Callable[[], Any] | None,
        *,
        folder: Path | None = None,
        source: Mapping[str, Any] | None = None,
        device: torch.device | str = "cpu",
    ) -> Index:
        """The index saved in ``folder``, else one built of ``corpus()`` and saved there.

        Args:
            corpus: makes what ``Index.build`` takes; None where there is none to build of.
            source: what the corpus is. Of a saved index, these items must be the same.

        Raises:
            InputError: the saved index is damaged, or of another kind, source or settings; there is nothing to build of.
        """
        if folder is not None and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
            return self._saved(folder, source or {})
        if corpus is None:
            raise InputError("there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it")
        start = time.monotonic()
        index = self.index_class.build(corpus(), self.settings, device=device)
        if self.index_class.is_saved:
            logger.info("%s index of %d passages built in %.1f s", self.kind, index.num_passages, time.monotonic() - start)
        if folder is not None and self.index_class.is_saved:
            facts = {"kind": self.kind, "settings": asdict(self.settings), "num_passages": index.num_passages, "source": dict(source or {})}
            with durable_folder(folder, metadata=facts) as temporary:
                index.save(temporary)
            logger.info("index saved to %s", folder)
        return index

    def _saved(self, folder: Path, source: Mapping[str, Any]) -> Index:
        fault = partial(InputError, file=folder, hint="remove it to build it again, or name another folder")
        metadata = read_manifest(folder)["metadata"]
        settings, made_of = metadata.get("settings", {}), metadata.get("source")
        if not isinstance(settings, dict) or not isinstance(made_of, dict):
            raise InputError("is not an index of this toolkit", file=folder)
        kind = settings.get("kind", metadata.get("kind"))  # indexes of earlier versions all store the kind "faiss" here
        if kind != self.kind:
            hint = f"set indexer={kind}, remove it to build it again, or name another folder"
            raise InputError(f"holds an index of kind {kind!r}", file=folder, expected=repr(self.kind), hint=hint)
        for key, value in source.items():
            if made_of.get(key) != value:
                raise fault(f"was built from something else ({key} {made_of.get(key)!r})", expected=repr(value))
        for item in fields(self.settings):
            ours, theirs, role = getattr(self.settings, item.name), settings.get(item.name), rule_of(item).on_resume or IDENTITY
            if item.name not in settings or ours == theirs or role == NO_EFFECT:
                continue
            found = f"was built with {item.name}={theirs}"
            if role != WARNED:
                raise fault(found, expected=str(ours))
            logger.warning("%s %s; %s=%s has no effect on it. Remove it to build it again", folder, found, item.name, ours)
        if problems := verify_folder(folder):
            raise InputError("; ".join(problems), file=folder, hint="remove the folder to build the index again")
        try:
            index = self.index_class.open(folder, self.settings)
        except (DprError, MemoryError):
            raise
        except Exception as error:  # readers of damaged files, and classes of users, raise anything
            raise fault(f"cannot be opened ({type(error).__name__}: {error})") from error
        stated = metadata.get("num_passages", metadata.get("num_vectors"))
        if index.num_passages != stated:
            raise fault(f"holds {index.num_passages} passages, its manifest says {stated}")
        return index


def index_class(kind: str) -> type[Index]:
    """The class of a kind.

    Raises:
        ConfigError: there is none of that name, or what the path names is not an ``Index``.
    """
    if kind not in KINDS and ":" not in kind:
        raise ConfigError(f"indexer={kind} is not known; choose one of {', '.join(KINDS)}, or a user-defined indexer.kind=module:Class")
    return load_class(KINDS.get(kind, kind), Index, setting="indexer.kind")
