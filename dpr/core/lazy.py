"""Optional packages, imported when they are first needed, with an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from dpr.core.errors import ConfigError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports ``module``, or says which extra of this package brings it.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f'{purpose} needs the package {module!r}: pip install -e ".[{extra}]" in the clone ({error})') from error
