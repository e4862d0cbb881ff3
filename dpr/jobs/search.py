"""A run folder, or files named one by one -> the sides of a search, each opened when it is first asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.offline import no_downloads
from dpr.core.records import Passage
from dpr.core.settings import drop_unused
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.registry import Index, index_class
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.jobs.indexes import build_retriever, index_choice, open_vector_index
from dpr.jobs.sources import resolve_passage_sources
from dpr.retrieval.fields import PassageFields
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.retrievers import DenseRetriever, Fusion, LexicalRetriever, Retriever
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import SEARCH_MODES, IndexerConfig, RetrievalConfig
from dpr.storage.durable import MANIFEST


def search_settings(
    folder: Path | None,
    *,
    model: str | None = None,
    vectors: Sequence[str] = (),
    corpus: Sequence[str] = (),
    weight: float | None = None,
    indexer: str | None = None,
) -> SearchSettings:
    """The folder's ``search.json``, with what is given here in its place. Without that file, what is given
    and the model and the vectors that the folder holds; without a folder, what is given.

    Raises:
        ConfigError: no corpus, or a class named by the folder alone.
        InputError: the folder has no ``search.json``, and no corpus is given; or it is damaged.
    """
    settings = SearchSettings()
    if folder is not None and (not corpus or (folder / FILE).is_file()):
        settings = SearchSettings.read(folder)
        settings = replace(settings, passages=[] if corpus else settings.passages).confined(folder)
    elif folder is not None:
        here = [
            str(path.parent) for path in sorted(folder.glob(f"*/{MANIFEST}")) if _holds_vectors(path.parent)
        ]
        settings = SearchSettings(model_file=str(folder), encoded_ctx_files=here)
    if corpus:
        settings = replace(settings, passages=resolve_passage_sources(corpus, {}), bm25_index_path=None)
    if model:
        settings = replace(settings, model_file=model)
    if vectors:
        settings = replace(
            settings, encoded_ctx_files=list(vectors), index_path=None, indexer={"kind": "exact"}
        )
    if indexer is not None and indexer != settings.indexer.get("kind"):
        settings = replace(settings, indexer={"kind": indexer}, index_path=None)
    if weight is not None:
        settings = replace(settings, hybrid_weight=weight, hybrid="linear")
    if (kind := settings.indexer.get("kind")) not in KINDS and indexer != kind:
        raise ConfigError(
            f"{FILE} names the class {kind!r}; code is run for names that you give only: indexer={kind}"
            f" (--indexer {kind})"
        )
    if not settings.passages:
        raise ConfigError("there is no corpus to show texts of; name it with corpus= (--corpus)")
    return settings


def _holds_vectors(folder: Path) -> bool:
    try:
        return bool(VectorShard(folder, verify=False).num_vectors)
    except InputError:
        return False


def retrieval_config(settings: SearchSettings, *, pooling: str = "cls") -> RetrievalConfig:
    """The settings of a search as ``dpr retrieve`` has them, checked; ``pooling`` as in
    ``CheckpointEncoderConfig``, never from a file."""
    known = [item.name for item in fields(IndexerConfig)]
    if unknown := sorted(settings.indexer.keys() - set(known)):
        raise ConfigError(f"{FILE}: indexer has no setting {unknown[0]}; it has {', '.join(known)}")
    shared = {item.name for item in fields(SearchSettings)} & {item.name for item in fields(RetrievalConfig)}
    values: dict[str, Any] = {name: getattr(settings, name) for name in shared} | {
        "qa_dataset": "typed",
        "encoder": CheckpointEncoderConfig(
            **vars(settings.text), pretrained_model_cfg=settings.pretrained_model_cfg, pooling=pooling
        ),
        "ctx_datasets": [str(source.file) for source in settings.passages],
        "indexer": IndexerConfig(**settings.indexer),
    }
    config = RetrievalConfig(**values)
    drop_unused(config)  # of the retrieval that the file was written by, in another mode
    config.check()
    return config


@dataclass
class StoredCorpus:
    """Passages, vectors and indexes on disk, as ``SearchSettings`` name them."""

    settings: SearchSettings
    device: str | None = None
    pooling: str = "cls"
    _exact: dict[str, Index] = field(default_factory=dict)

    @property
    def mode(self) -> str:
        """How the folder, or what was named, says that it is searched; whether the files for it are there is
        another matter (``modes``)."""
        stored, kind = self.settings, str(self.settings.indexer.get("kind"))
        if index_class(kind).reads == "texts":
            return "bm25"
        if stored.hybrid != "none":
            return "hybrid"
        return (
            "dense"
            if stored.model_file or stored.encoded_ctx_files or stored.index_path or kind != "exact"
            else "bm25"
        )

    @property
    def modes(self) -> tuple[str, ...]:
        """What there are the files for."""
        return SEARCH_MODES if self._has_dense else ("bm25",)

    @property
    def _has_dense(self) -> bool:
        return bool(
            self.settings.model_file and (self.settings.encoded_ctx_files or self.settings.index_path)
        )

    @property
    def fusion(self) -> Fusion:
        """Of a hybrid; a linear one where the folder names none."""
        stored = self.settings
        weight = DEFAULT_WEIGHT if stored.hybrid_weight is None else stored.hybrid_weight
        return Fusion(
            "linear" if stored.hybrid == "none" else stored.hybrid,
            weight,
            stored.hybrid_normalisation,
            stored.hybrid_depth,
        )

    @cached_property
    def passages(self) -> PassageLookup:
        """Their titles and texts."""
        for source in self.settings.passages:
            if not source.file.is_file():
                raise InputError("cannot be read: No such file", file=source.file)
        return PassageLookup(self.settings.passages)

    def asked(self, question: str) -> str:
        """The question as retrievers get it."""
        return self.settings.form.asked(question)

    def side(self, mode: str) -> Retriever:
        """Opens ``dense`` or ``bm25``."""
        stored = replace(self.settings, hybrid="none", hybrid_weight=None)
        reads_texts = index_class(str(stored.indexer.get("kind"))).reads == "texts"
        if mode == "bm25" and not reads_texts:
            stored = replace(
                stored, indexer=stored.indexer | {"kind": "bm25", "options": {}}, index_path=None
            )
        elif mode == "dense" and reads_texts:
            if not stored.encoded_ctx_files:
                raise ConfigError(
                    "a run of BM25 names an index of vectors, but not the vectors; search it with mode bm25"
                )
            stored = replace(stored, indexer=stored.indexer | {"kind": "exact"}, index_path=None)
        if self._has_dense or reads_texts:  # the folder's own settings are checked whatever the mode is
            retrieval_config(self.settings, pooling=self.pooling)
        config = retrieval_config(stored, pooling=self.pooling)
        with no_downloads():  # of models that search.json names
            return build_retriever(
                config, stored.passages, form=stored.form, device=resolve_device(self.device)
            )

    def filterable(self, side: Retriever) -> Index | None:
        """An index of a side that can search a part of the passages: its own, or else exact search of the
        vectors, if they are there."""
        index = side.index if isinstance(side, DenseRetriever | LexicalRetriever) else None
        if not isinstance(side, DenseRetriever) or side.index.can_filter:
            return index
        if not self.settings.encoded_ctx_files:
            return None
        if "exact" not in self._exact:  # opened when it is first needed
            stored = replace(
                self.settings, indexer={"kind": "exact"}, index_path=None, hybrid="none", hybrid_weight=None
            )
            config, device = retrieval_config(stored, pooling=self.pooling), side.model.device
            self._exact["exact"] = open_vector_index(
                config, index_choice(config.indexer), side.model, stored.passages, device
            )
        return self._exact["exact"]

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """The passages with these ids, those that are missing left out."""
        return self.passages.get(ids)

    def fields(self, kinds: Mapping[str, str]) -> PassageFields:
        """What passages can be filtered by."""
        return PassageFields.read(self.settings.passages, kinds)
