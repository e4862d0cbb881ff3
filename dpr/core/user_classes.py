"""User-defined classes: ``module:Class`` on the command line or in a configuration file, checked against the contract of its slot.

A path must never come from data, a checkpoint or a model folder: importing a module runs its code.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from dpr.core.errors import ConfigError, DprError


def import_object(path: str, *, setting: str) -> Any:
    """What ``module:name`` names. Modules in the working directory are found too.

    Raises:
        ConfigError: the path is not of that form, the module cannot be imported, or it has no such name.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise ConfigError(f"{setting}={path} is not an import path; write module:name, e.g. {setting}=my_module:MyClass")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # behind all others, so that a file here never shadows an installed package
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{setting}={path}: {module_name} cannot be imported ({error}); is it in the working directory?") from error
    except Exception as error:  # the module is user code, and its body may raise anything
        raise ConfigError(f"{setting}={path}: importing {module_name} raised {_one_line(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            names = [known for known in vars(found) if not known.startswith("_")]
            near = difflib.get_close_matches(part, names, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(f"{setting}={path}: {module_name} has no {part}{hint}")
        found = getattr(found, part)
    return found


def load_class(path: str, contract: type[Any], *, setting: str) -> type[Any]:
    """The class that ``path`` names, if it fulfils ``contract``: a subclass, or for a Protocol a class with all of its methods.

    Raises:
        ConfigError: see ``import_object``; what was found is no class or does not fulfil the contract.
    """
    return check_class(import_object(path, setting=setting), contract, path=path, setting=setting)


def check_class(found: Any, contract: type[Any], *, path: str, setting: str) -> type[Any]:
    """``found`` if it is a class that fulfils ``contract``, as ``load_class`` checks it."""
    name = _public_name(contract)
    if not inspect.isclass(found):
        hint = f"; name its class {type(found).__qualname__}" if _fulfils(type(found), contract) else ""
        raise ConfigError(f"{setting}={path} is not a class, expected one that implements {name}{hint}")
    if not getattr(contract, "_is_protocol", False):
        if not issubclass(found, contract):
            raise ConfigError(f"{setting}={path} is not a subclass of {name}")
    elif missing := _missing_methods(found, contract):
        raise ConfigError(f"{setting}={path} does not implement {name}: it has no {', '.join(missing)}")
    return found


def split_entry(entry: Any, *, setting: str) -> tuple[str, dict[str, Any]]:
    """Path and arguments of an entry: ``module:Class``, or a mapping ``{use: module:Class, argument: value}``.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(entry, str):
        return entry, {}
    if not (isinstance(entry, Mapping) and isinstance(entry.get("use"), str)):
        raise ConfigError(f"{setting}: {entry!r} has no import path; write module:Class or {{use: module:Class, argument: value}}")
    return str(entry["use"]), {str(key): value for key, value in entry.items() if key != "use"}


def create_object(entry: Any, contract: type[Any], *, setting: str, values: tuple[Any, ...] = ()) -> Any:
    """An instance of the class that ``entry`` names (see ``split_entry``), called with ``values`` and the entry's arguments.

    Raises:
        ConfigError: see ``load_class``; the class does not take these arguments, or its constructor raises.
    """
    path, arguments = split_entry(entry, setting=setting)
    return call(load_class(path, contract, setting=setting), *values, path=path, setting=setting, arguments=arguments)


def call(make: Callable[..., Any], *values: Any, path: str, setting: str, arguments: Mapping[str, Any]) -> Any:
    """``make(*values, **arguments)``; ConfigError where it does not take them or raises."""
    given = ", ".join(arguments) or "none"
    try:
        if inspect.isclass(make) and inspect.isabstract(make):
            raise TypeError(f"it leaves {', '.join(sorted(vars(make)['__abstractmethods__']))} undefined")
        inspect.signature(make).bind(*values, **arguments)
    except (TypeError, ValueError) as error:  # ValueError: a built-in without a signature
        raise ConfigError(f"{setting}={path}: {error}; arguments given: {given}") from None
    try:
        return make(*values, **arguments)
    except DprError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{setting}={path} raised {_one_line(error)}; arguments given: {given}") from error


def _fulfils(found: type, contract: type) -> bool:
    return not _missing_methods(found, contract) if getattr(contract, "_is_protocol", False) else issubclass(found, contract)


def _missing_methods(found: type, contract: type) -> list[str]:
    bases = [base for base in contract.__mro__ if getattr(base, "_is_protocol", False)]
    names = {name for base in bases for name, member in vars(base).items() if inspect.isfunction(member) and _is_asked(name)}
    # Not hasattr: every class has a __call__, that of its metaclass.
    return sorted(name for name in names if not any(name in vars(base) for base in found.__mro__))


def _is_asked(name: str) -> bool:
    return not name.startswith("_") or name == "__call__" or name in ("__len__", "__getitem__", "__iter__")


def _public_name(contract: type) -> str:
    """The import path as the documentation writes it: the package's, where the package exports it."""
    package = contract.__module__.rpartition(".")[0]
    is_exported = getattr(sys.modules.get(package), contract.__name__, None) is contract
    return f"{package if is_exported else contract.__module__}.{contract.__qualname__}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
