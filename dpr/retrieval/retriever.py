"""``dpr.Retriever``: finds passages for questions, in a run folder or in memory."""

from __future__ import annotations

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import configure_by_default
from dpr.core.other_names import Hinting, hint, missing, refuse
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, items_of, json_value
from dpr.core.settings import listed
from dpr.data.text import checked_items
from dpr.formats.passage_metadata import kind_of
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.ranking import encode_ids, ids_in, is_among
from dpr.indexer.registry import Index
from dpr.retrieval.filters import PassageFields
from dpr.retrieval.hits import LEAST_SHARE, Hit, Hits, Place
from dpr.retrieval.passages import Passages, passages_of
from dpr.retrieval.settings import SEARCH_MODES
from dpr.retrieval.sides import Fusion, Side, living
from dpr.retrieval.stored_search import Change, MemorySearch, StoredSearch, build_in, search_settings

if TYPE_CHECKING:
    from dpr.models.biencoder import BiEncoder

_MOST_THREADS = 64  # that search at a time


class Retriever(metaclass=Hinting):
    """Searches passages by vectors (``dense``), by words (``bm25``) or by both (``hybrid``). Several threads
    may use one.

        retriever = Retriever.open("runs/first")
        for hit in retriever.search("who wrote hamlet", k=5):
            print(hit.rank, hit.score, hit.title, hit.text)

    ``mode`` is the default of ``search``; ``modes`` are the search modes for which it has all files.
    """

    def __init__(
        self,
        search: StoredSearch,
        *others: Any,
        mode: str | None = None,
    ) -> None:
        if others or not isinstance(search, StoredSearch):
            raise ConfigError(f"Retriever() takes no model and no passages{hint('load')}")
        self.searched = search
        self.modes = search.modes
        self.mode = self._checked_mode(mode or search.mode)
        self.kinds: Mapping[str, str] | None = None
        """Fields that filters may name, and the kinds of their values; None = any field, of the kind of the value
        that it is compared with."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Time spent in ``tokenise``, ``inference``, ``search`` and ``texts``; its reader may clear it."""
        self._lock = threading.RLock()
        self._changing = threading.RLock()
        self._searches = threading.Semaphore(_MOST_THREADS)
        self._sides: dict[str, Side] = {}
        self._fields: dict[tuple[tuple[str, str], ...], PassageFields] = {}

    @classmethod
    def open(
        cls,
        folder: str | Path | None = None,
        *,
        model: str | None = None,
        vectors: str | Sequence[str] = (),
        corpus: str | Path | Sequence[str | Path] = (),
        mode: str | None = None,
        weight: float | None = None,
        indexer: str | None = None,
        device: str | None = None,
        pooling: str = "cls",
    ) -> Retriever:
        """Opens a run folder by its ``search.json``, which ``dpr retrieve search_folder=`` and ``build``
        write.

        Arguments replace the values in that file: ``corpus``, files of passages; ``model``, a checkpoint or
        run; ``vectors``, their folders; ``indexer``, a kind of index; ``weight``, the share of the dense side
        in a hybrid. With a ``corpus``, a folder need not have that file: the vectors in it are then searched
        with its model. ``pooling`` is needed for a user-defined one.

        Raises:
            ConfigError: too little is named, or there are no files for the mode.
            InputError: files are missing or damaged, or do not belong together.
        """
        files = list(map(str, listed(corpus)))
        at = None if folder is None else user_path(folder)
        settings = search_settings(
            at, model=model, vectors=listed(vectors), corpus=files, weight=weight, indexer=indexer
        )
        retriever = cls(StoredSearch(settings, device, pooling, at and at.absolute()), mode=mode)
        retriever.sides(retriever.mode)
        retriever._look()
        return retriever

    @classmethod
    def build(
        cls,
        model: BiEncoder | str | Path | None,
        passages: Passages,
        *,
        folder: str | Path | None = None,
        mode: str | None = None,
        indexer: str = "exact",
        device: str | None = None,
        **others: Any,
    ) -> Retriever:
        """Embeds passages and searches them, in memory or, if ``folder`` is given, from files there. ``open``
        opens that folder again; a build that was killed continues.

        Args:
            model: a model, the folder of one, or ``"bm25"`` or None to search by words alone.
            passages: a file, a dictionary by id, or an iterable of texts, of dictionaries (``text``, and optionally
                ``id``, ``title`` and fields to filter by) or of ``Passage``. Passages without an id get their number.
            mode: default search mode; dense if there is a model.
            indexer: kind of index over vectors in ``folder``; in memory search is exact.

        Raises:
            ConfigError, InputError: a passage cannot be used (says which), an id occurs twice, or ``folder``
            holds something else.
        """
        from dpr.core.distributed import resolve_device
        from dpr.models.biencoder import BiEncoder

        refuse(others, "Retriever.build()")
        configure_by_default()  # embedding many passages takes minutes, and says how far it is
        if not isinstance(model, BiEncoder | str | Path | None):
            raise ConfigError(
                f"model is of type {type(model).__name__}; give a BiEncoder, the folder of one, or None to"
                " search by words"
            )
        if isinstance(model, str | Path):
            model = None if model == "bm25" else str(user_path(model))
        if folder is not None:
            build_in(user_path(folder), model, passages, mode=mode, indexer=indexer, device=device)
            return cls.open(folder, device=device)
        if indexer != "exact":
            raise ConfigError(
                f"indexer={indexer!r} is built into a folder; name one with folder=, or leave indexer out"
            )
        if isinstance(model, str):
            model = BiEncoder.load(model, device=resolve_device(device))
        retriever = cls(MemorySearch(model), mode=mode)
        retriever.add(passages)
        return retriever

    def add(self, passages: Passages, **others: Any) -> None:
        """Adds passages in the form that ``build`` takes, all or none.

        In a folder, this and other changes are on the disk when the method returns, and other processes that have
        the folder open see them at their next search. New passages are searched exactly, whatever the index.

        Raises:
            ConfigError, InputError: as ``build``, or an id is already in the corpus; nothing was added then.
        """
        refuse(others, "add()")
        self._change(passages, ())

    def update(self, passages: Passages) -> None:
        """Replaces passages by those with the same ids, all or none.

        Raises:
            ConfigError, InputError: as ``add``, or an id is not in the corpus; nothing was replaced then.
        """
        self._change(passages, None)

    def delete(self, ids: str | Iterable[str]) -> None:
        """Deletes the passages with these ids, all or none.

        Raises:
            ConfigError, InputError: as ``add``, or an id is not in the corpus; nothing was deleted then.
        """
        if named := dict.fromkeys(checked_items(ids, (str,), "delete()", "an id")):
            self._change(None, named)

    def _change(self, passages: Passages | None, ids: Iterable[str] | None) -> None:
        """Adds passages and deletes those with the ``ids``, which are those of ``passages`` if None."""
        search = self.searched
        with self._changing, search.changing():
            self._look()
            known = None if ids is None else search.num_stored + search.num_added
            added: dict[str, Passage] = {}
            if passages is not None:
                given = passages_of(passages, dict(search.kinds), known=known)
                added = {str(passage.id): passage for passage in given}
            wanted = list(added if ids is None else ids)
            gone = search.get(wanted)
            if unknown := [key for key in wanted if key not in gone]:
                raise InputError(f"the id {unknown[0]!r} is not in the corpus", expected="ids of passages")
            if ids is not None and (again := sorted(search.get(added))):
                line = "update(passages) replaces passages"
                raise InputError(
                    f"the id {again[0]!r} is already in the corpus", expected="new ids", hint=line
                )
            vectors = None
            if "dense" in self.modes:
                dense: Any = self.sides("dense")["dense"]
                vectors = dense.encode_passages([search.as_encoded(passage) for passage in added.values()])
            for side in list(self._sides.values()):
                living(side, search.sources)
            change = Change(gone, added, vectors)
            search.store(change)
            with self._alone():
                self._apply(change)

    def _look(self) -> None:
        """Takes up the changes that other processes have stored, unless another thread is changing passages."""
        journal = self.searched.journal
        if journal is None or not journal.has_news() or not self._changing.acquire(blocking=False):
            return
        try:
            with self._alone():
                if journal.was_rewritten():
                    self.searched.restart()
                    self._sides.clear()
                    self._fields.clear()
                for change in self.searched.news():
                    self._apply(change)
        finally:
            self._changing.release()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until no search is under way, and lets none begin."""
        for _ in range(_MOST_THREADS):
            self._searches.acquire()
        try:
            with self._lock:
                yield
        finally:
            self._searches.release(_MOST_THREADS)

    def _apply(self, change: Change) -> None:
        self.searched.apply(change)
        for side in self._sides.values():
            living(side, self.searched.sources).change(*change)
        for kinds, fields in list(self._fields.items()):
            try:
                fields.change(change.gone, change.added.values())
            except InputError:  # they are read again, and refused, when a search names them
                del self._fields[kinds]

    @overload
    def search(
        self,
        question: str,
        k: int = 10,
        *,
        mode: str | None = None,
        weight: float | None = None,
        where: Mapping[str, Any] | None = None,
        ids: Iterable[str] | np.ndarray | None = None,
        texts: bool = True,
    ) -> Hits: ...
    @overload
    def search(self, question: list[str], k: int = 10, **options: Any) -> list[Hits]: ...
    def search(
        self,
        question: str | list[str],
        k: int = 10,
        *,
        mode: str | None = None,
        weight: float | None = None,
        where: Mapping[str, Any] | None = None,
        ids: Iterable[str] | np.ndarray | None = None,
        texts: bool = True,
        **others: Any,
    ) -> Hits | list[Hits]:
        """Returns the ``k`` best passages of a question; for a list of questions, a list of such results. An
        empty question finds nothing. ``Hit.score`` explains the scores. To detect questions without an
        answer, use ``Hits.seems_unanswered`` rather than a threshold on the score.

        Args:
            weight: share of the dense side in a hybrid, 0 to 1, in place of the folder's.
            where: searches only the passages whose fields match: ``{"language": "en", "year": {"gte": 2020},
                "tags": ["a", "b"]}`` (docs/api.md, Filters). Such a search is exact, whatever the index.
            ids: searches only the passages with these ids, as ``where`` does.
            texts: False leaves titles and texts out.

        Raises:
            ConfigError, InputError: a mode or field does not exist, or files have changed.
        """
        refuse(others, "search()")
        given = items_of(question)
        questions: list[Any] = [question] if given is None else given
        if not all(isinstance(item, str) for item in questions):
            raise ConfigError(
                f"search() got {' '.join(repr(question).split()):.100} for a question; give a text or a list of"
                " texts, such as one column of a table"
            )
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ConfigError(f"k={k!r}; give a number of passages, at least 1")
        mode = self._checked_mode(mode or self.mode)
        fusion = self.fusion(mode, weight)
        answers = [Hits(item) for item in questions]
        asked = [row for row, item in enumerate(questions) if item.strip()]
        queries = [self.searched.query_text(questions[row]) for row in asked]
        self._look()
        with self._searches:
            sides = self._narrowed(self.sides(mode), where, ids)
            start = time.perf_counter()
            depth = max(k, fusion.depth) if len(sides) > 1 else k
            found = {name: side.retrieve(queries, depth) for name, side in sides.items() if asked}
            rankings = next(iter(found.values()), [])
            if len(found) > 1:
                rankings = fusion.fuse(found["dense"], found["bm25"], k)
            ranked = time.perf_counter()
            passages = self.searched.get(ids_in(rankings)) if texts else {}

            words = sides["bm25"].index if "bm25" in found else None
            sources = self.searched.sources
            file = sources[0].file if len(sources) == 1 else None
            for place, ranking in enumerate(rankings):
                places: dict[str, dict[str, Place]] = {}
                for name, lists in found.items():
                    places[name] = {
                        key: Place(rank, score) for rank, (key, score) in enumerate(lists[place], 1)
                    }
                answer = answers[asked[place]]
                for rank, (key, score) in enumerate(ranking, 1):
                    passage = passages.get(key) or Passage("", "", key)
                    of_sides = {name: at.get(key) for name, at in places.items()}
                    answer.append(Hit(rank, score, passage, of_sides, file))
                if isinstance(words, Bm25Index):
                    best = max((score for _, score in found["bm25"][place]), default=0.0)
                    answer.seems_unanswered = words.share(queries[place], best) < LEAST_SHARE

        with self._lock:
            self.seconds["search"] += ranked - start
            for side in sides.values():
                for name in list(side.seconds):  # another thread may be adding to them
                    seconds = side.seconds.pop(name)
                    self.seconds[name] += seconds
                    self.seconds["search"] -= seconds
            self.seconds["texts"] += time.perf_counter() - ranked
        return answers[0] if isinstance(question, str) else answers

    def sides(self, mode: str) -> dict[str, Side]:
        """Returns the sides that ``mode`` searches, by name. They are opened when they are first needed."""
        names = ("dense", "bm25") if self._checked_mode(mode) == "hybrid" else (mode,)
        with self._lock:
            for name in names:
                if name not in self._sides:
                    self._sides[name] = self.searched.side(name)
            return {name: self._sides[name] for name in names}

    def fusion(self, mode: str, weight: float | None) -> Fusion:
        """Returns the fusion of a hybrid with this weight of the dense side; None = the folder's.

        Raises:
            ConfigError: the weight is not a share, or ``mode`` has no use for it.
        """
        fusion = self.searched.fusion
        if weight is None:
            return fusion
        if mode != "hybrid" or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise ConfigError(
                f"weight={weight!r}: give a share of the dense side from 0 to 1, and search with mode='hybrid'"
            )
        return replace(fusion, weight=weight)

    def index(self, mode: str) -> Index:
        """Returns the index that ``mode`` searches; for a hybrid, the index of the vectors."""
        return next(iter(self.sides(mode).values())).index

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids; missing ones are left out."""
        self._look()
        return self.searched.get(checked_items(ids, (str,), "get()", "an id"))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | Integral) and bool(self.get([str(key)]))

    def __iter__(self) -> Iterator[Passage]:
        """Yields all passages."""
        self._look()
        return iter(self.searched)

    if not TYPE_CHECKING:  # type checkers would take any name for one that is there
        __getattr__ = missing

    def __len__(self) -> int:
        self._look()
        return self.index(self.mode).num_passages

    def __repr__(self) -> str:
        return f"Retriever({len(self):,} passages, {' or '.join(self.modes)}, by default {self.mode})"

    def _checked_mode(self, mode: str) -> str:
        if mode in self.modes:
            return mode
        if mode not in SEARCH_MODES:
            raise ConfigError(f"mode={mode!r} is not known; choose dense, bm25 or hybrid")
        other = self.modes[0]
        raise ConfigError(
            f"mode={mode} needs a model and its vectors of the passages, which dpr embed makes; name them with"
            f" model= and vectors= (--model, --vectors), or search by words with mode={other} (--mode {other})"
        )

    def _narrowed(
        self,
        sides: dict[str, Side],
        where: Mapping[str, Any] | None,
        ids: Iterable[str] | np.ndarray | None,
    ) -> dict[str, Side]:
        """Returns sides over the passages that match ``where`` and ``ids``, which compute every product; none if no
        passage matches."""
        chosen = None
        if ids is not None:
            given = items_of(ids)
            for item in [ids] if given is None else given:
                if given is None or not isinstance(item, str):
                    raise ConfigError(
                        f"ids={' '.join(repr(item).split()):.100} of type {type(item).__name__}; give a list of texts:"
                        " ids=['p1', 'p2']"
                    )
            possible = [item for item in given or () if len(item) <= MAX_ID_BYTES and "\0" not in item]
            chosen = np.unique(encode_ids(possible))
        if where is not None:
            if not isinstance(where, Mapping):
                raise ConfigError(
                    f"where is of type {type(where).__name__}; give values by field: where={{'language': 'en'}}"
                )
            kinds = self.kinds
            if kinds is None:
                kinds = {name: _kind_of(name, value) for name, value in where.items()}
            with self._lock:
                matching = self.fields(kinds).matching(where)
            chosen = matching if chosen is None else matching[is_among(matching, chosen)]
        if chosen is None:
            return sides
        narrowed: dict[str, Side] = {}
        for name, side in sides.items() if len(chosen) else ():
            index = self.searched.index_to_filter(side)
            if index is None:
                raise ConfigError(
                    "a filter needs the vectors, but only their index exists; search without where and ids,"
                    " or add vectors="
                )
            narrowed[name] = copy.copy(side)
            narrowed[name].index = index.among(chosen)
        return narrowed

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        """Returns the fields of these kinds, which are read when they are first needed."""
        key = tuple(sorted(kinds.items()))
        with self._lock:
            if key not in self._fields:
                self._fields[key] = PassageFields(kinds, self.searched)
            return self._fields[key]


def _kind_of(name: str, value: Any) -> str:
    """Returns the kind of field (``dpr/formats/passage_metadata.py``) that a value is compared with."""
    first = json_value(value)
    while isinstance(first, Mapping):
        first = next(iter(first.values()), None)
    if kind := kind_of(first):
        return kind
    raise ConfigError(
        f"where: {name}={value!r} is not a text, a number, True or False, a list of one of these, or an operator:"
        f" {{'gte': 2000}}"
    )
