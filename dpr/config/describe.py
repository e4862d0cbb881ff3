"""Reads a tree of config dataclasses as a flat list of settings: what ``--help`` prints and what keys are checked against."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Setting:
    """One settable key. ``doc`` is the string under the field; ``is_open``: any key below it is accepted (a catalogue)."""

    key: str
    type: Any
    default: Any
    doc: str
    is_open: bool = False

    @property
    def takes_text(self) -> bool:
        """The value is one text, to be taken literally."""
        return _without_none(self.type) is str

    @property
    def takes_texts(self) -> bool:
        """The value is a text or a list of texts: paths and names."""
        return self.type is Any or _without_none(self.type) == list[str]


def settings(config_class: type, prefix: str = "") -> list[Setting]:
    """All settings of ``config_class`` in the order of their fields, nested classes in place, keys dotted."""
    hints, docs = get_type_hints(config_class), _field_docs(config_class)
    found: list[Setting] = []
    for item in fields(config_class):
        key, kind = prefix + item.name, hints[item.name]
        if is_dataclass(kind) and isinstance(kind, type):
            found.extend(settings(kind, key + "."))
        else:
            found.append(Setting(key, kind, _default(item), docs.get(item.name, ""), get_origin(kind) is dict))
    return found


def sections(config_class: type, prefix: str = "") -> dict[str, str]:
    """Dotted names of the nested classes with their docstrings; the root is the empty name."""
    found = {prefix: inspect.cleandoc(config_class.__doc__ or "")}
    hints = get_type_hints(config_class)
    for item in fields(config_class):
        kind = hints[item.name]
        if is_dataclass(kind) and isinstance(kind, type):
            found.update(sections(kind, f"{prefix}.{item.name}" if prefix else item.name))
    return found


def type_name(kind: Any) -> str:
    """The type in a reader's words."""
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


def _default(item: Field[Any]) -> Any:
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else None


def _field_docs(config_class: type) -> dict[str, str]:
    """The string literals under fields, inherited ones included; a class without source (typed at a prompt) has none."""
    docs: dict[str, str] = {}
    for base in reversed(config_class.__mro__[:-1]):
        docs |= _own_field_docs(base)
    return docs


def _own_field_docs(config_class: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(config_class)))
    except (OSError, TypeError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for node, following in pairwise(body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[node.target.id] = " ".join(str(following.value.value).split())
    return docs
