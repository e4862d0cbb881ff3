"""A format of folders for another library."""

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
    """A format: how a model is written in it, and how the library it is for encodes with the written files."""

    write: Callable[..., None]
    """``write(model, folder, *, source)`` fills an existing folder. InputError names the properties that the
    format cannot express. ``source`` is the model's name in messages; ``model`` has no adapters any more."""
    encode: Callable[[Path, str, Sequence[Any]], np.ndarray]
    """``encode(folder, side, items)`` returns vectors (N, D) float32 of questions (``side`` question, texts)
    or passages (ctx, ``Passage``, all with a title or all without), by the other library alone."""
    usage: Callable[[BiEncoder], str]
    """Lines of Python that load the folder PATH with that library and encode a question and a passage."""
    library: str
    """Package that ``encode`` needs, by its name for pip."""
    bar: float = 1e-5
    """Largest difference of a number of a vector, in units of the vectors' largest number if above 1."""


def format_of(name: str) -> Format:
    """Returns the format of a name; its module is imported only now."""
    module, _, attribute = MODEL_FORMATS[name].partition(":")
    form: Format = getattr(importlib.import_module(module), attribute)
    return form
