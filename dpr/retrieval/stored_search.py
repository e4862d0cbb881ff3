"""A search of files that a run folder, or a caller, names; it is also built in a folder, and added to. Models are
imported where they are used, since a search by words needs none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.machine import no_downloads
from dpr.core.records import Passage
from dpr.core.settings import drop_unused
from dpr.embedding.settings import CheckpointEncoderConfig, EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.passage_records import fields_of, origin_record
from dpr.formats.text_output import durable_text
from dpr.formats.vector_shards import VectorShard
from dpr.indexer.registry import Index, index_class
from dpr.indexer.settings import DEFAULT_WEIGHT, KINDS
from dpr.retrieval.passages import Kinds, PassageFields, PassageLookup, Passages, given_items, records_of
from dpr.retrieval.search_json import SEARCH_JSON, SearchSettings
from dpr.retrieval.settings import SEARCH_MODES, IndexerConfig, RetrievalConfig
from dpr.retrieval.sides import Fusion, Side, WordSide, open_words, reads_texts
from dpr.retrieval.sources import resolve_passage_sources
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import MANIFEST
from dpr.storage.leftovers import remove
from dpr.storage.locks import lock_of, locked

if TYPE_CHECKING:
    from dpr.models.biencoder import BiEncoder

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
    if folder is not None and (not corpus or (folder / SEARCH_JSON).is_file()):
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
        from dpr.models.sources import local_model

        settings = replace(settings, model_file=str(local_model(model)))
    if vectors:
        settings = replace(settings, encoded_ctx_files=list(vectors), index_path=None, indexer=_EXACT)
    if indexer is not None and indexer != settings.indexer.get("kind"):
        settings = replace(settings, indexer={"kind": indexer}, index_path=None)
    if weight is not None:
        settings = replace(settings, hybrid_weight=weight, hybrid="linear")
    if (kind := settings.indexer.get("kind")) not in KINDS and indexer != kind:
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


@dataclass
class StoredSearch:
    """A search of the passages, vectors and indexes that ``SearchSettings`` name (``Search``). ``pooling`` is that of
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
        return reads_texts(self.settings.indexer["kind"])

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
        # the folder's own settings are checked whatever the mode is
        if "dense" in self.modes or self._reads_texts:
            self._config(stored)
        with no_downloads():  # of models that search.json names
            if mode == "bm25":
                return open_words(_indexer(stored), sources, stored.bm25_index_path, stored.index_path)
            from dpr.core.distributed import resolve_device
            from dpr.retrieval.dense import open_dense

            if self._reads_texts:
                stored = replace(stored, indexer=_EXACT, index_path=None)
            return open_dense(
                self._config(stored), sources, form=stored.form, device=resolve_device(self.device)
            )

    def index_to_filter(self, side: Any) -> Index | None:
        """Returns an index of a side that can search a part of the passages: its own, or else exact search of
        the vectors; None if they are missing."""
        if side.index.can_filter or isinstance(side, WordSide):
            return side.index
        if self._exact is None and self.settings.encoded_ctx_files:  # opened when it is first needed
            from dpr.retrieval.dense import open_vector_index

            stored = replace(self.settings, indexer=_EXACT, index_path=None)
            self._exact = open_vector_index(self._config(stored), side.model, stored.passages)
        return self._exact

    def get(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Returns the passages with these ids; missing ones are left out."""
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
        if not sum(1 for _ in given_items(passages, {})):
            raise InputError("there are no passages", file=passages)
        (source,) = resolve_passage_sources([str(passages)], {})
    else:
        source = PassageSource(folder / "corpus.jsonl", "corpus")
        _write(source.file, passages, 0, {})
    if (folder / SEARCH_JSON).is_file():
        files = [item.file.resolve() for item in SearchSettings.read(folder).passages]
        if files != [source.file.resolve()]:
            hint = "open the folder, or choose another one"
            raise InputError("names other passages", file=folder / SEARCH_JSON, hint=hint)
    made = SearchSettings(
        passages=[source],
        bm25_index_path=str(folder / "bm25"),
        hybrid="linear" if mode == "hybrid" else "none",
        indexer={"kind": "bm25" if mode == "bm25" else indexer},
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


def add_to(
    folder: Path | None, search: StoredSearch, passages: Passages, sides: Mapping[str, Any]
) -> StoredSearch:
    """Stores more passages in a folder, and returns the search of them all. ``sides`` are those that are open."""
    if folder is None or not (folder / SEARCH_JSON).is_file():
        raise ConfigError(
            "passages are added to a folder with a search.json, or to a retriever in memory; Retriever.build"
            " makes both"
        )
    folder = folder.absolute()  # as the paths that search.json states are read
    with locked(folder / SEARCH_JSON, file=lock_of(folder / SEARCH_JSON)):
        old = search.settings
        if SearchSettings.read(folder).passages != old.passages:
            found = "names other passages than when it was opened"
            raise InputError(found, file=folder / SEARCH_JSON, hint="open the folder again, then add")
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
                for _ in given_items(source.file, kinds):
                    pass
        try:
            source = replace(old.passages[0], file=file, name=file.stem)
            _write(file, passages, known, kinds)
            if again := sorted(search.get(str(passage.id) for passage in source.read())):
                raise InputError(f"the id {again[0]!r} is already in the corpus", expected="new ids")
            new = replace(
                old,
                passages=[*old.passages, source],
                bm25_index_path=old.bm25_index_path and str(words),
                index_path=old.index_path and str(index),
            )
            if "dense" in search.modes:
                from dpr.embedding.job import embed_shard

                dense: Any = sides.get("dense") or search.side("dense")
                report = embed_shard(dense.model, source, EmbedConfig(out_file=str(vectors)))
                new = replace(new, encoded_ctx_files=[*old.encoded_ctx_files, str(report.folder)])
            opened = StoredSearch(new, search.device, search.pooling)
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
