"""What the machine offers this process: a launcher (torchrun), optional packages, and the network only
where a person asked for it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from types import ModuleType

from dpr.core.errors import ConfigError, InputError, first_line


def launched(name: str, default: int = 0) -> int:
    """``RANK``, ``LOCAL_RANK`` or ``WORLD_SIZE`` as the launcher put it into the environment; ``default``
    without one.

    Raises:
        ConfigError: it is no number from 0 on.
    """
    value = os.environ.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ConfigError(
            f"the environment has {name}={value[:40]!r}, not a number from 0 on; start with torchrun, or"
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
    """The version of an installed package; None where it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def overlapping(
    change: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Blocks that share ``change``: the first to begin makes it, and the last to end undoes it.

    Had each its own, one that began inside another would restore, at its end, what it had found: the change.
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
    """A block in which Hugging Face's libraries read only local files, as with ``HF_HUB_OFFLINE=1``.

    Used for names and folders that come from a file: only what a person typed may be looked up on the
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
    """A block that reads a model: of a folder local files only; of a name that a person typed also the
    network, if it answers.

    Where it does not, the block reads the cache alone. Libraries would try again for a minute first.
    """
    from huggingface_hub import constants, get_session

    if Path(source).exists() or constants.HF_HUB_OFFLINE:
        return no_downloads()
    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:  # of whichever HTTP library this version stands on
        return no_downloads()
    return nullcontext()


@contextmanager
def panics_caught() -> Iterator[None]:
    """A block in which InputError is raised where the tokenizers package panics, as over an expression that takes
    too long on a text; its own exception is none that others catch."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        hint = "use a tokenizer whose expressions take no longer on any text"
        raise InputError(f"the tokenizer fails on a text ({first_line(error)})", hint=hint) from None
