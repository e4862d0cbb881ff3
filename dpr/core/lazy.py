"""Optional packages, imported where they are needed, with an error that says what to install."""

from __future__ import annotations

import importlib
import importlib.metadata
from contextlib import suppress
from types import ModuleType

from dpr.core.errors import ConfigError


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
