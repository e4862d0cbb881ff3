"""Settings: plain dataclasses whose fields state their unit, bounds, choices and what a changed value means
for a resumed run.

The string under a field is its help. Checks, ``--help`` and the identity of a run are derived from the
fields, so that each setting is declared once. Nothing heavy is imported, so that ``--help`` and a mistyped
value are answered at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from dpr.core.errors import ConfigError
from dpr.core.paths import is_replaced, matching_paths, odd_kind, texts_in, with_home
from dpr.core.setting_rules import CONTENT as CONTENT
from dpr.core.setting_rules import IDENTITY as IDENTITY
from dpr.core.setting_rules import MODEL as MODEL
from dpr.core.setting_rules import NO_EFFECT as NO_EFFECT
from dpr.core.setting_rules import ROLES
from dpr.core.setting_rules import START as START
from dpr.core.setting_rules import WARNED as WARNED
from dpr.core.setting_rules import listed as listed
from dpr.core.setting_rules import rule_of as rule_of
from dpr.core.setting_rules import setting as setting
from dpr.core.suggestions import suggestion

Base = TypeVar("Base", bound="Settings")


@dataclass
class Settings:
    """Base of the settings dataclasses. They are not frozen because Hydra refuses overrides of frozen ones.

    The fields of a class with ``is_mixin`` come last in ``--help``.
    """

    _is_mixin: ClassVar[bool] = False

    def __init_subclass__(cls, *, is_mixin: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._is_mixin = is_mixin

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], prefix: str) -> Self:
        """The settings that ``given`` names, checked; None stands for the default, and ``prefix`` before
        their names in messages.

        Raises:
            ConfigError: an unknown name, or a value of the wrong type or out of range.
        """
        known = [item.name for item in fields(cls)]
        for name in given:
            if name not in known:
                near = suggestion(str(name), known, otherwise=f"; it has {', '.join(known)}")
                raise ConfigError(f"unknown setting {prefix}{name}{near}")
        settings = cls(**{name: value for name, value in given.items() if value is not None})
        settings.check(prefix)
        return settings

    def check(self, prefix: str = "") -> None:
        """Checks the type, bounds and choices of every field, nested settings included, then calls
        ``check_together``, and compares outputs with inputs.

        Args:
            prefix: the dotted name of this section, with its dot, for the messages.

        Raises:
            ConfigError: names the key, the value and what is allowed.
        """
        self.check_values(prefix)
        _check_paths(self, prefix)

    def check_values(self, prefix: str) -> None:
        """As ``check``, but for outputs that are inputs: these are parts of others. Replaces ``~``."""
        own: Any = type(self)
        hints = _type_hints(own)
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Settings):
                value.check_values(f"{prefix}{item.name}.")
            else:
                check_type(prefix + item.name, value, hints[item.name])
                if value is not None:
                    rule_of(item).check(prefix + item.name, value)
                if rule_of(item).path:
                    setattr(self, item.name, with_home(value))
        self.check_together(prefix)

    def check_together(self, prefix: str) -> None:
        """Checks combinations of settings; called when each alone is valid."""

    def unused(self) -> Iterator[str]:
        """The settings that do nothing beside the others. The name of a section, or ``section.name``, stands
        for all that lies below it."""
        yield from ()

    def part(self, base: type[Base]) -> Base:
        """The settings that this class has from ``base``, alone."""
        return base(**{item.name: getattr(self, item.name) for item in fields(base)})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a settings object, and its default."""

    owner: Settings
    name: str
    default: Any

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)


def leaves(settings: Settings, prefix: str = "") -> dict[str, Leaf]:
    """Every value of ``settings`` by its dotted key."""
    by_key: dict[str, Leaf] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Settings):
            by_key |= leaves(value, f"{prefix}{item.name}.")
        else:
            default = item.default if item.default_factory is MISSING else item.default_factory()
            by_key[prefix + item.name] = Leaf(settings, item.name, default)
    return by_key


def unused_keys(settings: Settings, prefix: str = "") -> list[str]:
    """The keys of the settings that do nothing beside the others, sections included."""
    names = [prefix + name for name in settings.unused()]
    found = [
        key
        for key in leaves(settings, prefix)
        if any(key == name or key.startswith(f"{name}.") for name in names)
    ]
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Settings):
            found += unused_keys(value, f"{prefix}{item.name}.")
    return list(dict.fromkeys(found))


def drop_unused(settings: Settings) -> list[str]:
    """Sets what does nothing to its default, so that nothing reads it. Returns the keys that had another
    value."""
    known = leaves(settings)
    changed = [key for key in unused_keys(settings) if known[key].value != known[key].default]
    for key in changed:
        setattr(known[key].owner, known[key].name, known[key].default)
    return changed


def unused_note(keys: Collection[str]) -> str:
    """The one line about settings that were given and do nothing."""
    return f"no effect here: {', '.join(keys)}"


def _check_paths(settings: Settings, prefix: str) -> None:
    """Raises ConfigError for an input that can be read once only, and for an output that would replace an
    input."""
    entries: dict[str, Any] = {}
    for item in fields(settings):
        if item.metadata.get("entries"):
            entries |= getattr(settings, item.name)
    inputs = [
        (key, text, path)
        for key, named in _stated_paths(settings, "input", prefix)
        for text in texts_in(entries.get(named, named))
        for path in matching_paths(text) or matching_paths(text.partition("=")[2])  # LABEL=FILE
    ]
    for key, text, path in inputs:
        if kind := odd_kind(path):
            raise ConfigError(
                f"{key}={text}: {path} is {kind}, expected a file or a folder; write its content to a file"
                " first"
            )
    for role in ("output", "folder", "beginning"):
        for key, target in _stated_paths(settings, role, prefix):
            if target.encode(errors="replace").decode() != target:
                raise ConfigError(
                    f"{key}={target!r} is not UTF-8, which names of outputs must be; choose another name for"
                    f" {key}"
                )
            for read_by, text, path in inputs:
                if role != "beginning" and is_replaced(path, Path(target), adds=role == "folder"):
                    raise ConfigError(
                        f"{key}={target} would be written over what {read_by}={text} reads; choose another"
                        f" name for {key}"
                    )


def _stated_paths(settings: Settings, role: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Key and text of every path that the settings of a role name."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Settings):
            yield from _stated_paths(value, role, f"{prefix}{item.name}.")
        elif rule_of(item).path == role:
            yield from ((prefix + item.name, text) for text in texts_in(value))


_type_hints = cache(get_type_hints)
_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_ACCEPTED: dict[Any, Any] = {float: int | float, list: list | tuple, dict: Mapping}


def check_type(key: str, value: Any, hint: Any) -> None:
    """Raises ConfigError where ``value`` is not of the type ``hint``. A whole number is a number; true and
    false are not."""
    kinds = [
        kind
        for kind in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
        if kind is not NoneType
    ]
    if Any in kinds or (value is None and NoneType in get_args(hint)):
        return
    origins = [get_origin(kind) or kind for kind in kinds]
    if not any(isinstance(value, _ACCEPTED.get(kind, kind)) for kind in origins) or (
        type(value) is bool and bool not in origins
    ):
        raise ConfigError(
            f"{key}={value!r} is not {' or '.join(_IN_WORDS.get(kind, type_name(kind)) for kind in kinds)}"
        )


def require_set(settings: Settings, examples: Mapping[str, str]) -> None:
    """Raises ConfigError, with the example, for the first of these settings that is null or empty."""
    for key, example in examples.items():
        if not getattr(settings, key):
            raise ConfigError(f"{key} is not set, e.g. {key}={example}")


def split_entry(entry: Any, *, setting: str) -> tuple[str, dict[str, Any]]:
    """Path and arguments of an entry: ``module:Class``, or a mapping ``{use: module:Class, argument:
    value}``; ConfigError for others."""
    if isinstance(entry, str):
        return entry, {}
    if not (isinstance(entry, Mapping) and isinstance(entry.get("use"), str)):
        raise ConfigError(
            f"{setting}: {entry!r} has no import path; write module:Class or {{use: module:Class, argument:"
            " value}"
        )
    return str(entry["use"]), {str(key): value for key, value in entry.items() if key != "use"}


def store_name(key: str, value: str) -> str:
    """The value of a setting that takes ``auto``, ``off`` or a folder."""
    if value in ("False", "false"):  # what YAML makes of a bare off
        return "off"
    if value.strip() in ("", "True", "true"):
        raise ConfigError(f"{key}={value!r} is neither auto, nor off, nor the name of a folder")
    return value


def flat_values(settings: Any, roles: Collection[str] = ROLES, prefix: str = "") -> dict[str, Any]:
    """The values of the settings whose role is one of ``roles``, nested ones included, by their dotted
    keys."""
    by_key: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            by_key |= flat_values(value, roles, f"{prefix}{item.name}.")
        elif rule_of(item).on_resume in roles:
            by_key[prefix + item.name] = value
    return by_key


def type_name(kind: Any) -> str:
    """The type as ``--help`` writes it."""
    kind = without_none(kind)
    if get_origin(kind) is list:
        return f"list of {type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "catalogue"
    words = {str: "text", int: "integer", float: "number", bool: "true|false", Any: "name, path or list"}
    return words.get(kind, kind.__name__ if inspect.isclass(kind) else str(kind))


def without_none(kind: Any) -> Any:
    """The type of a setting where it is set."""
    if get_origin(kind) in (Union, UnionType):
        rest = [part for part in get_args(kind) if part is not NoneType]
        return rest[0] if len(rest) == 1 else kind
    return kind
