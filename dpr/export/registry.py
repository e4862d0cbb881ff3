"""Folders that other libraries load: what each format promises, and where its module is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.export.settings import MODEL_FORMATS
from dpr.models.biencoder import BiEncoder


@dataclass(frozen=True)
class Format:
    """How a model is written in a format, and how the library that it is for encodes with what was written."""

    require_sayable: Callable[[BiEncoder, str], None]
    """``require_sayable(model, source)``: InputError names what the format cannot say; ``source`` is the model's name in messages."""
    write: Callable[..., None]
    """``write(model, folder, *, source)`` fills an existing folder, once ``require_sayable`` has passed. ``model`` has no adapters any
    more."""
    encode: Callable[[Path, str, Sequence[Any]], np.ndarray]
    """``encode(folder, side, items)``: vectors (N, D) float32 of questions (``side`` question, texts) or passages (ctx, ``Passage``), by
    the other library alone."""
    usage: Callable[[BiEncoder], str]
    """Lines of Python that load the folder PATH with that library and encode a question and a passage."""
    library: str
    """The package that ``encode`` imports."""
    install: str
    """What pip installs for it."""
    sides: tuple[str, ...] = ("question", "ctx")
    """Those that ``encode`` knows."""
    bar: float = 1e-5
    """The largest difference of a number of a vector, in units of the vectors' largest number if that is above 1."""


def format_of(name: str) -> Format:
    """The format of a name, whose module is imported now."""
    found: Format = importlib.import_module(MODEL_FORMATS[name]).FORMAT
    return found
