"""User-defined classes: ``module:Class`` on the command line or in a configuration file, checked against the
contract of its setting.

An import path must never come from data, a checkpoint or a model folder: importing a module runs its code.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from dpr.core.errors import ConfigError, DprError
from dpr.core.settings import split_entry, suggestion


def load_class(path: str, contract: type[Any], *, setting: str) -> type[Any]:
    """Returns the class that ``module:Class`` names. It must be a subclass of ``contract`` or, for a
    Protocol, have all of its methods. Modules in the working directory are found too.

    Raises:
        ConfigError: the path is not of that form, the module cannot be imported or has no such name, or the
        object is not a class or does not fulfil the contract.
    """
    module_name, _, name = path.partition(":")
    if not (module_name and name):
        raise ConfigError(
            f"{setting}={path} is not an import path; write module:name, e.g. {setting}=my_module:MyClass"
        )
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last, so that a file here never shadows an installed package
    try:
        given: Any = importlib.import_module(module_name)
    except Exception as error:  # the module is user code, and its body may raise anything
        raise ConfigError(
            f"{setting}={path}: importing {module_name} raised {_one_line(error)}; is it in the working"
            " directory?"
        ) from error
    for part in name.split("."):
        if not hasattr(given, part):
            names = [known for known in vars(given) if not known.startswith("_")]
            raise ConfigError(f"{setting}={path}: {module_name} has no {part}{suggestion(part, names)}")
        given = getattr(given, part)

    wanted = f"{contract.__module__}.{contract.__qualname__}"
    if not inspect.isclass(given):
        raise ConfigError(f"{setting}={path} is not a class, expected one that implements {wanted}")
    if not getattr(contract, "_is_protocol", False):
        if not issubclass(given, contract):
            raise ConfigError(f"{setting}={path} is not a subclass of {wanted}")
        return given
    missing = {
        member
        for member, value in vars(contract).items()
        if inspect.isfunction(value)
        and (member == "__call__" or not member.startswith("_"))
        # Not hasattr: every class has a __call__, that of its metaclass.
        and not any(member in vars(own) for own in given.__mro__)
    }
    if missing:
        raise ConfigError(
            f"{setting}={path} does not implement {wanted}: it has no {', '.join(sorted(missing))}"
        )
    return given


def create_object(entry: Any, contract: type[Any], *, setting: str, values: tuple[Any, ...] = ()) -> Any:
    """Returns an instance of the class that ``entry`` names (``split_entry``), made with ``values`` and the
    arguments of the entry.

    Raises:
        ConfigError: see ``load_class``; the class does not accept these arguments, or its constructor raises.
    """
    path, arguments = split_entry(entry, setting=setting)
    make = load_class(path, contract, setting=setting)
    try:
        return make(*values, **arguments)
    except DprError:
        raise
    except Exception as error:  # user code may raise anything
        given = ", ".join(arguments) or "none"
        raise ConfigError(f"{setting}={path} raised {_one_line(error)}; arguments given: {given}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
