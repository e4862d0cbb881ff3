"""A run folder, or files named one by one -> something that can be asked questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError
from dpr.core.offline import no_downloads
from dpr.core.records import Passage
from dpr.core.settings import part_of
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.indexer.settings import KINDS
from dpr.jobs.indexes import build_retriever
from dpr.jobs.sources import resolve_passage_sources
from dpr.retrieval.explaining import Place, retrieve_with_sides
from dpr.retrieval.passages import PassageLookup
from dpr.retrieval.retrievers import Retriever
from dpr.retrieval.search_folder import FILE, SearchSettings
from dpr.retrieval.settings import IndexerConfig, RetrievalConfig


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A hit with its texts. ``sides``: as in ``Found``; ``file``: that the passage was read from, where it is known."""

    score: float
    passage: Passage
    sides: Mapping[str, Place | None] = field(default_factory=dict)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Searcher:
    """Answers questions one at a time."""

    retriever: Retriever
    passages: PassageLookup
    settings: SearchSettings

    def search(self, question: str, k: int) -> list[FoundPassage]:
        """The ``k`` best passages; one that the corpus does not have comes without texts."""
        hits = retrieve_with_sides(self.retriever, [self.settings.form.asked(question)], k)[0]
        found = self.passages.get([hit.id for hit in hits])
        files = [source.file for source in self.settings.passages]
        file = files[0] if len(files) == 1 else None
        return [FoundPassage(hit.score, found.get(hit.id, Passage("", "", hit.id)), hit.sides, file) for hit in hits]


def search_settings(
    folder: Path | None,
    *,
    model: str | None = None,
    vectors: Sequence[str] = (),
    corpus: Sequence[str] = (),
    mode: str | None = None,
    weight: float | None = None,
    indexer: str | None = None,
) -> SearchSettings:
    """The folder's ``search.json``, with what is given here in its place; without a folder, what is given here.

    Raises:
        ConfigError: no corpus, no model and vectors for a mode that needs them, or a class named by the folder alone.
    """
    named_enough = bool(corpus) and (mode == "bm25" or (model and vectors))
    settings = SearchSettings() if folder is None or (named_enough and not (folder / FILE).is_file()) else SearchSettings.read(folder)
    if corpus:
        settings = replace(settings, passages=resolve_passage_sources(corpus, {}), bm25_index_path=None)
    if model:
        settings = replace(settings, model_file=model)
    if vectors:
        settings = replace(settings, encoded_ctx_files=list(vectors), index_path=None, indexer={"kind": "exact"})
    if indexer is not None and indexer != settings.indexer.get("kind"):
        settings = replace(settings, indexer={"kind": indexer}, index_path=None)
    if weight is not None:
        settings = replace(settings, hybrid_weight=weight, hybrid="linear")
    has_dense = bool(settings.model_file and (settings.encoded_ctx_files or settings.index_path))
    if mode is None and not has_dense:
        mode = "bm25"
    if mode == "bm25":
        settings = replace(settings, indexer=settings.indexer | {"kind": "bm25", "options": {}}, hybrid="none", index_path=None)
    elif mode is not None:
        is_bm25 = settings.indexer.get("kind") == "bm25"
        hybrid = "none" if mode == "dense" else settings.hybrid if settings.hybrid != "none" else "linear"
        settings = replace(settings, hybrid=hybrid, indexer=settings.indexer | ({"kind": "exact"} if is_bm25 else {}))
    if settings.indexer.get("kind") in KINDS.keys() - {"bm25"} and not has_dense:
        raise ConfigError(f"--mode {mode} needs a model and its vectors; name them with --model and --vectors, or use --mode bm25")
    if (kind := settings.indexer.get("kind")) not in KINDS and indexer != kind:
        raise ConfigError(f"{FILE} names the class {kind!r}; code is run for names that you give only: --indexer {kind}")
    if not settings.passages:
        raise ConfigError("there is no corpus to show texts of; name it with --corpus")
    return settings


def retrieval_config(settings: SearchSettings, *, pooling: str = "cls") -> RetrievalConfig:
    """The settings of a search as ``dpr retrieve`` has them, checked; ``pooling`` as in ``CheckpointEncoderConfig``, never from a file."""
    known = [item.name for item in fields(IndexerConfig)]
    if unknown := sorted(settings.indexer.keys() - set(known)):
        raise ConfigError(f"{FILE}: indexer has no setting {unknown[0]}; it has {', '.join(known)}")
    shared = {item.name for item in fields(SearchSettings)} & {item.name for item in fields(RetrievalConfig)}
    values: dict[str, Any] = {name: getattr(settings, name) for name in shared} | {
        "qa_dataset": "typed",
        "encoder": part_of(CheckpointEncoderConfig, settings.text, pretrained_model_cfg=settings.pretrained_model_cfg, pooling=pooling),
        "ctx_datasets": [str(source.file) for source in settings.passages],
        "indexer": IndexerConfig(**settings.indexer),
    }
    config = RetrievalConfig(**values)
    config.check()
    return config


def open_searcher(settings: SearchSettings, *, device: str | None = None, pooling: str = "cls") -> Searcher:
    """Loads the model and opens the index; ``pooling`` as for ``retrieval_config``."""
    config = retrieval_config(settings, pooling=pooling)
    with no_downloads():  # models that search.json names
        retriever = build_retriever(config, settings.passages, form=settings.form, device=resolve_device(device))
    return Searcher(retriever, PassageLookup(settings.passages), settings)
