"""A search of files that a run folder, or a caller, names, or of passages in memory; it is also built in a folder, and
added to. Models are imported where they are used, since a search by words needs none."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.machine import no_downloads
from dpr.core.paths import matching_paths
from dpr.core.records import Passage
from dpr.core.settings import drop_unused
from dpr.embedding.settings import CheckpointEncoderConfig, EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import record_of, write_passages
from dpr.formats.passage_records import passage_of
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.bm25 import Bm25Index
from dpr.indexer.registry import Index, IndexTexts, index_class
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.retrieval.passages import Kinds, PassageLookup, Passages, given_items, note_kinds, passages_of
from dpr.retrieval.search_json import SEARCH_JSON, SearchSettings
from dpr.retrieval.settings import SEARCH_MODES, IndexerConfig, RetrievalConfig
from dpr.retrieval.sides import (
    Fusion,
    Side,
    WordSide,
    living,
    open_words,
    reads_texts,
    short_hash,
)
from dpr.retrieval.sources import resolve_passage_sources
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import MANIFEST, writing
from dpr.storage.journal import Journal
from dpr.storage.leftovers import remove
from dpr.storage.locks import alone_with

if TYPE_CHECKING:
    from dpr.models.biencoder import BiEncoder

logger = get_logger(__name__)

_CHANGES = "changes-"
_LARGE_JOURNAL = 64 * 2**20


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
    if folder is not None and (not corpus or (folder / SEARCH_JSON).is_file()):
        settings = SearchSettings.read(folder)
        settings = replace(settings, passages=[] if corpus else settings.passages).confined(folder)
    elif folder is not None:
        settings = SearchSettings(model_file=str(folder))
        for manifest in sorted(folder.glob(f"*/{MANIFEST}")):
            with suppress(InputError):  # no folder of vectors
                if VectorShard(manifest.parent, verify=False).num_vectors:
                    settings.encoded_ctx_files.append(str(manifest.parent))
    if corpus:
        settings = replace(settings, passages=resolve_passage_sources(corpus, {}), bm25_index_path=None)
    if model:
        from dpr.models.sources import local_model

        settings = replace(settings, model_file=str(local_model(model)))
    if vectors:
        settings = replace(
            settings, encoded_ctx_files=list(vectors), index_path=None, indexer=IndexerConfig()
        )
    if indexer is not None and indexer != settings.indexer.kind:
        settings = replace(settings, indexer=IndexerConfig(kind=indexer), index_path=None)
    if weight is not None:
        settings = replace(settings, hybrid_weight=weight, hybrid="linear")
    if (kind := settings.indexer.kind) not in KINDS and indexer != kind:
        raise ConfigError(
            f"{SEARCH_JSON} names the class {kind!r}; code is run only for names that you give, from Python:"
            f" Retriever.open(folder, indexer={kind!r})"
        )
    if not settings.passages:
        raise ConfigError(
            "no corpus is named, so there are no passages to show; name a run folder, or a corpus with corpus="
            " (--corpus)"
        )
    return settings


class Change(NamedTuple):
    """Passages that go and passages that come, one after the other, by their ids, with the vectors (n, D) of the
    latter."""

    gone: Mapping[str, Passage]
    added: Mapping[str, Passage]
    vectors: np.ndarray | None


@dataclass
class StoredSearch:
    """A search of the passages, vectors and indexes that ``SearchSettings`` name, and of the passages that have
    changed since. ``pooling`` is that of ``CheckpointEncoderConfig``, never from a file."""

    settings: SearchSettings = field(default_factory=SearchSettings)
    device: str | None = None
    pooling: str = "cls"
    folder: Path | None = None
    """Folder of the settings, which also keeps the changes."""
    added: dict[str, Passage] = field(default_factory=dict)
    """Passages that were added to the corpus."""
    gone: set[str] = field(default_factory=set)
    """Ids of passages of the corpus that were deleted or replaced."""
    num_added: int = 0
    """Number of passages that were ever added."""
    num_stored: int = 0
    """Number of passages of the corpus, known when a side was opened."""
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    """Vectors (D,) of the added passages, for the next process that opens the folder."""
    _exact: Index | None = None
    _most_bytes: int = _LARGE_JOURNAL

    def __post_init__(self) -> None:
        stored = self.settings
        weight = DEFAULT_WEIGHT if stored.hybrid_weight is None else stored.hybrid_weight
        self.fusion = Fusion(weight, stored.hybrid_depth)

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
        return "dense" if has_dense or stored.indexer.kind != "exact" else "bm25"

    @property
    def modes(self) -> tuple[str, ...]:
        """Returns the search modes for which the folder has all files."""
        stored = self.settings
        has_vectors = stored.encoded_ctx_files or stored.index_path
        return SEARCH_MODES if stored.model_file and has_vectors else ("bm25",)

    @property
    def _reads_texts(self) -> bool:
        return reads_texts(self.settings.indexer.kind)

    @property
    def kind(self) -> str:
        """Returns the kind of the index over vectors."""
        return "exact" if self._reads_texts else self.settings.indexer.kind

    @property
    def sources(self) -> Sequence[PassageSource]:
        """Returns the files of the passages."""
        return self.settings.passages

    @cached_property
    def passages(self) -> PassageLookup:
        """Returns the titles and texts of the passages."""
        for source in self.sources:
            if not source.file.is_file():
                raise InputError("cannot be read: No such file", file=source.file)
        return PassageLookup(self.sources)

    def query_text(self, question: str) -> str:
        """Returns the question in the form that sides get."""
        return self.settings.form.query_text(question)

    def side(self, mode: str) -> Side:
        """Opens the side ``dense`` or ``bm25``."""
        stored = self.settings
        # the folder's own settings are checked whatever the mode is
        if "dense" in self.modes or self._reads_texts:
            self._config()
        side: Side
        with no_downloads():  # of models that search.json names
            if mode == "bm25":
                side = open_words(stored.indexer, self.sources, stored.bm25_index_path, stored.index_path)
            else:
                from dpr.core.distributed import resolve_device
                from dpr.retrieval.dense import open_dense

                config = self._config(is_exact=self._reads_texts)
                side = open_dense(config, self.sources, form=stored.form, device=resolve_device(self.device))
        self.num_stored = side.index.num_passages
        if self.gone or self.added:
            gone = self.passages.get(self.gone)
            living(side, self.sources).change(gone, self.added, self._stacked())
        return side

    def index_to_filter(self, side: Any) -> Index | None:
        """Returns an index of a side that can search a part of the passages: its own, or else exact search of
        the vectors; None if they are missing."""
        index = side.index
        built = getattr(index, "base", index)
        if built.can_filter or isinstance(side, WordSide):
            return index
        if self._exact is None and self.settings.encoded_ctx_files:  # opened when it is first needed
            from dpr.retrieval.dense import open_vector_index

            self._exact = open_vector_index(self._config(is_exact=True), side.model, self.sources)
        if self._exact is None or built is index:
            return self._exact
        view = copy(index)
        view.base = self._exact
        return view

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids; missing ones are left out."""
        wanted = list(ids)
        found = self.passages.get([key for key in wanted if key not in self.gone and key not in self.added])
        return found | {key: self.added[key] for key in wanted if key in self.added}

    def __iter__(self) -> Iterator[Passage]:
        yield from (passage for passage in self.passages if passage.id not in self.gone)
        yield from list(self.added.values())

    @cached_property
    def kinds(self) -> Kinds:
        """Returns the kinds of the fields of all passages."""
        kinds: Kinds = {}
        note_kinds(kinds, self)
        return kinds

    @cached_property
    def journal(self) -> Journal | None:
        """Returns the file of the changes; None if they are not kept. Its name stands for the corpus and the vectors
        that they belong to."""
        if self.folder is None:
            return None
        made_of = [json.dumps(source.identity(), sort_keys=True) for source in self.sources]
        for pattern in self.settings.encoded_ctx_files:
            files = (path / MANIFEST if path.is_dir() else path for path in matching_paths(pattern))
            made_of += [content_sha256(file) for file in files]
        file = self.folder / f"{_CHANGES}{short_hash(*made_of)[:16]}.jsonl"
        if not file.exists() and any(self.folder.glob(f"{_CHANGES}*")):
            logger.warning(
                "%s holds changes to other passages or vectors, which are not searched", self.folder
            )
        return Journal(file)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keeps other processes from changing the passages. Raises DprError if they cannot be changed."""
        file = self.folder and self.folder / SEARCH_JSON
        if not file or not file.is_file():
            raise ConfigError(
                "passages change in a folder with a search.json, or in a retriever in memory; Retriever.build"
                " makes both"
            )
        assert self.journal is not None
        ours = self.settings
        with writing(self.journal.file), alone_with(self.journal.file):
            there = SearchSettings.read(file.parent)
            if (there.passages, there.encoded_ctx_files) != (ours.passages, ours.encoded_ctx_files):
                found = "names other passages than when it was opened"
                raise InputError(found, file=file, hint="open the folder again")
            yield

    def as_encoded(self, passage: Passage) -> Passage:
        """Returns a new passage in the form that the model gets."""
        return self.sources[0].as_encoded(passage) if self.sources else passage

    def restart(self) -> None:
        """Forgets all changes, to take them up from the first one."""
        self.added.clear()
        self.gone.clear()
        self.vectors.clear()
        del self.journal  # opened again when it is next needed

    def news(self) -> Iterator[Change]:
        """Yields the changes of other processes, each to be applied before the next is taken."""
        assert self.journal is not None
        for record in self.journal.read():
            try:
                gone = self.get(record["gone"])
                added = {str(passage.id): passage for passage in map(passage_of, record["added"])}
                coded = base64.b64decode(record["vectors"])
                vectors = np.frombuffer(coded, dtype="<f4").reshape(len(added), -1) if coded else None
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"is not a file of changes ({error})", file=self.journal.file) from None
            self.num_added = record.get("earlier", self.num_added)
            yield Change(gone, added, vectors)

    def store(self, change: Change) -> None:
        """Writes a change to the disk, if the passages are there."""
        if self.journal is None:
            return
        if self.journal.end > self._most_bytes:  # most of what it holds may be out of date
            record = _as_record(self.gone, self.added, self._stacked())
            self.journal.rewrite(record | {"earlier": self.num_added - len(self.added)})
            self._most_bytes = max(_LARGE_JOURNAL, 2 * self.journal.end)
        self.journal.append(_as_record(change.gone, change.added, change.vectors))

    def _stacked(self) -> np.ndarray | None:
        return np.array(list(self.vectors.values())) if self.vectors else None

    def apply(self, change: Change) -> None:
        """Takes up a change, except in the sides that are open."""
        for key in change.gone:
            if self.added.pop(key, None) is None:
                self.gone.add(key)
            self.vectors.pop(key, None)
        self.added |= change.added
        self.num_added += len(change.added)
        if change.vectors is not None and self.journal is not None:
            self.vectors |= zip(change.added, change.vectors, strict=True)
        if "kinds" in vars(self):
            note_kinds(self.kinds, change.added.values())

    def _config(self, *, is_exact: bool = False) -> RetrievalConfig:
        """Returns the settings for ``dpr retrieve``, checked; with exact search in place of the index if
        ``is_exact``."""
        stored = self.settings
        config = RetrievalConfig(
            qa_dataset="typed",
            ctx_datasets=[str(source.file) for source in stored.passages],
            encoded_ctx_files=stored.encoded_ctx_files,
            model_file=stored.model_file,
            index_path=None if is_exact else stored.index_path,
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
            indexer=IndexerConfig() if is_exact else replace(stored.indexer),
        )
        drop_unused(config)  # settings of the retrieval that wrote the file, in another mode
        config.check()
        return config


class MemorySearch(StoredSearch):
    """An exact search of passages and vectors in memory, without files: all passages are added ones."""

    def __init__(self, model: BiEncoder | None) -> None:
        super().__init__()
        self.model = model

    @property
    def mode(self) -> str:
        return "bm25" if self.model is None else "dense"

    @property
    def modes(self) -> tuple[str, ...]:
        return ("bm25",) if self.model is None else SEARCH_MODES

    def side(self, mode: str) -> Side:
        if mode == "bm25":
            texts = (f"{passage.title} {passage.text}" for passage in self.added.values())
            return WordSide(Bm25Index.build(IndexTexts(list(self.added), texts)))
        from dpr.indexer.living_vectors import LivingVectors
        from dpr.retrieval.dense import DenseSide

        # opened before there are passages, and changed with them
        assert self.model is not None
        return DenseSide(self.model, LivingVectors(None, self.model.dimension, device=self.model.device))

    @contextmanager
    def changing(self) -> Iterator[None]:
        yield


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
    if indexer not in KINDS or indexer == "bm25":
        raise ConfigError(
            f"indexer={indexer!r} is not an index over vectors; choose one of"
            f" {', '.join(KINDS.keys() - {'bm25'})}"
        )
    if isinstance(passages, str | Path):  # a file stays where it is
        for _ in given_items(passages, {}):  # each is checked
            pass
        (source,) = resolve_passage_sources([str(passages)], {})
    else:
        source = PassageSource(folder / "corpus.jsonl", "corpus")
        file = source.file
        target = file.with_name(f"{file.stem}.new.jsonl") if file.exists() else file
        write_passages(target, passages_of(passages, {}))
        if target != file:
            is_same = content_sha256(target) == content_sha256(file)
            remove(target)
            if not is_same:
                hint = "choose another folder, or add() to these"
                raise InputError("holds other passages", file=file, hint=hint)
    if (folder / SEARCH_JSON).is_file():
        files = [item.file.resolve() for item in SearchSettings.read(folder).passages]
        changes = folder.glob(f"{_CHANGES}*")
        if files != [source.file.resolve()] or any(path.stat().st_size for path in changes):
            hint = "open the folder, or choose another one"
            raise InputError("names other passages", file=folder / SEARCH_JSON, hint=hint)
    made = SearchSettings(
        passages=[source],
        bm25_index_path=str(folder / "bm25"),
        hybrid="linear" if mode == "hybrid" else "none",
        indexer=IndexerConfig(kind="bm25" if mode == "bm25" else indexer),
    )
    if model is not None:
        from dpr.core.distributed import resolve_device
        from dpr.embedding.job import embed_shard
        from dpr.models.biencoder import BiEncoder
        from dpr.models.sources import local_model

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
        report = embed_shard(loaded, source, EmbedConfig(out_file=str(folder / "vectors")))
        path = str(folder / "index") if index_class(indexer).is_saved and mode != "bm25" else None
        made = replace(made, model_file=str(file), encoded_ctx_files=[str(report.folder)], index_path=path)
    made.write(folder)


def _as_record(
    gone: Iterable[str], added: Mapping[str, Passage], vectors: np.ndarray | None
) -> dict[str, Any]:
    coded = b"" if vectors is None else vectors.astype("<f4").tobytes()
    return {
        "gone": list(gone),
        "added": [record_of(passage) for passage in added.values()],
        "vectors": base64.b64encode(coded).decode(),
    }
