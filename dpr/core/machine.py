"""The environment of this process: launcher (torchrun), optional packages, and network access, which is used
only if a person asked for it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from types import ModuleType

from dpr.core.errors import ConfigError, InputError, first_line


def launched(name: str, default: int = 0) -> int:
    """Returns ``RANK``, ``LOCAL_RANK`` or ``WORLD_SIZE`` as the launcher put it into the environment;
    ``default`` without a launcher.

    Raises:
        ConfigError: it is not a whole number of at least 0.
    """
    value = os.environ.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ConfigError(
            f"the environment has {name}={value[:40]!r}, not a number of at least 0; start with torchrun, or"
            f" unset {name}"
        )
    return int(value)


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports ``module``, which the given extra of this package installs.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'{purpose} needs the package {module!r}: pip install -e ".[{extra}]" in the clone ({error})'
        ) from error


def version_of(package: str) -> str | None:
    """Returns the version of an installed package, or None if it is not installed."""
    from importlib import metadata  # takes longer than all else that the start of a command imports

    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def overlapping(
    change: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Shares ``change`` among blocks: the first block to begin makes it, and the last to end undoes it.

    If each block had its own, a block that began inside another would restore the changed state at its end.
    """
    lock = Lock()
    running = list[AbstractContextManager[None]]()
    count = 0

    @contextmanager
    def block() -> Iterator[None]:
        nonlocal count
        with lock:
            if not count:
                running.append(change())
                running[0].__enter__()
            count += 1
        try:
            yield
        finally:
            with lock:
                count -= 1
                if not count:
                    running.pop().__exit__(None, None, None)

    return block


@overlapping
@contextmanager
def no_downloads() -> Iterator[None]:
    """Makes Hugging Face's libraries read only local files within the block, as with ``HF_HUB_OFFLINE=1``.

    Used for names and folders that come from a file: only names that a person typed may be looked up on the
    network. While one thread is inside, no other looks anything up either.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def reading(source: str | Path) -> AbstractContextManager[None]:
    """Returns a block for reading a model: a folder with local files only; a name typed by a person also over
    the network, if it answers.

    If the network does not answer, the block reads the cache alone. Libraries would try again for a minute
    first.
    """
    from huggingface_hub import constants, get_session

    if Path(source).exists() or constants.HF_HUB_OFFLINE:
        return no_downloads()
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # depends on the HTTP library of this version
        return no_downloads()
    return nullcontext()


@contextmanager
def panics_caught() -> Iterator[None]:
    """Raises InputError if the tokenizers package panics within the block, for example over an expression
    that takes too long on a text. Its own exception is one that ordinary handlers do not catch."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        hint = "use a tokenizer whose expressions take no longer on any text"
        raise InputError(f"the tokenizer fails on a text ({first_line(error)})", hint=hint) from None
