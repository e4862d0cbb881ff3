"""Indexes: their contract, their recall against exact search, the built-in kinds, and saved ones. A saved
index is opened only for the source and settings that it was made of, and built by one process at a time."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from dpr.core.errors import ConfigError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.core.settings import NO_EFFECT, Settings, rule_of
from dpr.core.user_classes import load_class
from dpr.indexer.ranking import SearchResult
from dpr.indexer.settings import KINDS, require_known
from dpr.storage.checksums import folder_problems
from dpr.storage.durable import durable_folder, read_manifest, writing
from dpr.storage.outputs import lock_of, locked

DEPTH = 100
"""Passages per question that are compared to measure recall."""
AT = (10, DEPTH)
NUM_QUESTIONS = 400
"""Most questions that are compared at a build."""


class Texts(NamedTuple):
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
    """An index that finds the passages nearest to a question. Retrieval, search and mining use this interface
    alone.

    Subclass it and name the class as ``indexer.kind=module:Class``. An implementation promises:

    * A result depends on the corpus, the settings and the questions, but not on the order or the number of
      the questions.
    * ``save`` writes everything that ``open`` needs into an empty folder. The opened index finds the same
      passages as the saved one, is not changed by searching, and may be open in several processes. Manifest,
      checksums and the comparison of settings are not its task.
    * A saved index of other settings is refused. Fields of ``Settings`` made with
      ``dpr.core.settings.setting(..., on_resume="no effect")`` are not compared.
    """

    reads: ClassVar[str] = "vectors"
    """Input of ``build`` and ``search``: "vectors", a sequence of ``VectorSource`` and an array (Q, D)
    float32; or "texts", ``Texts`` and a list of questions."""
    is_saved: ClassVar[bool] = True
    """False for an index that keeps nothing and is built each time."""
    made_by: ClassVar[Mapping[str, Any]] = {}
    """Causes, besides its settings, that determine an index, such as the version of a rule in the code. A
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
        finds what a search of all passages would find with the others left out, with the same scores."""
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
        """Returns the recall measured at build, as far as it applies to the present breadth."""
        if self.recall is None:
            return "recall not measured, as it was built without questions"
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


logger = get_logger(__name__)

Questions = Callable[[], np.ndarray]
"""Function that makes vectors (Q, D) of questions, to measure the recall of a new index over vectors."""
_REBUILD = "remove it to build it again, or name another folder"


@dataclass(frozen=True)
class IndexStore:
    """A folder that holds an index, or will hold it.

    Args:
        choice: the index that is wanted.
        folder: None for an index that is built in memory and not kept.
        source: description of the corpus. Its items must be the same in a saved index.
        corpora: the passages of the vectors. The manifest of a new index states them, for programs that show
            the texts.
        device: where a new index is built.
    """

    choice: IndexChoice
    folder: Path | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    corpora: Sequence[Mapping[str, Any]] = ()
    device: torch.device | str = "cpu"

    def load_or_build(self, corpus: Callable[[], Any] | None, *, questions: Questions | None = None) -> Index:
        """Opens the index saved in the folder, else builds one of ``corpus()`` and saves it there. If another
        process builds it, that one is opened.

        Args:
            corpus: makes the corpus for ``Index.build``; None if there is none.

        Raises:
            InputError: the saved index is damaged, or of another kind, source or settings; or none is saved
            and there is no corpus.
            OutputError: it cannot be saved.
        """
        folder = self.folder if self.choice.index_class.is_saved else None
        if folder is not None and _is_there(folder):
            return self._load(folder)
        if corpus is None:
            raise InputError(
                "there is no index", file=folder, hint="set encoded_ctx_files=[<vectors>] to build it"
            )
        if folder is None:
            return self._built(corpus(), questions)
        with writing(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, file=lock_of(folder), wait_s=math.inf):
            if not _is_there(folder):
                # built inside, so that a folder that cannot be written is known before
                metadata: dict[str, Any] = {
                    "kind": self.choice.kind,
                    "settings": asdict(self.choice.settings),
                    "source": {**self.source, **self.choice.index_class.made_by},
                }
                if self.corpora:
                    metadata["corpora"] = list(self.corpora)
                with durable_folder(folder, metadata=metadata) as temporary:
                    index = self._built(corpus(), questions)
                    index.save(temporary)
                    metadata["num_passages"] = index.num_passages
                    metadata["recall"] = index.recall and asdict(index.recall)
                logger.info("index saved to %s", folder)
                return index
        return self._load(folder)

    def _built(self, corpus: Any, questions: Questions | None) -> Index:
        """Builds a new index and measures its recall. An index that chooses its breadth does so by every
        other question, and is measured on the rest."""
        start = time.monotonic()
        kind = self.choice.kind
        index = self.choice.index_class.build(corpus, self.choice.settings, device=self.device)
        if not index.is_saved:
            return index
        logger.info(
            "%s index of %d passages built in %.1f s", kind, index.num_passages, time.monotonic() - start
        )
        if index.reads == "vectors":
            queries = questions() if questions is not None else np.zeros((0, 0))
            if len(queries):
                queries = queries[held_back(len(queries))]
                exact = index_class("exact").build(corpus, None, device=self.device)
                truth = exact.search(queries, DEPTH)[1]
                if len(queries) > 1 and index.tune(queries[::2], truth[::2]):
                    queries = queries[1::2]
                    truth = truth[1::2]
                values = recall_values(index.search(queries, DEPTH)[1], truth)
                index.recall = Recall(values, len(queries), index.breadth)
                # with few passages, 100 of them are found by chance
                judged = f"recall@{DEPTH if index.num_passages > 2 * DEPTH else AT[0]}"
                least = getattr(self.choice.settings, "least_recall", 0)
                if values[judged] < least:
                    raise ConfigError(
                        f"the {kind} index misses too much to be kept: {index.recall}; expected {judged} of at"
                        f" least {least:g}. Choose an index that stores or searches more (docs/search.md), or"
                        " set indexer.least_recall=0 to keep this one"
                    )
            logger.info("the %s index: %s", kind, index.recall_in_words())
        return index

    def _load(self, folder: Path) -> Index:
        kind = self.choice.kind
        made = self.choice.index_class
        metadata = read_manifest(folder)["metadata"]
        settings = metadata.get("settings")
        source = metadata.get("source")
        if not isinstance(settings, dict) or not isinstance(source, dict):
            raise InputError("is not an index of this toolkit", file=folder, hint=_REBUILD)
        if metadata.get("kind") != kind:
            found = metadata.get("kind")
            hint = f"set indexer={found}, {_REBUILD}"
            raise InputError(f"holds an index of kind {found!r}", file=folder, expected=repr(kind), hint=hint)
        wanted = {**self.source, **made.made_by, **self.choice.decisive_settings()}
        stated = {**settings, **source}
        for name, value in wanted.items():
            if stated.get(name) != value:
                found = f"was built with {name} {stated.get(name)!r}"
                raise InputError(found, file=folder, expected=repr(value), hint=_REBUILD)
        if problems := folder_problems(folder):
            hint = "remove the folder to build the index again"
            raise InputError("; ".join(problems), file=folder, hint=hint)
        try:
            index = made.open(folder, self.choice.settings)
            if recall := metadata.get("recall"):
                index.recall = Recall(**recall)
                str(index.recall)  # of figures
        except (DprError, MemoryError):
            raise
        except Exception as error:  # readers of damaged files, and classes of users, raise anything
            found = f"cannot be opened ({type(error).__name__}: {error})"
            raise InputError(found, file=folder, hint=_REBUILD) from error
        if index.num_passages != metadata.get("num_passages"):
            found = f"holds {index.num_passages} passages, its manifest says {metadata.get('num_passages')}"
            raise InputError(found, file=folder, hint=_REBUILD)
        if lock_of(folder).is_file():  # left by a build that was killed at its end
            with suppress(DprError), locked(folder, file=lock_of(folder)):
                pass
        if index.reads == "vectors":
            logger.info("%s: %s", folder, index.recall_in_words())
        return index


def _is_there(folder: Path) -> bool:
    return folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
