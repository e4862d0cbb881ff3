"""YAML read as plain values, never as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dpr.core.errors import InputError
from dpr.formats.text_input import open_input

_MOST_VALUES = 100_000  # values of a YAML file whose aliases stand for copies


def read_yaml(path: str | Path) -> Any:
    """Returns the value in a YAML file: mappings, lists, texts, numbers, true, false and null.

    Raises:
        InputError: missing, unreadable, or not such YAML; names the line.
    """
    file = Path(path)
    with open_input(file) as stream:
        content = stream.read()
    try:
        loader = yaml.SafeLoader(content.decode("utf-8-sig"))
        root = loader.get_single_node()
        if root is None:
            return None
        _count(root, {})
        return loader.construct_document(root)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"0x{content[error.start]:02x} is not UTF-8", file=file, line=line, hint="save the file as UTF-8"
        ) from None
    except yaml.MarkedYAMLError as error:
        found = ", ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark
        raise InputError(f"not YAML: {found}", file=file, line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that does not exist
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", file=file) from None


def _count(node: Any, sizes: dict[int, int]) -> int:
    """Returns the number of values in a node if every alias stands for a copy of the node it names. Raises
    YAMLError for a key that occurs twice."""
    if id(node) in sizes:
        return sizes[id(node)]
    sizes[id(node)] = _MOST_VALUES  # for an alias inside the node that it names
    size = 1
    lines: dict[str, int] = {}
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        if isinstance(child, tuple):
            key, child = child
            name = str(key.value)
            if name in lines:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} is also in line {lines[name]}", problem_mark=key.start_mark
                )
            lines[name] = key.start_mark.line + 1
        size += _count(child, sizes)
        if size >= _MOST_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"its aliases make it more than {_MOST_VALUES:,} values",
                problem_mark=child.start_mark,
            )
    sizes[id(node)] = size
    return size
