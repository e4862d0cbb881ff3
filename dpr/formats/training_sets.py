"""Training files, in DPR's format or another that ``training_files`` knows, read once into a memory-mapped Arrow file.

1. Every record is parsed and checked by the reader of its format; bad ones are refused with file and line, or set aside.
2. Good ones go, in batches, into a folder of the cache named by the files' content. Ranks that start together build it once.
3. ``TrainingSet`` maps that folder: memory does not grow with the file, and workers reopen it by its path.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.formats.text_input import expand_files
from dpr.formats.training_files.json_formats import write_training_set as write_training_set
from dpr.formats.training_files.registry import files_read, format_of
from dpr.formats.training_files.rows import ReadOptions
from dpr.formats.training_files.unread_keys import UnreadKeys
from dpr.formats.training_files.usable_rows import Counts, UsableRows, shown
from dpr.formats.training_records import sample_to_json
from dpr.formats.training_store import RowStore, write_rows
from dpr.storage.checksums import cache_root, content_sha256
from dpr.storage.durable import MANIFEST, durable_folder, read_manifest
from dpr.storage.outputs import cache_key, ensure_built

logger = get_logger(__name__)

_CACHE_VERSION = 5  # a change in what is read out of a file must change it, so that old cache folders are not used
_FINGERPRINT = b"training set, parser 1"  # runs are resumed where the fingerprint is the same


class TrainingSet(RowStore):
    """A training set on disk, by row number. Pickles as a path."""

    def __init__(self, folder: Path, name: str) -> None:
        metadata = read_manifest(folder)["metadata"]
        super().__init__(folder)
        self.name = name
        self.fingerprint: str = metadata["fingerprint"]
        """Changes with the content of the files, not with their names or times."""
        self.counts = Counts(**metadata["counts"])
        self.unread: dict[str, str] = metadata["unread"]
        """Warnings about keys that are not read, by key."""
        self._folder = folder

    def copied_to(self, folder: Path) -> TrainingSet:
        """The same set in another folder, for machines without this one's cache; a copy that is there is taken."""
        if not folder.is_dir():
            with durable_folder(folder, metadata=read_manifest(self._folder)["metadata"]) as temporary:
                for path in self._folder.iterdir():
                    if path.name != MANIFEST:
                        shutil.copyfile(path, temporary / path.name)
        return TrainingSet(folder, self.name)

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

    The first opening parses the files into ``cache_dir`` (default: $DPR_CACHE, else ~/.cache/dpr), later ones reuse that while the content
    of every file is the same; it is read again only where the file's times have changed. ``on_bad_row="skip"`` sets up to ``max_bad_rows``
    bad rows aside in ``rejected-<fingerprint>.jsonl`` in the cache folder. Broken JSON inside an array cannot be skipped.

    Raises:
        InputError: a file is missing or a row is bad (names file and line); no usable rows.
        ConfigError: the cache folder cannot be written.
    """
    if on_bad_row not in ("fail", "skip"):
        raise ConfigError(f"on_bad_row={on_bad_row} is not known; choose one of fail, skip")
    paths = expand_files(files)
    cache = cache_root(cache_dir)
    limit = max_bad_rows if on_bad_row == "skip" else -1
    builder = _Builder(paths, cache, limit)
    folder = cache / builder.folder_name()
    ensure_built(folder, builder.build)
    opened = TrainingSet(folder, name)
    counts = opened.counts
    logger.info(
        "%s: read %d records, kept %d, dropped %d without positives, rejected %d",
        *(name, counts.read, counts.kept, counts.dropped, counts.rejected),
    )
    for note in opened.unread.values():
        logger.warning("%s", note)
    return opened


class _Builder:
    """Parses files into one cache folder."""

    def __init__(self, paths: list[Path], cache: Path, limit: int) -> None:
        self._paths, self._cache, self._limit = paths, cache, limit
        self._usable = UsableRows(limit if limit >= 0 else None, file=cache / "rejected-too-many.jsonl")
        self._digest = hashlib.sha256(_FINGERPRINT)
        self._unread = UnreadKeys()

    def folder_name(self) -> str:
        """The name of the cache folder, from the content of all files that are read."""
        read = [file for path in self._paths for file in files_read(path)]
        return f"training-{cache_key(read, [_CACHE_VERSION, self._limit])}"

    def build(self, folder: Path) -> None:
        metadata: dict[str, Any] = {}
        with durable_folder(folder, overwrite=True, metadata=metadata) as temporary:
            write_rows(temporary, (sample for path in self._paths for sample in self._samples(path)))
            self._usable.require_some(self._paths)
            if self.folder_name() != folder.name:
                again = "rerun the same command when it is complete"
                raise InputError("changed while it was read", file=shown(self._paths), hint=again)
            metadata.update(
                cache=folder.name,
                fingerprint=self._digest.hexdigest(),
                counts=asdict(self._usable.counts),
                files=[str(path) for path in self._paths],
                unread=self._unread.warnings,
            )
        self._usable.list_rejected(self._cache / f"rejected-{self._digest.hexdigest()[:16]}.jsonl")

    def _samples(self, path: Path) -> Iterator[TrainingSample]:
        content = hashlib.sha256()
        options = ReadOptions(cache_dir=self._cache, unread=self._unread)
        source = format_of(path, options, fallback="dpr")
        is_native = source.name == "dpr"
        for sample in self._usable.samples(source.read(path, options)):
            if not is_native:
                content.update(json.dumps(sample_to_json(sample)).encode())
            yield sample
        self._digest.update(bytes.fromhex(content_sha256(path)) if is_native else content.digest())
