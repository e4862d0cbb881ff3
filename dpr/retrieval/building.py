"""Passages from Python in a folder, with their vectors and ``search.json``: built, and added to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import EmbedConfig
from dpr.embedding.source import PassageSource
from dpr.formats.passage_metadata import fields_of
from dpr.formats.passage_records import origin_record
from dpr.formats.text_output import durable_text
from dpr.indexer.registry import index_class
from dpr.indexer.settings import KINDS
from dpr.models.biencoder import BiEncoder
from dpr.models.sources import local_model
from dpr.retrieval.passages import Kinds, Passages, given_items, records_of
from dpr.retrieval.search_json import SEARCH_JSON, SearchSettings
from dpr.retrieval.settings import SEARCH_MODES
from dpr.retrieval.sources import resolve_passage_sources
from dpr.retrieval.stored_search import StoredSearch
from dpr.storage.checksums import content_sha256
from dpr.storage.leftovers import remove
from dpr.storage.locks import lock_of, locked


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
            f"indexer={indexer!r} is not an index over vectors; choose of"
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
                raise InputError(f"the id {again[0]!r} is in the corpus already", expected="new ids")
            new = replace(
                old,
                passages=[*old.passages, source],
                bm25_index_path=old.bm25_index_path and str(words),
                index_path=old.index_path and str(index),
            )
            if "dense" in search.modes:
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
