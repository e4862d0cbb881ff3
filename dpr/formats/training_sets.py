"""DPR training files (JSON array or JSON lines), read once into a memory-mapped Arrow file, and written.

1. Every record is parsed and checked by ``training_records``; bad ones are refused with file and line, or set aside.
2. Good ones go, in batches, into a folder of the cache named by the files' paths, sizes and times. Ranks that start together build it once.
3. ``TrainingSet`` maps that folder: memory does not grow with the file, and workers reopen it by its path.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, TrainingSample
from dpr.formats.corpora import write_text
from dpr.formats.durable import durable_file, durable_folder, read_manifest, remove_leftovers
from dpr.formats.json_records import JsonRecord, indented_record, iter_json_records
from dpr.formats.text_input import expand_files
from dpr.formats.training_records import sample_from_json, sample_to_json
from dpr.formats.training_store import RowStore, RowStoreWriter

logger = get_logger(__name__)

_PARSER_VERSION = 1  # a change in what is read out of a file must change it, so that old cache folders are not used


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of a training set: ``kept``, ``dropped`` for having no positive passage, ``rejected`` as bad; together ``read``."""

    read: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0


class TrainingSet:
    """A training set on disk, by row number. Pickles as a path."""

    def __init__(self, folder: Path, name: str) -> None:
        metadata = read_manifest(folder)["metadata"]
        self.name = name
        self.fingerprint: str = metadata["fingerprint"]
        """Changes with the content of the files, not with their names or times."""
        self.counts = Counts(**metadata["counts"])
        self._folder = folder
        self._store = RowStore(folder)

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, row: int) -> TrainingSample:
        return self._store.sample(row)

    def known_positives(self, row: int) -> tuple[Passage, ...]:
        """All passages known to answer the question of ``row``: its own, then those of rows with exactly the same question."""
        found = self._store.positives(row)
        for other in self._store.rows_with_same_question(row):
            found += self._store.positives(other)
        return tuple(dict.fromkeys(found))

    def __reduce__(self) -> tuple[object, ...]:
        return (TrainingSet, (self._folder, self.name))


def open_training_set(
    files: str | Path | Sequence[str | Path],
    *,
    name: str,
    cache_dir: Path | None = None,
    on_bad_row: str = "fail",
    max_bad_rows: int = 100,
) -> TrainingSet:
    """Opens training files as one set, in the order given; patterns are expanded, ``.gz`` is unpacked.

    The first opening parses the files into ``cache_dir`` (default: $DPR_CACHE, else ~/.cache/dpr), later ones reuse that while path, size
    and time of every file are the same. ``on_bad_row="skip"`` sets up to ``max_bad_rows`` bad rows aside in
    ``rejected-<fingerprint>.jsonl`` in the cache folder. Broken JSON inside an array cannot be skipped.

    Raises:
        InputError: a file is missing or a row is bad (names file and line); no usable rows.
        ConfigError: the cache folder cannot be written.
    """
    if on_bad_row not in ("fail", "skip"):
        raise ConfigError(f"on_bad_row={on_bad_row} is not known; choose one of fail, skip")
    paths = expand_files(files)
    cache = Path(cache_dir or os.environ.get("DPR_CACHE") or "~/.cache/dpr").expanduser()
    limit = max_bad_rows if on_bad_row == "skip" else -1
    folder = cache / f"training-{_cache_key(paths, limit)}"
    if not _is_usable(folder):
        with _exclusive(cache, folder.name):
            if not _is_usable(folder):
                _Builder(paths, cache, limit).build(folder)
    opened = TrainingSet(folder, name)
    counts = opened.counts
    logger.info(
        "%s: read %d records, kept %d, dropped %d without positives, rejected %d",
        *(name, counts.read, counts.kept, counts.dropped, counts.rejected),
    )
    return opened


def write_training_set(path: str | Path, samples: Iterable[TrainingSample]) -> int:
    """Writes a DPR training file, JSON lines for names in .jsonl, else a JSON array; ``.gz`` is packed. Returns how many."""
    file = Path(path)
    is_lines = file.name.removesuffix(".gz").endswith(".jsonl")
    count = 0
    with write_text(file) as out:
        if is_lines:
            for count, sample in enumerate(samples, 1):  # noqa: B007
                out.write(json.dumps(sample_to_json(sample), ensure_ascii=False) + "\n")
            return count
        for count, sample in enumerate(samples, 1):
            out.write(("[" if count == 1 else ",") + indented_record(sample_to_json(sample)))
        out.write("\n]\n" if count else "[]\n")
    return count


class _Builder:
    """Parses files into one cache folder, keeping count."""

    def __init__(self, paths: list[Path], cache: Path, limit: int) -> None:
        self._paths, self._cache, self._limit = paths, cache, limit
        self._read = self._kept = self._dropped = 0
        self._rejects: list[dict[str, Any]] = []
        self._digest = hashlib.sha256(f"training set, parser {_PARSER_VERSION}".encode())

    def build(self, folder: Path) -> None:
        remove_leftovers(self._cache)
        metadata: dict[str, Any] = {}
        with durable_folder(folder, overwrite=True, metadata=metadata) as temporary:
            with RowStoreWriter(temporary) as store:
                for path in self._paths:
                    for sample in self._samples(path):
                        store.add(sample)
            self._require_rows()
            counts = {"read": self._read, "kept": self._kept, "dropped": self._dropped, "rejected": len(self._rejects)}
            metadata.update(fingerprint=self._digest.hexdigest(), counts=counts, files=[str(path) for path in self._paths])
        if self._rejects:
            file = self._write_rejects(self._digest.hexdigest()[:16])
            logger.warning("%d bad rows were left out; reasons are in %s", len(self._rejects), file)

    def _samples(self, path: Path) -> Iterator[TrainingSample]:
        content = hashlib.sha256()
        for record in iter_json_records(path, content.update):
            self._read += 1
            try:
                if record.error is not None:
                    raise record.error
                sample = sample_from_json(record.value)
            except InputError as error:
                self._reject(path, record, error)
            except ValueError as error:
                self._reject(path, record, InputError(str(error), file=path, line=record.line))
            else:
                if sample.positives:
                    self._kept += 1
                    yield sample
                else:
                    self._dropped += 1
        self._digest.update(content.digest())

    def _reject(self, path: Path, record: JsonRecord, error: InputError) -> None:
        if self._limit < 0:
            hint = error.hint or "on_bad_row=skip leaves such rows out and lists them"
            raise InputError(error.found, file=path, line=record.line, expected=error.expected, hint=hint)
        self._rejects.append({"file": str(path), "line": record.line, "reason": error.found, "sha256": record.sha256()})
        if len(self._rejects) > self._limit:
            file = self._write_rejects("too-many")
            raise InputError(
                f"more than max_bad_rows={self._limit} bad rows, this one: {error.found}",
                file=path,
                line=record.line,
                hint=f"all so far are listed in {file}; is this the right file? max_bad_rows=N allows more",
            )

    def _require_rows(self) -> None:
        if self._kept:
            return
        names = ", ".join(map(str, self._paths[:3]))
        if self._read:
            raise InputError(
                f"none of the {self._read} records can be used: {self._dropped} have no positive passage, {len(self._rejects)} are bad",
                file=names,
            )
        raise InputError("no rows", file=names, expected="at least one training record")

    def _write_rejects(self, label: str) -> Path:
        file = self._cache / f"rejected-{label}.jsonl"
        with durable_file(file) as out:
            for reject in self._rejects:
                out.write(json.dumps(reject) + "\n")
        return file


def _cache_key(paths: list[Path], limit: int) -> str:
    facts: list[Any] = [_PARSER_VERSION, limit]
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=path) from None
        facts.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _is_usable(folder: Path) -> bool:
    """Whether a cache folder is there and of the sizes it was written with; contents are not hashed, rebuilding is cheap to ask for."""
    try:
        listed = read_manifest(folder)["files"]
        return all((folder / name).stat().st_size == entry["bytes"] for name, entry in listed.items())
    except (InputError, OSError):
        return False


@contextmanager
def _exclusive(cache: Path, name: str) -> Iterator[None]:
    """Holds a lock among the processes of this machine (and of others, where the file system carries locks)."""
    import fcntl

    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / f"{name}.lock", "ab")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"the cache folder {cache} cannot be written ({error.strerror}); set DPR_CACHE to a folder that can") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            logger.debug("no locks in %s; ranks may parse the same file side by side", cache)
        yield
