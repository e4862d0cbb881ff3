"""Passage collections with the options of how to read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.settings import TextSettings
from dpr.data.text import decorate_passage, normalize_passage
from dpr.formats.corpora import check_unique_ids, read_passages
from dpr.storage.checksums import content_sha256

if TYPE_CHECKING:
    from dpr.formats.text_store import TextStore

logger = get_logger(__name__)

LARGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class PassageSource:
    """A corpus file (TSV or BEIR JSON lines, plain or gzip) and DPR's options for it."""

    file: Path
    name: str = ""
    id_col: int = 0
    text_col: int = 1
    title_col: int = 2
    id_prefix: str = ""
    normalize: bool = False
    passage_prefix: str = ""
    """Text put before every passage when it is encoded. Texts that are shown or searched by words do not have
    it."""

    @property
    def columns(self) -> tuple[int, int, int]:
        """Returns the columns of id, text and title in a TSV."""
        return self.id_col, self.text_col, self.title_col

    def agreed(self, text: TextSettings) -> PassageSource:
        """Returns the source for a model that puts a prompt before passages: a prefix that repeats the prompt
        is dropped.

        Raises:
            ConfigError: the prefix is another one.
        """
        prefix = text.agreed_prefix(self.passage_prefix, text.passage_prompt, key="passage_prefix")
        return replace(self, passage_prefix=prefix or "")

    def as_encoded(self, passage: Passage) -> Passage:
        """Returns a passage that was read as the model gets it."""
        return decorate_passage(passage, self.passage_prefix) if self.passage_prefix else passage

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        """Yields the passages ``start`` to ``stop``, with prefixed ids, and with cleaned texts if
        ``normalize`` is set."""
        for passage in read_passages(
            self.file,
            id_col=self.id_col,
            text_col=self.text_col,
            title_col=self.title_col,
            id_prefix=self.id_prefix,
            start=start,
            stop=stop,
        ):
            yield replace(passage, text=normalize_passage(passage.text)) if self.normalize else passage

    def count_unique(self) -> int:
        """Returns the number of passages.

        Raises:
            InputError: an id occurs twice (names both lines), or a row is bad.
        """
        return check_unique_ids(self.file, self.columns)

    def identity(self) -> dict[str, str | int | bool]:
        """Returns everything that the passages depend on: the whole content of the file, and every option but
        the name.

        Raises:
            InputError: the file cannot be read.
        """
        options = {
            item.name: getattr(self, item.name)
            for item in fields(PassageSource)
            if item.name not in ("file", "name")
        }
        return {"corpus_fingerprint": content_sha256(self.file)[:32], **options}


@dataclass(frozen=True, slots=True)
class StoredSource(PassageSource):
    """A source that finds passages by row and by id without reading the rows before them."""

    store: TextStore = field(kw_only=True)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        for passage in self.store.passages(start, stop):
            yield self._given(passage)

    def find(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids, prefix included. Missing ones are left out."""
        size = len(self.id_prefix)
        passages = self.store.passages_with(key[size:] for key in ids if key.startswith(self.id_prefix))
        return {self.id_prefix + key: self._given(passage) for key, passage in passages.items()}

    def count_unique(self) -> int:
        return len(self.store)  # ids were found to be unique when they were stored

    def _given(self, passage: Passage) -> Passage:
        text = normalize_passage(passage.text) if self.normalize else passage.text
        return replace(passage, text=text, id=f"{self.id_prefix}{passage.id}")


def with_store(source: PassageSource, *, least_bytes: int = LARGE_BYTES) -> PassageSource:
    """Returns the source with its passages in a store (``dpr/formats/text_store.py``) if the file is large
    and the cache can be written.

    The first call for a file reads all of it. Later calls, by other processes too, take milliseconds.

    Raises:
        InputError: the file is missing or has a bad row.
    """
    if type(source) is not PassageSource or (
        source.file.is_file() and source.file.stat().st_size < least_bytes
    ):
        return source
    from dpr.formats.text_store import open_store  # a small corpus needs no Arrow

    try:
        store = open_store(source.file, source.columns)
    except OSError as error:  # no such folder, or no room in it
        logger.warning("%s is read from its beginning each time: %s", source.file, error)
        return source
    return StoredSource(**asdict(source), store=store)


_READING = ("id_col", "text_col", "title_col")


def require_corpora(
    stated: Iterable[Any], sources: Sequence[PassageSource], *, file: str | Path | None
) -> list[dict[str, Any]]:
    """Checks that the texts to be shown or scored are those from which the vectors, or an index of them, were
    made, and returns these corpora. Every command that uses both texts and vectors calls it.

    Args:
        stated: metadata of vectors, which name their corpora. Vectors of other programs name none, nor do those of
            versions that did not hash the whole corpus. All of them must be among ``sources``, which may hold more.
        file: the vectors, for the message.

    Raises:
        InputError: the vectors are of a corpus that is not given, has changed since, or is read by other
            columns.
    """
    known = ("corpus", "corpus_fingerprint", *_READING)
    corpora: list[dict[str, Any]] = []
    for metadata in stated:
        if isinstance(metadata, Mapping) and all(name in metadata for name in known):
            corpus = {name: metadata[name] for name in known}
            if corpus not in corpora:
                corpora.append(corpus)
    ours = [source.identity() for source in sources]
    compared = ("corpus_fingerprint", *_READING)
    for corpus in corpora if ours else ():
        if not any(all(one[name] == corpus[name] for name in compared) for one in ours):
            read = ", ".join(f"{name}={corpus[name]}" for name in _READING)
            names = ", ".join(str(source.file) for source in sources)
            raise InputError(
                f"vectors of another corpus ({corpus['corpus']!r} as it was), read with {read}, not of {names}",
                file=file,
                hint="embed the corpus again as it is now, or name the file that was embedded, and its columns by"
                " ctx_sources.<name>.id_col, text_col and title_col",
            )
    return corpora
