"""Indexes: what one promises, the kinds there are, and saved ones that are opened again only for what they were made of."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from dpr.core.errors import ConfigError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.core.settings import IDENTITY, NO_EFFECT, WARNED, Settings, rule_of
from dpr.core.user_classes import load_class
from dpr.indexer.ranking import Ranking, SearchResult, to_rankings
from dpr.indexer.recall import DEPTH, Recall, held_back, least_breadth, recall_values
from dpr.indexer.settings import KINDS
from dpr.storage.checksums import folder_problems
from dpr.storage.durable import durable_folder, read_manifest, writing
from dpr.storage.leftovers import remove
from dpr.storage.run_lock import held, lock_of

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
    needs_vectors: ClassVar[bool] = False
    """True for an index over vectors that reads them while it searches: it gets them by ``use_vectors`` when it is opened."""
    is_built_in_steps: ClassVar[bool] = False
    """True for an index with ``build_in``, which writes a folder without holding the index."""
    breadth_setting: ClassVar[str] = ""
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

    @classmethod
    def build_in(cls, folder: Path, corpus: Any, settings: Any, *, work: Path, made_of: Mapping[str, Any]) -> None:
        """Builds and saves at once: writes into an empty folder what ``open`` needs.

        ``work`` is a folder for steps that are kept when the process is killed; they are of the corpus and settings that ``made_of`` names.
        """
        raise NotImplementedError(f"{cls.__name__} has no build_in")

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
            return "recall not measured, as it was built without questions; dpr tune-index measures it"
        name = self.breadth_setting
        if name and self.recall.breadth.get(name) != self.breadth:
            return f"recall not measured with {name}={self.breadth}; at build {self.recall}; dpr tune-index measures it"
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
        questions: Callable[[], np.ndarray] | None = None,
    ) -> Index:
        """The index saved in ``folder``, else one built of ``corpus()`` and saved there.

        Args:
            corpus: makes what ``Index.build`` takes; None where there is none to build of.
            source: what the corpus is. Of a saved index, these items must be the same.
            questions: makes vectors (Q, D) of questions, by which the recall of a new index over vectors is measured.

        Raises:
            InputError: the saved index is damaged, or of another kind, source or settings; there is nothing to build of.
            OutputError: it cannot be saved.
        """
        if folder is not None and (folder.is_file() or (folder.is_dir() and any(folder.iterdir()))):
            index = self._saved(folder, source or {})
            if index.needs_vectors and corpus is None:
                hint = "set encoded_ctx_files=[<vectors>]"
                raise InputError(f"an index of kind {self.kind} scores with the vectors it was built of", file=folder, hint=hint)
            if corpus is not None:
                index.use_vectors(corpus() if index.needs_vectors else ())
            self._say_recall(index, str(folder))
            return index
        if corpus is None:
            raise InputError("there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it")
        start = time.monotonic()
        made_of = corpus()
        if folder is not None and self.index_class.is_saved:
            index = self._built_in(folder, made_of, source or {}, device, questions)
        else:
            index = self.index_class.build(made_of, self.settings, device=device)
            index.recall = self._measured(index, made_of, device, questions)
        if self.index_class.is_saved:
            logger.info("%s index of %d passages built in %.1f s", self.kind, index.num_passages, time.monotonic() - start)
        if folder is not None and self.index_class.is_saved:
            logger.info("index saved to %s", folder)
        self._say_recall(index, f"the {self.kind} index")
        return index

    def _built_in(
        self,
        folder: Path,
        corpus: Any,
        source: Mapping[str, Any],
        device: torch.device | str,
        questions: Callable[[], np.ndarray] | None,
    ) -> Index:
        """A new index and its folder, which states the recall."""
        facts: dict[str, Any] = {"kind": self.kind, "settings": asdict(self.settings), "source": dict(source)}

        def state(index: Index) -> None:
            index.recall = self._measured(index, corpus, device, questions)
            facts.update({"num_passages": index.num_passages, "recall": index.recall and index.recall.as_dict()})

        work = _unfinished(folder)
        with writing(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with held(folder, file=lock_of(folder)):
            if not self.index_class.is_built_in_steps:
                index = self.index_class.build(corpus, self.settings, device=device)
                with durable_folder(folder, metadata=facts) as temporary:
                    index.save(temporary)
                    state(index)
                return index
            made_of = self.facts() | {"source": dict(source), "num_vectors": sum(part.num_vectors for part in corpus)}
            with durable_folder(folder, metadata=facts) as temporary:
                self.index_class.build_in(temporary, corpus, self.settings, work=work, made_of=made_of)
                index = self.index_class.open(temporary, self.settings)
                index.use_vectors(corpus)
                state(index)
                recall = index.recall
                del index  # its files are open, and some systems do not rename these
            remove(work)
        index = self._with_recall(self.index_class.open(folder, self.settings), recall)
        index.use_vectors(corpus)
        return index

    def _measured(self, index: Index, corpus: Any, device: torch.device | str, questions: Callable[[], np.ndarray] | None) -> Recall | None:
        """The recall of a new index. One that chooses its breadth does so by every other question, and is measured on the rest."""
        if questions is None or not index.is_saved or index.reads != "vectors":
            return None
        asked = questions()
        asked = asked[held_back(len(asked))]
        if not len(asked):
            return None
        exact = index_class("exact")
        truth = exact.build(corpus, exact.Settings(), device=device).search(asked, DEPTH)[1]
        name = index.breadth_setting
        if name and not getattr(self.settings, name) and len(asked) > 1:
            reached = least_breadth(index, asked[::2], truth[::2], self.settings.target_recall)
            if reached < self.settings.target_recall:
                found = f"no indexer.{name} reaches recall@{DEPTH} {self.settings.target_recall:g} in this {self.kind} index"
                logger.warning("%s; %d reaches %.3f, and more add less than 0.005", found, index.breadth, reached)
            asked, truth = asked[1::2], truth[1::2]
        values = recall_values(index.search(asked, DEPTH)[1], truth)
        return Recall(values, len(asked), {name: index.breadth} if name else {})

    def _with_recall(self, index: Index, recall: Recall | None) -> Index:
        """An opened index with what was measured of it; where its breadth is left open, with the one that the build chose."""
        index.recall, name = recall, index.breadth_setting
        if recall and name in recall.breadth and not getattr(self.settings, name):
            index.search_with(recall.breadth[name])
        return index

    def _say_recall(self, index: Index, what: str) -> None:
        if index.is_saved and index.reads == "vectors":
            logger.info("%s: %s", what, index.recall_in_words())

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
        if problems := folder_problems(folder):
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
        if lock_of(folder).is_file():  # of a build that was killed when all was done
            with suppress(DprError), held(folder, file=lock_of(folder)):
                remove(_unfinished(folder))
        return self._with_recall(index, Recall.read(metadata.get("recall")))


def _unfinished(folder: Path) -> Path:
    """Where an index is built in steps."""
    return folder.with_name(f"{folder.name}.unfinished")


def index_class(kind: str) -> type[Index]:
    """The class of a kind.

    Raises:
        ConfigError: there is none of that name, or what the path names is not an ``Index``.
    """
    if kind not in KINDS and ":" not in kind:
        raise ConfigError(f"indexer={kind} is not known; choose one of {', '.join(KINDS)}, or a user-defined indexer.kind=module:Class")
    return load_class(KINDS.get(kind, kind), Index, setting="indexer.kind")
