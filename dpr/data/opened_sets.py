"""Data sets given as files, rows or objects, opened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError


def opened_sets(sets: Any, name: str) -> list[Any]:
    """Returns one data set, or each of a list of them, as a ``SampleSource``, or as a pair of that and the
    options given with it.

    Anything that ``open_training_set`` takes is opened and named after its file, else ``name``. A list of
    dictionaries, or of questions with their passages, is one data set. A dictionary names several.

    Raises:
        InputError: as ``open_training_set``.
        ConfigError: something else was given.
    """
    if type(sets) is dict:
        return [each for key, part in sets.items() for each in opened_sets([part], key)]
    is_one = not isinstance(sets, list | tuple) or any(map(_is_row, sets))
    opened: list[Any] = []
    taken: set[str] = set()
    for item in [sets] if is_one or _is_pair(sets) else sets:
        source, *options = item if _is_pair(item) else (item,)
        if not hasattr(source, "fingerprint") or hasattr(source, "column_names"):
            stem = Path(source).name.split(".")[0] if isinstance(source, str | Path) else ""
            plain = stem if stem.isidentifier() else name
            names = (plain, *(f"{plain}_{number}" for number in range(2, len(taken) + 2)))
            free = next(each for each in names if each not in taken)
            taken.add(free)
            # every format of files; a data set of the user's needs none
            from dpr.formats.training_sets import open_training_set

            source = open_training_set(source, name=free)
        elif missing := [
            part
            for part in ("name", "__len__", "__getitem__", "known_positives")
            if not hasattr(source, part)
        ]:
            raise ConfigError(
                f"a data set of type {type(source).__name__} has no {missing[0]}; dpr.data.training_data says"
                " what it needs"
            )
        opened.append((source, *options) if options else source)
    return opened


def _is_row(item: Any) -> bool:
    """True for a dictionary, an InputExample of sentence-transformers, or a question and its passages. Texts
    that look like files are taken for files."""
    if isinstance(item, list | tuple) and len(item) > 1 and all(isinstance(text, str) for text in item):
        return not any(re.fullmatch(r"\S*[./*]\S*", text) or os.path.exists(text) for text in item)
    if isinstance(item, Mapping):
        return not hasattr(item, "column_names")
    return hasattr(item, "texts") and not hasattr(item, "fingerprint")


def _is_pair(item: Any) -> bool:
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and not isinstance(item[1], str | Path | Mapping | list)
        and not hasattr(item[1], "__getitem__")
    )
