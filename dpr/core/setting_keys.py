"""Every key of a command that can be set: what its command line reads, and what ``--help`` says of it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from dpr.core.setting_rules import Rule, rule_of
from dpr.core.settings import without_none

_PLAIN = re.compile(
    r"(?!(null|true|false|yes|no|on|off|inf|infinity|nan)$)[a-z./][\w./+-]*", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One settable key. ``owner``: the class that has the field; ``is_open``: any key below it is accepted (a
    catalogue)."""

    key: str
    type: Any
    default: Any
    owner: type
    is_open: bool = False
    rule: Rule = field(default_factory=Rule)
    entries: type | None = None
    """Of a catalogue: the dataclass of an entry's options."""

    @property
    def doc(self) -> str:
        """The string under the field. It is read from the source of the class, which takes longer than all
        else here together."""
        return _field_docs(self.owner).get(self.key.rpartition(".")[2], "")

    @property
    def takes_text(self) -> bool:
        """Whether the value is one text, to be taken literally."""
        return without_none(self.type) is str

    @property
    def takes_texts(self) -> bool:
        """Whether the value is a text or a list of texts: paths and names."""
        return self.type is Any or without_none(self.type) == list[str]


def settings(config_class: type, prefix: str = "") -> list[Setting]:
    """All settings of ``config_class`` in the order of their fields, those of mix-ins last, nested classes in
    place, keys dotted."""
    return [entry for entry in _walk(config_class, prefix) if isinstance(entry, Setting)]


def sections(config_class: type) -> dict[str, str]:
    """Dotted names of the nested classes with their docstrings; the root is the empty name."""
    return dict(entry for entry in _walk(config_class, "") if isinstance(entry, tuple))


def _walk(config_class: type, prefix: str) -> Iterator[Setting | tuple[str, str]]:
    yield prefix.rstrip("."), inspect.cleandoc(config_class.__doc__ or "")
    hints = get_type_hints(config_class)
    mixed_in = {
        item.name
        for base in config_class.__mro__
        if getattr(base, "_is_mixin", False)
        for item in fields(base)
    }
    for item in sorted(fields(config_class), key=lambda item: item.name in mixed_in):
        key, kind = prefix + item.name, hints[item.name]
        if is_dataclass(kind) and isinstance(kind, type):
            yield from _walk(kind, key + ".")
        else:
            default = item.default if item.default_factory is MISSING else item.default_factory()
            default = None if default is MISSING else default
            is_open, entries = get_origin(kind) is dict, item.metadata.get("entries")
            yield Setting(key, kind, default, config_class, is_open, rule_of(item), entries)


@cache  # reading a source file takes longer than all else that --help does
def _field_docs(config_class: type) -> dict[str, str]:
    """The string literals under fields, inherited ones included; a class without source (typed at a prompt)
    has none."""
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
    """The value in quotes, so that all of it is taken as it is; with ``resolves``, but for ``${...}``, which
    stands for another setting."""
    escaped = re.sub(
        r"(\\*)'", lambda match: match.group(1) * 2 + "\\'", value if resolves else unresolved(value)
    )
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


def typed(value: Any) -> str:
    """A value of any type as a command line reads it back."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {typed(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, Path):
        value = str(value)
    return (
        json.dumps(value)
        if not isinstance(value, str)
        else value
        if _PLAIN.fullmatch(value)
        else quoted(value)
    )


def overrides(values: Mapping[str, Any]) -> list[str]:
    """The settings as a command line that is composed of them, each read back as it is; those that are None
    are left out."""
    return [f"{key}={typed(value)}" for key, value in values.items() if value is not None]


def unresolved(value: Any) -> Any:
    """A value for a file of settings, every text in it read back as it is."""
    if isinstance(value, Mapping):
        return {key: unresolved(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unresolved(item) for item in value]
    return (
        re.sub(r"(\\*)\$\{", lambda match: match.group(1) * 2 + "\\${", value)
        if isinstance(value, str)
        else value
    )
