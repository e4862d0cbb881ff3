"""Settings: plain dataclasses whose fields state their unit, bounds, choices and what a changed value means for a resumed run.

The string under a field is its help. Checks, ``--help`` and the identity of a run are derived from the fields, so that each setting is
declared once. Nothing heavy is imported, so that ``--help`` and a mistyped value are answered at once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from dpr.core.errors import ConfigError

IDENTITY, WARNED, START, CONTENT, NO_EFFECT = "identity", "warned", "start", "content", "no effect"
"""What a changed value means for a resumed run, ``setting(on_resume=...)``:

identity   it decides the batches or the objective; the change is refused
warned     it decides something else about the result; the change is accepted with a warning
start      it is read only when a run starts
content    it names files, whose content is compared instead of their names
no effect  it decides where, how fast and how closely monitored a run is, but not its result
"""
DECIDING = (IDENTITY, WARNED, START)
_ROLES = (IDENTITY, WARNED, START, CONTENT, NO_EFFECT)


def setting(default: Any, *, entries: type | None = None, **rule: Any) -> Any:
    """A field of a settings dataclass with the ``Rule`` that the keywords state; a class or a function as ``default`` makes the default.

    ``entries``: of a catalogue, the dataclass of an entry's options.
    """
    assert rule.get("on_resume", "") in ("", *_ROLES), rule
    given = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(metadata={"setting": Rule(**rule), "entries": entries}, **given)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed for a setting. Bounds hold for a number, or for each number of a list."""

    unit: str = ""
    """What a number counts or measures."""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    """``above`` and ``below`` exclude the bound itself."""
    choices: Sequence[str] = ()
    or_class: bool = False
    """Besides ``choices``, the import path of a user-defined class, ``module:Class``, is allowed."""
    on_resume: str = ""
    """One of the roles above."""

    @property
    def range(self) -> str:
        """The bounds in words; nothing where there are none."""
        if self.above is not None:
            return f"above {self.above:g}" + ("" if self.most is None else f" and at most {self.most:g}")
        if self.least is None:
            return ""
        upper = "" if self.most is None else f"{self.most:g}]"
        upper = upper if self.below is None else f"{self.below:g})"
        return f"in [{self.least:g}, {upper}" if upper else f"at least {self.least:g}"

    def check(self, key: str, value: Any) -> None:
        """Raises ConfigError with the key, the value and what is allowed."""
        for item in value if isinstance(value, list | tuple) else [value]:
            if self.choices and item not in self.choices and not (self.or_class and ":" in str(item)):
                raise ConfigError(
                    f"{key}={item} is not known; choose one of {', '.join(self.choices)}" + self.or_class * ", or module:Class"
                )
            if self.range and isinstance(item, int | float) and not self._holds(item):
                raise ConfigError(f"{key}={item} is out of range; it must be {self.range}")

    def _holds(self, value: float) -> bool:
        return (
            abs(value) <= sys.float_info.max  # neither NaN, nor infinity, nor a whole number beyond every float
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


@dataclass
class Settings:
    """Base of the settings dataclasses. They are not frozen because Hydra refuses overrides of frozen ones."""

    def check(self, prefix: str = "") -> None:
        """Checks the type, bounds and choices of every field, nested settings included, then calls ``check_together``.

        Args:
            prefix: the dotted name of this section, with its dot, for the messages.

        Raises:
            ConfigError: names the key, the value and what is allowed.
        """
        hints = get_type_hints(type(self))
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Settings):
                value.check(f"{prefix}{item.name}.")
            else:
                check_type(prefix + item.name, value, hints[item.name])
                if value is not None:
                    rule_of(item).check(prefix + item.name, value)
        self.check_together(prefix)

    def check_together(self, prefix: str) -> None:
        """Checks combinations of settings; called when each alone is valid."""


def rule_of(item: Field[Any]) -> Rule:
    """The rule of a field; an empty one for a field that was not made by ``setting``."""
    return item.metadata.get("setting", Rule())


_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_ACCEPTED: dict[Any, Any] = {float: int | float, list: list | tuple, dict: Mapping}


def check_type(key: str, value: Any, hint: Any) -> None:
    """Raises ConfigError where ``value`` is not of the type ``hint``. A whole number is a number; true and false are not."""
    kinds = [kind for kind in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)) if kind is not NoneType]
    if Any in kinds or (value is None and NoneType in get_args(hint)):
        return
    origins = [get_origin(kind) or kind for kind in kinds]
    if not any(isinstance(value, _ACCEPTED.get(kind, kind)) for kind in origins) or (type(value) is bool and bool not in origins):
        raise ConfigError(f"{key}={value!r} is not {' or '.join(_IN_WORDS.get(kind, type_name(kind)) for kind in kinds)}")


Kind = TypeVar("Kind", bound=Settings)


def part_of(kind: type[Kind], *sources: Settings, **changes: Any) -> Kind:
    """The settings of ``kind``, each from the first of ``sources`` that has a field of its name; ``changes`` take precedence."""
    found = {item.name: getattr(source, item.name) for source in reversed(sources) for item in fields(source)}
    return kind(**{item.name: value for item in fields(kind) if (value := (found | changes).get(item.name, item)) is not item})


def require_set(settings: Settings, examples: Mapping[str, str]) -> None:
    """Raises ConfigError, with the example, for the first of these settings that is null or empty."""
    for key, example in examples.items():
        if not getattr(settings, key):
            raise ConfigError(f"{key} is not set, e.g. {key}={example}")


def store_name(key: str, value: str) -> str:
    """The value of a setting that takes ``auto``, ``off`` or a folder."""
    if value in ("False", "false"):  # what YAML makes of a bare off
        return "off"
    if value.strip() in ("", "True", "true"):
        raise ConfigError(f"{key}={value!r} is neither auto, nor off, nor the name of a folder")
    return value


def listed(value: Any) -> list[Any]:
    """The value of a setting that takes one item or a list of them; none for null."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def flat_values(settings: Any, roles: Collection[str] = _ROLES, prefix: str = "") -> dict[str, Any]:
    """The values of the settings whose role is one of ``roles``, nested ones included, by their dotted keys."""
    found: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            found |= flat_values(value, roles, f"{prefix}{item.name}.")
        elif rule_of(item).on_resume in roles:
            found[prefix + item.name] = value
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """One settable key. ``doc`` is the string under the field; ``is_open``: any key below it is accepted (a catalogue)."""

    key: str
    type: Any
    default: Any
    doc: str
    is_open: bool = False
    rule: Rule = Rule()
    entries: type | None = None
    """Of a catalogue: the dataclass of an entry's options."""

    @property
    def takes_text(self) -> bool:
        """Whether the value is one text, to be taken literally."""
        return _without_none(self.type) is str

    @property
    def takes_texts(self) -> bool:
        """Whether the value is a text or a list of texts: paths and names."""
        return self.type is Any or _without_none(self.type) == list[str]


def settings(config_class: type, prefix: str = "") -> list[Setting]:
    """All settings of ``config_class`` in the order of their fields, nested classes in place, keys dotted."""
    return [found for found in _walk(config_class, prefix) if isinstance(found, Setting)]


def sections(config_class: type) -> dict[str, str]:
    """Dotted names of the nested classes with their docstrings; the root is the empty name."""
    return dict(found for found in _walk(config_class, "") if isinstance(found, tuple))


def _walk(config_class: type, prefix: str) -> Iterator[Setting | tuple[str, str]]:
    yield prefix.rstrip("."), inspect.cleandoc(config_class.__doc__ or "")
    hints, docs = get_type_hints(config_class), _field_docs(config_class)
    for item in fields(config_class):
        key, kind = prefix + item.name, hints[item.name]
        if is_dataclass(kind) and isinstance(kind, type):
            yield from _walk(kind, key + ".")
        else:
            default = item.default if item.default_factory is MISSING else item.default_factory()
            default = None if default is MISSING else default
            is_open, entries = get_origin(kind) is dict, item.metadata.get("entries")
            yield Setting(key, kind, default, docs.get(item.name, ""), is_open, rule_of(item), entries)


def type_name(kind: Any) -> str:
    """The type as ``--help`` writes it."""
    kind = _without_none(kind)
    if get_origin(kind) is list:
        return f"list of {type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "catalogue"
    return {str: "text", int: "integer", float: "number", bool: "true|false", Any: "name, path or list"}.get(kind, str(kind))


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        rest = [part for part in get_args(kind) if part is not NoneType]
        return rest[0] if len(rest) == 1 else kind
    return kind


@cache  # reading a source file takes longer than all else that --help does
def _field_docs(config_class: type) -> dict[str, str]:
    """The string literals under fields, inherited ones included; a class without source (typed at a prompt) has none."""
    docs = {}
    for base in reversed(config_class.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        for pair in pairwise(getattr(tree.body[0], "body", [])):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    docs[name] = " ".join(str(text).split())
    return docs
