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
        return yaml.safe_load(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start + 1} is not UTF-8", file=file, hint="save the file as UTF-8") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that does not exist
        mark = getattr(error, "problem_mark", None)
        found = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"not YAML: {found}", file=file, line=mark and mark.line + 1) from None
