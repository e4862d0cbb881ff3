"""Folders of what was parsed once (training sets, corpora), kept under $DPR_CACHE and named by the files they were made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.formats.checksums import content_sha256
from dpr.formats.durable import read_manifest
from dpr.formats.outputs import require_writable
from dpr.formats.run_lock import alone_with

logger = get_logger(__name__)


def cache_key(paths: Sequence[Path], facts: Sequence[Any]) -> str:
    """A name that changes with name and content of the files and folders, and with ``facts``.

    Raises:
        InputError: a file cannot be read.
    """
    known = [*facts, *([path.name, content_sha256(path)] for path in paths)]
    return hashlib.sha256(json.dumps(known).encode(errors="surrogatepass")).hexdigest()[:32]


def ensure_built(folder: Path, build: Callable[[Path], None], *, problem_of: Callable[[Path], str | None] | None = None) -> None:
    """Calls ``build(folder)`` unless the folder is whole; processes that ask together build it once.

    Args:
        problem_of: what is wrong with a folder that is there, None where nothing is; by default every file of it must be as it was written,
            which is read once and then remembered as long as the file's times stay the same. Its metadata must name the folder.
    """
    problem_of = problem_of or _problem
    if folder.is_dir() and problem_of(folder) is None:
        return
    cache = folder.parent
    try:
        require_writable(cache, folder=True)
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the cache folder {cache} cannot be written ({error.strerror}); set DPR_CACHE to a folder that can") from None
    with alone_with(cache / f"{folder.name}.lock"):  # without locks in the file system, processes may build it side by side
        if folder.exists() and (found := problem_of(folder)) is not None:
            logger.warning("the cache %s is damaged or unfinished (%s); rebuilding it", folder, found)
        elif folder.exists():
            return
        build(folder)


def _problem(folder: Path) -> str | None:
    try:
        manifest = read_manifest(folder)
        if manifest["metadata"].get("cache") != folder.name:
            return "it belongs to other data"
        return next((f"{name} has changed" for name, entry in manifest["files"].items() if _differs(folder / name, entry)), None)
    except InputError as error:
        return str(error)


def _differs(file: Path, entry: dict[str, Any]) -> bool:
    return file.is_symlink() or content_sha256(file) != entry["sha256"]
