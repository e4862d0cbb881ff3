"""Which vector shards belong together, by their metadata alone: no file of vectors is read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.json_records import describe

Metadata = dict[str, str | int | float | bool]

_TEXTS = ("model_fingerprint", "settings_fingerprint", "encoder_type", "similarity", "precision", "dtype")
_TYPES: dict[str, type] = {
    **dict.fromkeys((*_TEXTS, "corpus", "corpus_fingerprint", "id_prefix", "passage_prefix", "made_from_sha256"), str),
    **dict.fromkeys(("num_vectors", "num_chunks", "dimension", "shard_id", "num_shards", "first_row", "end_row", "chunk_size"), int),
    **dict.fromkeys(("id_col", "text_col", "title_col"), int),
    "normalize": bool,
}
_MUST_AGREE = {
    "model_fingerprint": "made with another model",
    "settings_fingerprint": "made with other tokenizer or encoder settings",
    "encoder_type": "made with the other tower",
    "similarity": "made for another similarity",
    "dimension": "of another dimension",
}
_OF_CORPUS = ("corpus", "corpus_fingerprint", "id_prefix", "num_shards")
_OF_IDS = ("corpus_fingerprint", "id_col", "id_prefix")


def checked_metadata(stored: dict[str, Any], file: Path) -> Metadata:
    """What a manifest says of a shard, of the types that all readers rely on. Keys that are not known here may hold any single value.

    Raises:
        InputError: one is missing or of another type.
    """
    for name in ("num_vectors", "dimension", "dtype"):
        if name not in stored:
            raise InputError(f"the manifest is not one of a vector shard: it has no {name}", file=file)
    for name, value in stored.items():
        kind = _TYPES.get(name)
        if type(value) is not kind if kind else not isinstance(value, str | int | float | bool):
            raise InputError(f"{name} is {describe(value)}", file=file, expected=f"of type {kind.__name__}" if kind else "a single value")
    return stored


def require_compatible(shards: Sequence[tuple[Path, Metadata]], *, allow_missing: bool) -> None:
    """Raises InputError unless shards may be searched together: of one model and encoding, none missing.

    Scores of float32, float16 and int8 agree to within a fraction of a percent. The error of single bits is larger than the differences
    between good passages, so they are compared with each other only.
    """
    first_path, first = shards[0]
    for path, metadata in shards[1:]:
        for key, what in _MUST_AGREE.items():
            if metadata.get(key) != first.get(key):
                found = f"these vectors are {what} than {first_path} ({key} {metadata.get(key)!r}, there {first.get(key)!r})"
                raise InputError(found, file=path, hint="embed the corpus again with one model")
        if (metadata.get("dtype") == "binary") != (first.get("dtype") == "binary"):
            found = f"these vectors are {metadata.get('dtype')}, those of {first_path} {first.get('dtype')}"
            raise InputError(found, file=path, hint="binary vectors are searched with binary ones only; embed all with one out_dtype")
    groups: dict[tuple[Any, ...], dict[int, Path]] = {}
    for path, metadata in shards:
        number, of_corpus = metadata.get("shard_id"), tuple(metadata.get(key) for key in _OF_CORPUS)
        if isinstance(number, int) and isinstance(of_corpus[-1], int):
            groups.setdefault(of_corpus, {})[number] = path
    for group, members in groups.items():
        missing = sorted(set(range(group[-1])) - set(members))
        if missing and not allow_missing:
            shown = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
            found = f"of {group[-1]} shards, these are missing: {shown}"
            raise InputError(found, file=next(iter(members.values())), hint="embed them, or pass all of them")


def are_rows_of_one_corpus(shards: Sequence[Metadata]) -> bool:
    """Whether all are different rows of one corpus. Its ids were proved to be unique before a shard of it was embedded."""
    rows = []
    for metadata in shards:
        start, stop = metadata.get("first_row"), metadata.get("end_row")
        if "corpus_fingerprint" not in metadata or type(start) is not int or type(stop) is not int:
            return False
        if any(metadata.get(key) != shards[0].get(key) for key in _OF_IDS):
            return False
        if metadata.get("num_vectors") != stop - start:
            return False
        if start < stop:
            rows.append((start, stop))
    rows.sort()
    return all(stop <= start for (_, stop), (start, _) in itertools.pairwise(rows))
