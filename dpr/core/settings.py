"""Settings: plain dataclasses whose fields state their unit, bounds, choices and the effect of a changed
value on a resumed run.

The string under a field is its help. Checks, ``--help`` and the identity of a run are derived from the
fields, so that each setting is declared once. ``Rule`` holds the rule of a field, ``Settings.check`` checks
it, ``settings`` lists the keys for the command line, and ``suggestion`` names likely meanings of a mistyped
key. Nothing heavy is imported, so that ``--help`` and a mistyped value are answered at once.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from dpr.core.errors import ConfigError
from dpr.core.other_names import hint, refuse
from dpr.core.paths import is_replaced, matching_paths, odd_kind, texts_in, with_home

_PLAIN = re.compile(
    r"(?!(null|true|false|yes|no|on|off|inf|infinity|nan)$)[a-z./][\w./+-]*", re.ASCII | re.IGNORECASE
)


def suggestion(word: str, choices: Iterable[str], *, otherwise: str = "") -> str:
    """Returns ``; did you mean a, b?`` with the choices most similar to ``word``, as a whole or by the part
    after the last dot; ``otherwise`` if there are none."""

    def similarity(choice: str) -> float:
        pairs = [(word, choice, 1.0), (word.rpartition(".")[2], choice.rpartition(".")[2], 0.95)]
        return max(
            difflib.SequenceMatcher(a=theirs.lower(), b=ours.lower()).ratio() * share
            for ours, theirs, share in pairs
        )

    near = sorted(choices, key=lambda choice: (-similarity(choice), choice))[:3]
    near = [choice for choice in near if similarity(choice) >= 0.6]
    return f"; did you mean {', '.join(near)}?" if near else otherwise


IDENTITY = "identity"
UPDATES = "updates"
WARNED = "warned"
START = "start"
CONTENT = "content"
MODEL = "model"
NO_EFFECT = "no effect"
"""Effect of a changed value on a resumed run, ``setting(on_resume=...)``:

identity   it changes the batches or the objective; the change is refused
updates    it changes what an update does to the weights; a change is accepted with a warning in an
           unfinished run, and refused in a finished one
warned     it changes something else about the result; the change is accepted with a warning
start      it is read only when a run starts
content    it names files, whose content is compared instead of their names
model      it names a model, whose files' content is compared instead of their names
no effect  it changes where, how fast and how closely monitored a run is, but not its result
"""
ROLES = (IDENTITY, UPDATES, WARNED, START, CONTENT, MODEL, NO_EFFECT)


def setting(default: Any, **rule: Any) -> Any:
    """Returns a field of a settings dataclass with the ``Rule`` that the keywords state. If ``default`` is a
    class or a function, calling it gives the default."""
    assert rule.get("on_resume", "") in ("", *ROLES), rule
    given = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(metadata={"setting": Rule(**rule)}, **given)


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for the values of a setting. Bounds hold for a number, or for each number of a list."""

    unit: str = ""
    """Unit of a number."""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    """``above`` and ``below`` exclude the bound itself."""
    choices: Sequence[str] = ()
    or_class: bool = False
    """True if the import path of a user-defined class, ``module:Class``, is allowed besides ``choices``."""
    on_resume: str = ""
    """One of ``ROLES``."""
    also: Sequence[str] = ()
    """Other names of the setting on a command line."""
    operand: str = ""
    """Placeholder of a setting that stands alone on a command line, in the order of the fields: FILE;
    "[LABEL=]FILE" if it may contain an ``=``; "TEXT" for any words. A list takes all that are left."""
    takes_words: bool = False
    """True if ``--key a b`` takes all words up to the next setting, not one alone; for lists."""
    path: str = ""
    """Kind of path that it names: ``input`` (read), ``output`` (a file or folder, written whole), ``folder``
    (to which files are added), or ``beginning`` (of the names of outputs); empty for other settings."""
    entries: type | None = None
    """For a catalogue, the dataclass of an entry's options."""

    @property
    def range(self) -> str:
        """Returns the bounds in words; empty if there are none."""
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
                    f"{key}={item} is not known; choose one of {', '.join(self.choices)}"
                    + self.or_class * ", or module:Class"
                )
            if not self.range or not isinstance(item, int | float):
                continue
            # neither NaN, nor infinity, nor a whole number beyond every float
            holds = (
                abs(item) <= sys.float_info.max
                and (self.least is None or item >= self.least)
                and (self.most is None or item <= self.most)
                and (self.above is None or item > self.above)
                and (self.below is None or item < self.below)
            )
            if not holds:
                raise ConfigError(f"{key}={item} is out of range; it must be {self.range}")


def rule_of(item: Field[Any]) -> Rule:
    """Returns the rule of a field; an empty one if the field was not made by ``setting``."""
    return item.metadata.get("setting", Rule())


def default_of(item: Field[Any]) -> Any:
    """Returns the default of a field."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def listed(value: Any) -> list[Any]:
    """Returns the value of a setting that takes one item or a list of them as a list; an empty list for
    null."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


Base = TypeVar("Base", bound="Settings")


class _OwnSignature:
    """The signature of the constructor, which ``Settings.__new__`` hides."""

    def __get__(self, made: Any, kind: type[Any]) -> inspect.Signature:
        given = inspect.signature(kind.__init__)
        return given.replace(parameters=list(given.parameters.values())[1:])


@dataclass
class Settings:
    """Base of the settings dataclasses. They are not frozen, because Hydra refuses overrides of frozen
    ones."""

    __signature__ = _OwnSignature()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Raises TypeError for unknown names, listing all of them with the lines to write."""
        refuse(given, f"{cls.__name__}()", inspect.signature(cls).parameters)
        return super().__new__(cls)

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], prefix: str) -> Self:
        """Returns the settings that ``given`` names, checked. None stands for the default. ``prefix``
        precedes their names in messages.

        Raises:
            ConfigError: an unknown name, or a value of the wrong type or out of range.
        """
        known = [item.name for item in fields(cls)]
        for name in given:
            if name not in known:
                near = hint(name) or suggestion(str(name), known, otherwise=f"; it has {', '.join(known)}")
                raise ConfigError(f"unknown setting {prefix}{name}{near}")
        settings = cls(**{name: value for name, value in given.items() if value is not None})
        settings.check(prefix)
        return settings

    def check(self, prefix: str = "") -> None:
        """Checks the type, bounds and choices of every field, including nested settings, calls
        ``check_together``, and compares outputs with inputs.

        Args:
            prefix: the dotted name of this section, with its dot, for the messages.

        Raises:
            ConfigError: names the key, the value and what is allowed.
        """
        self.check_values(prefix)
        _check_paths(self, prefix)

    def check_values(self, prefix: str) -> None:
        """Checks the values as ``check`` does, but does not compare outputs with inputs; for settings that
        are parts of others. Replaces ``~``."""
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
        """Checks combinations of settings. It is called when each setting alone is valid."""

    def unused(self) -> Iterator[str]:
        """Yields the settings that have no effect beside the others. The name of a section, or
        ``section.name``, stands for everything below it."""
        yield from ()

    def part(self, base: type[Base]) -> Base:
        """Returns the part of these settings that the class ``base`` declares."""
        return base(**{item.name: getattr(self, item.name) for item in fields(base)})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a settings object, its default and its rule."""

    owner: Settings
    name: str
    default: Any
    rule: Rule

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name)


def leaves(settings: Settings, prefix: str = "") -> dict[str, Leaf]:
    """Returns every value of ``settings`` by its dotted key."""
    by_key: dict[str, Leaf] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Settings):
            by_key |= leaves(value, f"{prefix}{item.name}.")
        else:
            by_key[prefix + item.name] = Leaf(settings, item.name, default_of(item), rule_of(item))
    return by_key


def unused_keys(settings: Settings, prefix: str = "") -> list[str]:
    """Returns the keys of the settings that have no effect beside the others, including sections."""
    found = []
    for name in settings.unused():
        key = prefix + name
        found += [leaf for leaf in leaves(settings, prefix) if leaf == key or leaf.startswith(f"{key}.")]
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, Settings):
            found += unused_keys(value, f"{prefix}{item.name}.")
    return list(dict.fromkeys(found))


def drop_unused(settings: Settings) -> list[str]:
    """Sets unused settings to their defaults, so that nothing reads them. Returns the keys that had another
    value."""
    known = leaves(settings)
    changed = []
    for key in unused_keys(settings):
        leaf = known[key]
        if leaf.value != leaf.default:
            setattr(leaf.owner, leaf.name, leaf.default)
            changed.append(key)
    return changed


def unused_note(keys: Collection[str]) -> str:
    """Returns the line about settings that were given and have no effect."""
    return f"no effect here: {', '.join(keys)}"


def _check_paths(settings: Settings, prefix: str) -> None:
    """Raises ConfigError for an input that can be read only once, and for an output that would replace an
    input."""
    known = leaves(settings, prefix)
    entries: dict[str, Any] = {}
    for leaf in known.values():
        if leaf.rule.entries:
            entries |= leaf.value
    inputs = []
    outputs = []
    for key, leaf in known.items():
        role = leaf.rule.path
        for named in texts_in(leaf.value) if role else []:
            if role != "input":
                outputs.append((key, named, role))
                continue
            for text in texts_in(entries.get(named, named)):
                for path in matching_paths(text) or matching_paths(text.partition("=")[2]):  # LABEL=FILE
                    inputs.append((key, text, path))
                    if kind := odd_kind(path):
                        raise ConfigError(
                            f"{key}={text}: {path} is {kind}, expected a file or a folder; write its content"
                            " to a file first"
                        )
    for key, target, role in outputs:
        if target.encode(errors="replace").decode() != target:
            raise ConfigError(
                f"{key}={target!r} is not UTF-8, which names of outputs must be; choose another name for {key}"
            )
        for read_by, text, path in inputs:
            if role != "beginning" and is_replaced(path, Path(target), adds=role == "folder"):
                raise ConfigError(
                    f"{key}={target} would overwrite what {read_by}={text} reads; choose another name"
                    f" for {key}"
                )


_type_hints = cache(get_type_hints)
_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_ACCEPTED: dict[Any, Any] = {float: int | float, list: list | tuple, dict: Mapping}


def check_type(key: str, value: Any, hint: Any) -> None:
    """Raises ConfigError if ``value`` is not of the type ``hint``. A whole number is a number; true and false
    are not."""
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if Any in allowed or (value is None and NoneType in allowed):
        return
    kinds = [kind for kind in allowed if kind is not NoneType]
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
    """Returns path and arguments of an entry: ``module:Class``, or a mapping ``{use: module:Class, argument:
    value}``. Raises ConfigError for others."""
    if isinstance(entry, str):
        return entry, {}
    if not (isinstance(entry, Mapping) and isinstance(entry.get("use"), str)):
        raise ConfigError(
            f"{setting}: {entry!r} has no import path; write module:Class or {{use: module:Class, argument:"
            " value}"
        )
    return str(entry["use"]), {str(key): value for key, value in entry.items() if key != "use"}


def store_name(key: str, value: str) -> str:
    """Returns the value of a setting that takes ``auto``, ``off`` or a folder."""
    if value in ("False", "false"):  # YAML reads a bare off so
        return "off"
    if value.strip() in ("", "True", "true"):
        raise ConfigError(f"{key}={value!r} is neither auto, nor off, nor the name of a folder")
    return value


def flat_values(settings: Settings, roles: Collection[str] = ROLES) -> dict[str, Any]:
    """Returns the values of the settings whose role is one of ``roles``, including nested ones, by their
    dotted keys."""
    return {key: leaf.value for key, leaf in leaves(settings).items() if leaf.rule.on_resume in roles}


def type_name(kind: Any) -> str:
    """Returns the type as ``--help`` writes it."""
    kind = without_none(kind)
    if get_origin(kind) is list:
        return f"list of {type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "catalogue"
    words = {str: "text", int: "integer", float: "number", bool: "true|false", Any: "name, path or list"}
    return words.get(kind, kind.__name__ if inspect.isclass(kind) else str(kind))


def without_none(kind: Any) -> Any:
    """Returns the type of a setting without None."""
    if get_origin(kind) in (Union, UnionType):
        rest = [part for part in get_args(kind) if part is not NoneType]
        return rest[0] if len(rest) == 1 else kind
    return kind


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the command line. ``owner`` is the class that has the field."""

    key: str
    type: Any
    default: Any
    owner: type
    rule: Rule

    @property
    def is_open(self) -> bool:
        """True if any key below it is accepted (a catalogue)."""
        return get_origin(self.type) is dict

    @property
    def doc(self) -> str:
        """Returns the string under the field. It is read from the source of the class, which takes longer
        than everything else here."""
        return _field_docs(self.owner).get(self.key.rpartition(".")[2], "")

    @property
    def takes_text(self) -> bool:
        """True if the value is one text, taken literally."""
        return without_none(self.type) is str

    @property
    def takes_texts(self) -> bool:
        """True if the value is a text or a list of texts: paths and names."""
        return self.type is Any or without_none(self.type) == list[str]


def settings(config_class: type, prefix: str = "") -> list[Setting]:
    """Returns all settings of ``config_class`` in the order of their fields, with dotted keys and nested
    classes in place."""
    found: list[Setting] = []
    hints = _type_hints(config_class)
    for item in fields(config_class):
        key = prefix + item.name
        kind = hints[item.name]
        if is_dataclass(kind) and isinstance(kind, type):
            found += settings(kind, f"{key}.")
        else:
            found.append(Setting(key, kind, default_of(item), config_class, rule_of(item)))
    return found


def sections(config_class: type) -> dict[str, type]:
    """Returns the nested classes by their dotted names; the root is the empty name."""
    owners = {entry.key.rpartition(".")[0]: entry.owner for entry in settings(config_class)}
    return {"": config_class, **owners}


@cache  # reading a source file takes longer than all else that --help does
def _field_docs(config_class: type) -> dict[str, str]:
    """Returns the string literals under fields, including inherited ones; none for a class without source
    (typed at a prompt)."""
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


def quoted(value: str, *, resolves: bool = False) -> str:
    """Returns the value in quotes, so that it is taken literally. With ``resolves``, ``${...}`` still stands
    for another setting."""
    escaped = value if resolves else re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", escaped)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def typed(value: Any) -> str:
    """Returns a value of any type as a command line reads it back."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _PLAIN.fullmatch(value) else quoted(value)


def overrides(values: Mapping[str, Any]) -> list[str]:
    """Returns the settings as arguments of a command line, each read back as it is. Settings that are None
    are left out."""
    return [f"{key}={typed(value)}" for key, value in values.items() if value is not None]
