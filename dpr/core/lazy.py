"""Imports at the time of use: optional packages, with an error that says what to install, and what a configuration names."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from dpr.core.errors import ConfigError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports ``module``, or says which extra of this package brings it.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f'{purpose} needs the package {module!r}: pip install "dpr[{extra}]" ({error})') from error


def import_object(path: str, *, setting: str) -> Any:
    """What ``module:name`` names, for classes and functions of a user's own. Modules in the working directory are found too.

    The path must come from the command line or a configuration file, never from data or a checkpoint.

    Raises:
        ConfigError: the path is not of that form, the module cannot be imported, or it has no such name.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise ConfigError(f"{setting}={path} is not an import path; write module:name, e.g. {setting}=my_module:MyClass")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # behind all others, so that a file here never takes an installed package's place
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{setting}={path}: {module_name} cannot be imported ({error}); is it in the working directory?") from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = [known for known in vars(found) if not known.startswith("_")]
            near = difflib.get_close_matches(part, names, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(f"{setting}={path}: {module_name} has no {part}{hint}")
        found = getattr(found, part)
    return found
