"""Folders of what was parsed once (training sets, corpora), kept under $DPR_CACHE and named by the files they were made of."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.formats.durable import read_manifest

logger = get_logger(__name__)


def cache_root(cache_dir: Path | None) -> Path:
    """``cache_dir``, else $DPR_CACHE, else ~/.cache/dpr."""
    return Path(cache_dir or os.environ.get("DPR_CACHE") or "~/.cache/dpr").expanduser()


def cache_key(paths: Sequence[Path], facts: Sequence[Any]) -> str:
    """A name that changes with path, size and time of the files (of all files in folders), and with ``facts``.

    Raises:
        InputError: a file cannot be looked at.
    """
    known: list[Any] = list(facts)
    for path in paths:
        for file in sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]:
            try:
                status = file.stat()
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", file=file) from None
            known.append([str(file.resolve()), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]


def ensure_built(folder: Path, build: Callable[[Path], None], *, is_usable: Callable[[Path], bool] | None = None) -> None:
    """Calls ``build(folder)`` unless the folder is there (and, if given, ``is_usable``); processes that ask together build it once."""
    is_usable = is_usable or _has_its_sizes
    if not is_usable(folder):
        with _exclusive(folder.parent, folder.name):
            if not is_usable(folder):
                build(folder)


def _has_its_sizes(folder: Path) -> bool:
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
