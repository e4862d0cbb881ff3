"""YAML written by users: read as plain values, never as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dpr.core.errors import InputError
from dpr.formats.text_input import open_input


def read_yaml(path: str | Path) -> Any:
    """The value in a YAML file: mappings, lists, texts, numbers, true, false and null.

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
        _require_plain(root, set())
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


def _require_plain(node: Any, seen: set[int]) -> None:
    """Raises YAMLError for an alias, which may stand for more than fits, and for a key that stands twice."""
    if id(node) in seen:
        raise yaml.MarkedYAMLError(problem="this value is named again; aliases are not read", problem_mark=node.start_mark)
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _require_plain(child, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, child in node.value:
            name = str(key.value)
            if name in lines:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} is also in line {lines[name]}", problem_mark=key.start_mark
                )
            lines[name] = key.start_mark.line + 1
            _require_plain(child, seen)
