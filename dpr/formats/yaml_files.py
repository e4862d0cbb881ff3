"""YAML written by users: read as plain values, never as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dpr.core.errors import InputError
from dpr.formats.text_input import open_input


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    problem = f"the key {key.value!r} is also in line {lines[key.value]}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> Any:
    """The value in a YAML file: mappings, lists, texts, numbers, true, false and null.

    Raises:
        InputError: missing, unreadable, or not such YAML; names the line.
    """
    file = Path(path)
    with open_input(file) as stream:
        content = stream.read()
    try:
        return _Loader(content.decode("utf-8-sig")).get_single_data()
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start + 1} is not UTF-8", file=file, hint="save the file as UTF-8") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that does not exist
        mark = getattr(error, "problem_mark", None)
        found = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"not YAML: {found}", file=file, line=mark and mark.line + 1) from None
