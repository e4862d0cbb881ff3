"""Corpora that can be searched: files that a run folder names, or passages from Python. The latter are in
memory or in a folder with their vectors and ``search.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted
from dpr.core.machine import no_downloads
from dpr.core.paths import user_path
from dpr.core.records import MAX_ID_BYTES, Passage, rows_of
from dpr.core.settings import drop_unused
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import CheckpointEncoderConfig, EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import (
    checked_field,
    durable_text,
    field_of,
    fields_of,
    has_records,
    kind_of,
    origin_record,
    passage_of,
    read_passages,
    read_records,
)
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import encode_ids
from dpr.indexer.registry import Index, Texts, index_class
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.indexer.vectors import ArraySource
from dpr.jobs.indexes import index_choice, open_dense, open_text_index, open_vector_index
from dpr.jobs.sources import resolve_passage_sources
from dpr.models.biencoder import BiEncoder
from dpr.models.sources import local_model
from dpr.retrieval.passages import PassageFields, PassageLookup
from dpr.retrieval.retrievers import DenseRetriever, Fusion, LexicalRetriever
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import SEARCH_MODES, IndexerConfig, RetrievalConfig
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import MANIFEST
from dpr.storage.leftovers import remove
from dpr.storage.outputs import held, lock_of
from dpr.storage.untrusted import describe

Side = DenseRetriever | LexicalRetriever
Record = str | Mapping[str, Any] | Passage
Passages = str | Path | Iterable[Record]
Kinds = dict[str, str]
"""Kind of value of each field, empty if no search can filter by it."""
_ENCODED_AT_ONCE = 1024
_EXACT = {"kind": "exact"}


def search_settings(
    folder: Path | None,
    *,
    model: str | None = None,
    vectors: Sequence[str] = (),
    corpus: Sequence[str] = (),
    weight: float | None = None,
    indexer: str | None = None,
) -> SearchSettings:
    """Returns the folder's ``search.json``, overridden by what is given here.

    Without that file, it returns what is given, completed by the model and the vectors that the folder holds;
    without a folder, what is given.

    Raises:
        ConfigError: no corpus is given, or the folder alone names a class.
        InputError: the folder has no ``search.json`` and no corpus is given, or the file is damaged.
    """
    settings = SearchSettings()
    if folder is not None and (not corpus or (folder / FILE).is_file()):
        settings = SearchSettings.read(folder)
        settings = replace(settings, passages=[] if corpus else settings.passages).confined(folder)
    elif folder is not None:
        settings = SearchSettings(model_file=str(folder), encoded_ctx_files=[])
        for manifest in sorted(folder.glob(f"*/{MANIFEST}")):
            with suppress(InputError):  # no folder of vectors
                if VectorShard(manifest.parent, verify=False).num_vectors:
                    settings.encoded_ctx_files.append(str(manifest.parent))
    if corpus:
        settings = replace(settings, passages=resolve_passage_sources(corpus, {}), bm25_index_path=None)
    if model:
        settings = replace(settings, model_file=str(local_model(model)))
    if vectors:
        settings = replace(settings, encoded_ctx_files=list(vectors), index_path=None, indexer=_EXACT)
    if indexer is not None and indexer != settings.indexer.get("kind"):
        settings = replace(settings, indexer={"kind": indexer}, index_path=None)
    if weight is not None:
        settings = replace(settings, hybrid_weight=weight, hybrid="linear")
    if (kind := settings.indexer.get("kind")) not in KINDS and indexer != kind:
        raise ConfigError(
            f"{FILE} names the class {kind!r}; code is run for names that you give only, from Python:"
            f" Retriever.open(folder, indexer={kind!r})"
        )
    if not settings.passages:
        raise ConfigError("there is no corpus to show texts of; name it with corpus= (--corpus)")
    return settings


@dataclass
class StoredCorpus:
    """Passages, vectors and indexes on disk, as ``SearchSettings`` name them. ``pooling`` is that of
    ``CheckpointEncoderConfig``, never from a file."""

    settings: SearchSettings
    device: str | None = None
    pooling: str = "cls"
    _exact: Index | None = None

    @property
    def mode(self) -> str:
        """Returns the search mode that the folder, or what was named, states. Its files may be missing
        (``modes``)."""
        stored = self.settings
        if self._reads_texts:
            return "bm25"
        if stored.hybrid != "none":
            return "hybrid"
        has_dense = stored.model_file or stored.encoded_ctx_files or stored.index_path
        return "dense" if has_dense or stored.indexer["kind"] != "exact" else "bm25"

    @property
    def modes(self) -> tuple[str, ...]:
        """Returns the search modes for which the folder has all files."""
        stored = self.settings
        has_vectors = stored.encoded_ctx_files or stored.index_path
        return SEARCH_MODES if stored.model_file and has_vectors else ("bm25",)

    @property
    def _reads_texts(self) -> bool:
        return index_class(self.settings.indexer["kind"]).reads == "texts"

    @property
    def fusion(self) -> Fusion:
        """Returns the fusion of a hybrid, a linear one if the folder names none."""
        stored = self.settings
        weight = DEFAULT_WEIGHT if stored.hybrid_weight is None else stored.hybrid_weight
        return Fusion(weight, stored.hybrid_depth)

    @property
    def files(self) -> list[Path]:
        return [source.file for source in self.settings.passages]

    @cached_property
    def passages(self) -> PassageLookup:
        """Returns the titles and texts of the passages."""
        for file in self.files:
            if not file.is_file():
                raise InputError("cannot be read: No such file", file=file)
        return PassageLookup(self.settings.passages)

    def query_text(self, question: str) -> str:
        """Returns the question in the form that retrievers get."""
        return self.settings.form.query_text(question)

    def side(self, mode: str) -> Side:
        """Opens the side ``dense`` or ``bm25``."""
        stored = self.settings
        sources = stored.passages
        if (
            "dense" in self.modes or self._reads_texts
        ):  # the folder's own settings are checked whatever the mode is
            self._config(stored)
        with no_downloads():  # of models that search.json names
            if mode == "bm25":
                path = stored.bm25_index_path
                if self._reads_texts:
                    path = path or stored.index_path
                else:
                    stored = replace(stored, indexer=stored.indexer | {"kind": "bm25"})
                choice = index_choice(_indexer(stored))
                return LexicalRetriever(open_text_index(choice, sources, path))
            if self._reads_texts:
                stored = replace(stored, indexer=_EXACT, index_path=None)
            return open_dense(
                self._config(stored), sources, form=stored.form, device=resolve_device(self.device)
            )

    def filterable(self, side: Side) -> Index | None:
        """Returns an index of a side that can search a part of the passages: its own, or else exact search of
        the vectors; None if they are missing."""
        if side.index.can_filter or not isinstance(side, DenseRetriever):
            return side.index
        if self._exact is None and self.settings.encoded_ctx_files:  # opened when it is first needed
            stored = replace(self.settings, indexer=_EXACT, index_path=None)
            config = self._config(stored)
            self._exact = open_vector_index(config, side.model, stored.passages, side.model.device)
        return self._exact

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids, without those that are missing."""
        return self.passages.get(ids)

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        """Reads the fields by which passages can be filtered."""
        return PassageFields.read(self.settings.passages, kinds)

    def _config(self, stored: SearchSettings) -> RetrievalConfig:
        """Returns the settings of such a search for ``dpr retrieve``, checked."""
        config = RetrievalConfig(
            qa_dataset="typed",
            ctx_datasets=[str(source.file) for source in stored.passages],
            encoded_ctx_files=stored.encoded_ctx_files,
            model_file=stored.model_file,
            index_path=stored.index_path,
            bm25_index_path=stored.bm25_index_path,
            hybrid=stored.hybrid,
            hybrid_weight=stored.hybrid_weight,
            hybrid_depth=stored.hybrid_depth,
            encoder=CheckpointEncoderConfig(
                **vars(stored.text),
                pretrained_model_cfg=stored.pretrained_model_cfg,
                pooling=self.pooling,
                sequence_length=stored.sequence_length,
            ),
            indexer=_indexer(stored),
        )
        drop_unused(config)  # settings of the retrieval that wrote the file, in another mode
        config.check()
        return config


def _indexer(stored: SearchSettings) -> IndexerConfig:
    """Returns the settings of the index. Settings that no longer exist have no effect."""
    known = {item.name for item in fields(IndexerConfig)}
    return IndexerConfig(**{name: value for name, value in stored.indexer.items() if name in known})


@dataclass
class MemoryCorpus:
    """Passages and their vectors in memory, searched exactly."""

    model: BiEncoder | None
    passages: dict[str, Passage] = field(default_factory=dict)
    _records: list[Mapping[str, Any]] = field(default_factory=list)
    _vectors: list[ArraySource] = field(default_factory=list)
    _kinds: Kinds = field(default_factory=dict)
    fusion: Fusion = field(default_factory=Fusion)
    files: Sequence[Path] = ()

    @property
    def mode(self) -> str:
        return "bm25" if self.model is None else "dense"

    @property
    def modes(self) -> tuple[str, ...]:
        return ("bm25",) if self.model is None else SEARCH_MODES

    def query_text(self, question: str) -> str:
        return question

    def add(self, passages: Passages) -> None:
        """Embeds and adds passages, all of them or none."""
        kinds = dict(self._kinds)
        made = list(records_of(passages, kinds, known=len(self.passages)))
        if not made:
            raise InputError("there are no passages")
        if again := next((passage.id for passage, _ in made if passage.id in self.passages), None):
            raise InputError(f"the id {again!r} is in the corpus already", expected="new ids")
        if self.model is not None:
            texts = [passage for passage, _ in made]
            vectors = [
                self.model.encode_passages(texts[start : start + _ENCODED_AT_ONCE])
                for start in counted(range(0, len(texts), _ENCODED_AT_ONCE), "embedding")
            ]
            ids = encode_ids([str(passage.id) for passage in texts])
            self._vectors.append(ArraySource(ids, np.concatenate(vectors)))
        self.passages |= {str(passage.id): passage for passage, _ in made}
        self._records += [record for _, record in made]
        self._kinds = kinds

    def side(self, mode: str) -> Side:
        if mode == "bm25":
            texts = (f"{passage.title} {passage.text}" for passage in self.passages.values())
            return LexicalRetriever(Bm25Index.build(Texts(list(self.passages), texts)))
        assert self.model is not None
        return DenseRetriever(self.model, ExactIndex(self._vectors, device=self.model.device))

    def filterable(self, side: Side) -> Index | None:
        return side.index

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        return {key: self.passages[key] for key in ids if key in self.passages}

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        rows = []
        for number, record in enumerate(self._records):
            try:
                row = [checked_field(name, kind, field_of(record, name)) for name, kind in kinds.items()]
            except ValueError as error:
                raise InputError(f"passage {number}: {error}") from None
            rows.append(tuple(row))
        return PassageFields(encode_ids(list(self.passages)), kinds, rows)


def records_of(
    passages: Passages, kinds: Kinds, *, known: int = 0
) -> Iterator[tuple[Passage, Mapping[str, Any]]]:
    """Yields passages with the records that they were made of. A passage without an id gets its number,
    counted from ``known``. ``kinds`` are those of the earlier passages' fields, as in ``_given``.

    Raises:
        InputError: a passage cannot be used (says which, and why), or an id occurs twice.
    """
    seen: set[str] = set()
    for index, (where, record) in enumerate(_given(passages, kinds)):
        try:
            passage = passage_of(record, str(known + index))
            key = str(passage.id)
            if len(key.encode(errors="replace")) > MAX_ID_BYTES or "\0" in key:
                raise ValueError(f"its id is longer than {MAX_ID_BYTES} bytes, or holds a NUL character")
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
        if key in seen:
            raise InputError(f"{where}: the id {key!r} occurs twice", expected="unique ids")
        seen.add(key)
        yield passage, record if isinstance(record, Mapping) else {}


def _given(passages: Passages, kinds: Kinds) -> Iterator[tuple[str, Record]]:
    """Yields each given item with the words for its place. A field has one kind of value, that of ``kinds``
    or of its first value, which is noted there; otherwise no search could filter by it.

    Raises:
        InputError: a value is of another kind (says which).
    """
    found: Iterator[tuple[str, Record]]
    if isinstance(passages, str | Path):
        file = user_path(passages)
        if not file.is_file():
            hint = "passages are a file, or a list of texts or records"
            raise InputError("there is no such file", file=str(passages)[:200], hint=hint)
        if has_records(file):
            found = ((f"{file}:{line}", record) for line, record in read_records(file))
        else:
            numbered = enumerate(read_passages(file), 1)
            found = ((f"{file}, passage {number}", passage) for number, passage in numbered)
    else:
        rows = rows_of(passages)
        if isinstance(rows, Mapping | Passage) or not isinstance(rows, Iterable):
            expected = "a file, or a list of texts, dictionaries with 'text', or Passage, or a table"
            raise InputError(f"passages is {describe(passages)}", expected=expected)
        found = ((f"passage {index}", record) for index, record in enumerate(rows))
    for where, record in found:
        for name, value in fields_of(record).items() if isinstance(record, Mapping) else ():
            if value is not None and (kind := kinds.setdefault(name, kind_of(value))):
                try:
                    checked_field(name, kind, value)
                except ValueError as error:
                    raise InputError(f"{where}: {error}") from None
        yield where, record


def build_in(
    folder: Path,
    model: BiEncoder | str | Path | None,
    passages: Passages,
    *,
    mode: str | None,
    indexer: str,
    device: str | None,
) -> None:
    """Writes what a search of these passages needs, and ``search.json`` last. Existing files are kept.

    Raises:
        ConfigError, InputError: the folder holds something else; a passage cannot be used.
    """
    mode = mode or ("bm25" if model is None else "dense")
    if mode not in SEARCH_MODES or (model is None and mode != "bm25"):
        raise ConfigError(f"mode={mode!r}, expected bm25, or with a model dense or hybrid")
    kind = index_class(indexer)
    if kind.reads == "texts" or indexer not in KINDS:
        raise ConfigError(
            f"indexer={indexer!r} is not an index over vectors; choose of"
            f" {', '.join(KINDS.keys() - {'bm25'})}"
        )
    if isinstance(passages, str | Path):  # a file stays where it is
        if not sum(1 for _ in _given(passages, {})):
            raise InputError("there are no passages", file=passages)
        (source,) = resolve_passage_sources([str(passages)], {})
    else:
        source = PassageSource(folder / "corpus.jsonl", "corpus")
        _write(source.file, passages, 0, {})
    if (folder / FILE).is_file():
        files = [item.file.resolve() for item in SearchSettings.read(folder).passages]
        if files != [source.file.resolve()]:
            hint = "open the folder, or choose another one"
            raise InputError("names other passages", file=folder / FILE, hint=hint)
    made = SearchSettings(
        passages=[source],
        bm25_index_path=str(folder / "bm25"),
        hybrid="linear" if mode == "hybrid" else "none",
        indexer={"kind": "bm25" if mode == "bm25" else indexer},
    )
    if model is not None:
        if isinstance(model, BiEncoder):
            loaded = model
            file = folder / "model"
            if not file.exists():
                model.save(file)
            elif (found := BiEncoder.load(file).fingerprint) != model.fingerprint:
                expected = repr(model.fingerprint)
                hint = "choose another folder"
                raise InputError(f"holds another model ({found!r})", file=file, expected=expected, hint=hint)
        else:
            file = local_model(model)
            loaded = BiEncoder.load(file, device=resolve_device(device))
        embed_shard(loaded, source, EmbedConfig(out_file=str(folder / "vectors")))
        path = str(folder / "index") if kind.is_saved and mode != "bm25" else None
        vectors = [str(folder / "vectors_0")]
        made = replace(made, model_file=str(file), encoded_ctx_files=vectors, index_path=path)
    made.write(folder)


def add_to(
    folder: Path | None, corpus: StoredCorpus, passages: Passages, sides: Mapping[str, Any]
) -> StoredCorpus:
    """Stores more passages in a folder, and returns the corpus with them. ``sides`` are those that are open."""
    if folder is None or not (folder / FILE).is_file():
        raise ConfigError(
            "passages are added to a folder with a search.json, or to a retriever in memory; Retriever.build"
            " makes both"
        )
    folder = folder.absolute()  # as the paths that search.json states are read
    with held(folder / FILE, file=lock_of(folder / FILE)):
        old = corpus.settings
        if SearchSettings.read(folder).passages != old.passages:
            found = "names other passages than when it was opened"
            raise InputError(found, file=folder / FILE, hint="open the folder again, then add")
        names = {source.file.stem for source in old.passages}
        number = 1
        while f"added{number}" in names:
            number += 1
        file = folder / f"added{number}.jsonl"
        vectors = folder / f"added{number}-vectors"
        words = folder / f"bm25-{number}"
        index = folder / f"index-{number}"
        checksum = file.with_name(f"{file.name}.sha256")
        parts = [file, checksum, folder / f"{vectors.name}_0", words, index]
        for path in parts:  # left by a killed process
            remove(path)
        known = sum(1 for source in old.passages for _ in source.read())
        kinds: Kinds = {}
        for source in old.passages:
            with suppress(InputError):  # the stored passages stay as they are
                for _ in _given(source.file, kinds):
                    pass
        try:
            source = replace(old.passages[0], file=file, name=file.stem)
            _write(file, passages, known, kinds)
            if again := sorted(corpus.get(str(passage.id) for passage in source.read())):
                raise InputError(f"the id {again[0]!r} is in the corpus already", expected="new ids")
            new = replace(
                old,
                passages=[*old.passages, source],
                bm25_index_path=old.bm25_index_path and str(words),
                index_path=old.index_path and str(index),
            )
            if "dense" in corpus.modes:
                dense: Any = sides.get("dense") or corpus.side("dense")
                embed_shard(dense.model, source, EmbedConfig(out_file=str(vectors)))
                new = replace(new, encoded_ctx_files=[*old.encoded_ctx_files, f"{vectors}_0"])
            opened = StoredCorpus(new, corpus.device, corpus.pooling)
            opened.side("bm25" if opened.mode == "bm25" else "dense")
        except BaseException:
            for path in parts:
                remove(path)
            raise
        new.write(folder)
        for replaced in {old.index_path, old.bm25_index_path} - {new.index_path, new.bm25_index_path, None}:
            if Path(str(replaced)).parent == folder:  # another place may be somebody else's
                remove(Path(str(replaced)))
        return opened


def _write(file: Path, passages: Passages, known: int, kinds: Kinds) -> None:
    """Writes a corpus of JSON lines, with the fields of its records.

    Raises:
        InputError: the file holds other passages.
    """
    target = file if not file.exists() else file.with_name(f"{file.stem}.new.jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with durable_text(target) as out:
        for count, (passage, record) in enumerate(records_of(passages, kinds, known=known), 1):
            metadata = fields_of(record)
            if passage.origin is not None:
                metadata |= origin_record(passage.origin)
            value: dict[str, Any] = {"_id": passage.id, "title": passage.title, "text": passage.text}
            if metadata:
                value["metadata"] = metadata
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
