"""Titles and texts of retrieved passages, from the corpus files, without holding the corpus."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.source import LARGE_BYTES, PassageSource, StoredSource, with_store
from dpr.indexer.ranking import HeldIds
from dpr.indexer.registry import Texts


def find_passages(sources: Sequence[PassageSource], ids: Collection[str]) -> dict[str, Passage]:
    """The passages with these ids; ids that no source has are left out. Reads small files at most once, up to
    the last passage wanted."""
    wanted = set(ids)
    passages_by_id: dict[str, Passage] = {}
    for source in map(with_store, sources):
        if isinstance(source, StoredSource):
            passages_by_id |= source.find(wanted)
        else:
            for passage in source.read():
                if passage.id in wanted:
                    passages_by_id[passage.id] = passage
                    wanted.remove(passage.id)
                    if not wanted:
                        break
        wanted -= passages_by_id.keys()
        if not wanted:
            break
    return passages_by_id


def require_passages(
    sources: Sequence[PassageSource], ids: Collection[str], *, also: Collection[str] = ()
) -> dict[str, Passage]:
    """As ``find_passages``, for ``ids``, which must all be there, and for ``also``, which need not.

    Raises:
        InputError: names a missing id and the files searched.
    """
    passages = find_passages(sources, {*ids, *also}) if ids or also else {}
    missing = sorted(set(ids) - passages.keys())
    if missing:
        raise InputError(
            f"{len(missing)} retrieved passages are not in the corpus, the first is {missing[0]!r}",
            file=", ".join(str(source.file) for source in sources),
            hint="ctx_datasets must name the files the vectors were made from, with the same id_prefix",
        )
    return passages


def lexical_texts(sources: Sequence[PassageSource]) -> Texts:
    """Ids of all passages, and a stream of their titles and texts in the same order. Reads the files twice,
    holds the bytes of the ids."""
    ids = HeldIds(str(passage.id) for source in sources for passage in source.read())
    return Texts(ids, (f"{passage.title} {passage.text}" for source in sources for passage in source.read()))


class PassageLookup:
    """Looks passages up again and again: small corpora are held in memory, large ones are found on disk.
    Several threads may use it."""

    def __init__(self, sources: Sequence[PassageSource], *, in_memory_bytes: int = LARGE_BYTES) -> None:
        self._sources = list(sources)
        self._held: dict[str, Passage] | None = None
        if sum(source.file.stat().st_size for source in self._sources) <= in_memory_bytes:
            self._held = {str(passage.id): passage for source in self._sources for passage in source.read()}
        else:
            self._sources = [with_store(source, least_bytes=0) for source in self._sources]

    @property
    def reread(self) -> Path | None:
        """A large file that is read again at each call, as nothing can be kept in the cache."""
        plain = (source.file for source in self._sources if not isinstance(source, StoredSource))
        return next(plain, None) if self._held is None else None

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """The passages with these ids, those that are missing left out."""
        if self._held is None:
            return find_passages(self._sources, set(ids))
        return {passage_id: self._held[passage_id] for passage_id in ids if passage_id in self._held}
