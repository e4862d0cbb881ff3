"""Passages from Python -> a corpus that can be searched: in memory, or in a folder with vectors and
``search.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import user_path
from dpr.core.progress import Progress
from dpr.core.records import MAX_ID_BYTES, Passage
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.column_names import PASSAGE_IDS, PASSAGE_TEXTS, TITLES, name_in, require_name
from dpr.formats.corpora import durable_text, first_id, has_records, read_passages, read_records
from dpr.formats.corpus_metadata import checked_field
from dpr.formats.origins import field_of, origin_of, origin_record
from dpr.formats.training_records import checked_text, title_in
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import encode_ids
from dpr.indexer.registry import Index, Texts, index_class
from dpr.indexer.settings import KINDS
from dpr.indexer.vectors import ArraySource
from dpr.jobs.search import StoredCorpus
from dpr.jobs.sources import resolve_passage_sources
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.fields import PassageFields
from dpr.retrieval.retrievers import DenseRetriever, Fusion, LexicalRetriever, Retriever
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import SEARCH_MODES
from dpr.storage.checksums import content_sha256
from dpr.storage.leftovers import remove
from dpr.storage.run_lock import held, lock_of
from dpr.storage.strict_json import describe

Record = str | Mapping[str, Any] | Passage
Passages = str | Path | Iterable[Record]
_ENCODED_AT_ONCE = 1024


def records_of(passages: Passages, *, known: int = 0) -> Iterator[tuple[Passage, Mapping[str, Any]]]:
    """Passages with the record that each was made of; one without an id gets its number, counted from
    ``known``.

    Raises:
        InputError: which one cannot be used, and why; an id occurs twice.
    """
    seen: set[str] = set()
    for index, (where, record) in enumerate(_given(passages)):
        try:
            passage = _passage(record, str(known + index))
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        if passage.id in seen:
            raise InputError(f"{where}: the id {passage.id!r} occurs twice", expected="unique ids")
        seen.add(str(passage.id))
        yield passage, record if isinstance(record, Mapping) else {}


def _given(passages: Passages) -> Iterator[tuple[str, Record]]:
    """What was given, each with the words for where it stands."""
    if isinstance(passages, str | Path):
        file = user_path(passages)
        if not file.is_file():
            raise InputError(
                "there is no such file",
                file=str(passages)[:200],
                hint="passages are a file, or a list of texts or records",
            )
        rows: Iterable[tuple[Any, Any]] = (
            read_records(file) if has_records(file) else enumerate(read_passages(file), 1)
        )
        yield from (
            (f"{file}:{line}" if has_records(file) else f"{file}, passage {line}", record)
            for line, record in rows
        )
    elif isinstance(passages, Mapping | Passage) or not isinstance(passages, Iterable):
        raise InputError(
            f"passages is {describe(passages)}",
            expected="a file, or a list of texts, dictionaries with 'text', or Passage",
        )
    else:
        yield from ((f"passage {index}", record) for index, record in enumerate(passages))


def _passage(record: Record, number: str) -> Passage:
    if isinstance(record, str):
        made = Passage(checked_text({"text": record}, "text"), "", number)
    elif isinstance(record, Passage):
        made = record if record.id else replace(record, id=number)
    elif isinstance(record, Mapping):
        text = checked_text(record, require_name(record, PASSAGE_TEXTS, "text"))
        made = Passage(
            text, title_in(record), first_id(record, PASSAGE_IDS, number), origin=origin_of(record)
        )
    else:
        raise ValueError(f"{describe(record)}, expected a text, a dictionary with 'text', or a Passage")
    if len(str(made.id).encode(errors="replace")) > MAX_ID_BYTES or "\0" in str(made.id):
        raise ValueError(f"its id is longer than {MAX_ID_BYTES} bytes, or holds a NUL character")
    return made


@dataclass
class MemoryCorpus:
    """Passages and their vectors in memory; searched exactly."""

    model: BiEncoder | None
    passages: dict[str, Passage] = field(default_factory=dict)
    _records: list[Mapping[str, Any]] = field(default_factory=list)
    _vectors: list[ArraySource] = field(default_factory=list)
    fusion: Fusion = field(default_factory=Fusion)

    @property
    def mode(self) -> str:
        return "bm25" if self.model is None else "dense"

    @property
    def modes(self) -> tuple[str, ...]:
        return ("bm25",) if self.model is None else SEARCH_MODES

    def asked(self, question: str) -> str:
        return question

    def add(self, passages: Passages) -> None:
        """Embeds them; all or none are added."""
        made = list(records_of(passages, known=len(self.passages)))
        if not made:
            raise InputError("there are no passages")
        if again := next((passage.id for passage, _ in made if passage.id in self.passages), None):
            raise InputError(f"the id {again!r} is in the corpus already", expected="new ids")
        if self.model is not None:
            texts, vectors = [passage for passage, _ in made], []
            progress = Progress("embedding", len(texts), quiet=len(texts) <= _ENCODED_AT_ONCE)
            for start in range(0, len(texts), _ENCODED_AT_ONCE):
                vectors.append(self.model.encode_passages(texts[start : start + _ENCODED_AT_ONCE]))
                progress.advance(len(vectors[-1]), 0)
            progress.close()
            self._vectors.append(
                ArraySource(encode_ids([str(passage.id) for passage in texts]), np.concatenate(vectors))
            )
        self.passages |= {str(passage.id): passage for passage, _ in made}
        self._records += [record for _, record in made]

    def side(self, mode: str) -> Retriever:
        if mode == "bm25":
            texts = (f"{passage.title} {passage.text}" for passage in self.passages.values())
            return LexicalRetriever(Bm25Index.build(Texts(list(self.passages), texts)))
        assert self.model is not None
        return DenseRetriever(self.model, ExactIndex(self._vectors, device=self.model.device))

    def filterable(self, side: Retriever) -> Index | None:
        return side.index if isinstance(side, DenseRetriever | LexicalRetriever) else None

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        return {key: self.passages[key] for key in ids if key in self.passages}

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        def row(number: int, record: Mapping[str, Any]) -> tuple[Any, ...]:
            try:
                return tuple(
                    checked_field(name, kind, field_of(record, name)) for name, kind in kinds.items()
                )
            except ValueError as error:
                raise InputError(f"passage {number}: {error}") from None

        return PassageFields.of(
            encode_ids(list(self.passages)), kinds, (row(*item) for item in enumerate(self._records))
        )


def build_in(
    folder: Path,
    model: BiEncoder | str | Path | None,
    passages: Passages,
    *,
    mode: str | None,
    indexer: str,
    device: str | None,
) -> None:
    """Writes what a search of these passages needs, and ``search.json`` last; what is there already is kept.

    Raises:
        ConfigError, InputError: the folder holds something else; a passage cannot be used.
    """
    mode = mode or ("bm25" if model is None else "dense")
    if mode not in SEARCH_MODES or (model is None and mode != "bm25"):
        raise ConfigError(
            f"mode={mode!r} is for a model; give one, or leave mode out"
            if mode in SEARCH_MODES
            else f"mode={mode!r} is not known"
        )
    kind = index_class(indexer)
    if kind.reads == "texts" or indexer not in KINDS:
        raise ConfigError(
            f"indexer={indexer!r} is not an index over vectors; choose of"
            f" {', '.join(KINDS.keys() - {'bm25'})}"
        )
    source = _source(passages, folder / "corpus.jsonl")
    if (folder / FILE).is_file() and [
        item.file.resolve() for item in SearchSettings.read(folder).passages
    ] != [source.file.resolve()]:
        raise InputError(
            "names other passages", file=folder / FILE, hint="open the folder, or choose another one"
        )
    made = SearchSettings(
        passages=[source],
        bm25_index_path=str(folder / "bm25"),
        hybrid="linear" if mode == "hybrid" else "none",
    )
    if model is not None:
        loaded = (
            model if isinstance(model, BiEncoder) else BiEncoder.load(model, device=resolve_device(device))
        )
        if isinstance(model, BiEncoder):
            _keep_model(model, folder / "model")
        file = str(folder / "model" if isinstance(model, BiEncoder) else model)
        embed_shard(loaded, source, EmbedConfig(out_file=str(folder / "vectors")))
        made = replace(
            made, model_file=file, encoded_ctx_files=[str(folder / "vectors_0")], indexer={"kind": indexer}
        )
        made = replace(made, index_path=str(folder / "index") if kind.is_saved and mode != "bm25" else None)
    made.write(folder) if mode != "bm25" else replace(made, indexer={"kind": "bm25"}).write(folder)


def add_to(
    folder: Path | None, corpus: StoredCorpus, passages: Passages, sides: Mapping[str, Retriever]
) -> StoredCorpus:
    """The corpus of a folder with more passages, which are stored there; ``sides`` are those that are
    open."""
    if folder is None or not (folder / FILE).is_file():
        raise ConfigError(
            "passages are added to a folder with a search.json, or to a retriever in memory; Retriever.build"
            " makes both"
        )
    with held(folder / FILE, file=lock_of(folder / FILE)):
        return _add_alone(folder, corpus, passages, sides)


def _add_alone(
    folder: Path, corpus: StoredCorpus, passages: Passages, sides: Mapping[str, Retriever]
) -> StoredCorpus:
    old = corpus.settings
    if SearchSettings.read(folder).passages != old.passages:
        raise InputError(
            "names other passages than when it was opened",
            file=folder / FILE,
            hint="open the folder again, then add",
        )
    first, names, number = old.passages[0], {source.file.stem for source in old.passages}, 1
    while f"added{number}" in names:
        number += 1
    known = sum(1 for source in old.passages for _ in source.read())
    for path in (
        *folder.glob(f"added{number}[.-]*"),
        folder / f"bm25-{number}",
        folder / f"index-{number}",
    ):  # of one that was killed
        remove(path)
    file = folder / f"added{number}.jsonl"
    try:
        source = replace(first, file=file, name=file.stem)
        _write(file, passages, known)
        if again := sorted(corpus.passages.get(str(passage.id) for passage in source.read())):
            raise InputError(f"the id {again[0]!r} is in the corpus already", expected="new ids")
        new = replace(
            old,
            passages=[*old.passages, source],
            bm25_index_path=old.bm25_index_path and str(folder / f"bm25-{number}"),
        )
        if "dense" in corpus.modes:
            dense = sides.get("dense") or corpus.side("dense")
            assert isinstance(dense, DenseRetriever)
            vectors = folder / f"added{number}-vectors"
            embed_shard(dense.model, source, EmbedConfig(out_file=str(vectors), dimensions=old.dimensions))
            new = replace(new, encoded_ctx_files=[*old.encoded_ctx_files, f"{vectors}_0"])
            new = replace(new, index_path=old.index_path and str(folder / f"index-{number}"))
        opened = StoredCorpus(new, corpus.device, corpus.pooling)
        opened.side("bm25" if opened.mode == "bm25" else "dense")
    except BaseException:
        for path in (file, file.with_name(f"{file.name}.sha256"), folder / f"added{number}-vectors_0"):
            remove(path)
        raise
    new.write(folder)
    for index in {old.index_path, old.bm25_index_path} - {new.index_path, new.bm25_index_path, None}:
        if Path(str(index)).parent == folder:  # another place may be somebody else's
            remove(Path(str(index)))
    return opened


def _source(passages: Passages, file: Path) -> PassageSource:
    """A file as it is; anything else is written to ``file``, unless the same is there."""
    if isinstance(passages, str | Path):
        if next(_given(passages), None) is None:
            raise InputError("there are no passages", file=passages)
        (source,) = resolve_passage_sources([str(passages)], {})
        return source
    _write(file, passages, 0)
    return PassageSource(file, file.stem)


def _write(file: Path, passages: Passages, known: int) -> None:
    """A corpus of JSON lines, with the fields of its records.

    Raises:
        InputError: the file holds other passages.
    """
    target = file if not file.exists() else file.with_name(f"{file.stem}.new.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with durable_text(target) as out:
        for count, (passage, record) in enumerate(records_of(passages, known=known), 1):
            read = {name_in(record, names) for names in (PASSAGE_IDS, PASSAGE_TEXTS, TITLES)} | {
                "_id",
                "id",
                "title",
                "text",
                "metadata",
            }
            metadata = {key: value for key, value in record.items() if key not in read}
            inner = record.get("metadata")
            metadata |= dict(inner) if isinstance(inner, Mapping) else {}
            metadata |= origin_record(passage.origin) if passage.origin is not None else {}
            value = {"_id": passage.id, "title": passage.title, "text": passage.text} | (
                {"metadata": metadata} if metadata else {}
            )
            try:
                out.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"passage {count - 1}: a field cannot be written as JSON ({error})"
                ) from None
        if not count:
            raise InputError("there are no passages")
    if target != file:
        is_same = content_sha256(target) == content_sha256(file)
        remove(target)
        if not is_same:
            raise InputError(
                "holds other passages", file=file, hint="choose another folder, or add() to these"
            )


def _keep_model(model: BiEncoder, folder: Path) -> None:
    if not folder.exists():
        model.save(folder)
    elif (found := BiEncoder.load(folder).fingerprint) != model.fingerprint:
        raise InputError(
            f"holds another model ({found!r})",
            file=folder,
            expected=repr(model.fingerprint),
            hint="choose another folder",
        )
