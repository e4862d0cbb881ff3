"""A user's own classes and functions, named by import path on the command line or in a configuration file, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.lazy import import_object
from dpr.data.training_data import TrainingData
from dpr.training.callbacks import Callback, FunctionCallback
from dpr.training.validation import QuestionMetric

_CALLBACKS = "train.callbacks"


def own_callbacks(entries: Any) -> list[Callback]:
    """The callbacks that ``train.callbacks`` names.

    Raises:
        ConfigError: an entry is no import path, no callback, or does not take the arguments it is given.
    """
    listed = entries if isinstance(entries, list | tuple) else [] if entries is None else [entries]
    return [_callback(entry) for entry in listed]


def _callback(entry: Any) -> Callback:
    if isinstance(entry, str):
        entry = {"use": entry}
    if not (isinstance(entry, Mapping) and isinstance(entry.get("use"), str)):
        raise ConfigError(f"{_CALLBACKS}: {entry!r} names nothing; write module:Class or {{use: module:Class, argument: value}}")
    path, arguments = str(entry["use"]), {str(key): value for key, value in entry.items() if key != "use"}
    found = import_object(path, setting=_CALLBACKS)
    if inspect.isclass(found):
        if not issubclass(found, Callback):
            raise ConfigError(f"{_CALLBACKS}={path} is not a subclass of dpr.training.callbacks.Callback")
        return _called(found, path, **arguments)
    if isinstance(found, Callback):
        raise ConfigError(f"{_CALLBACKS}={path} is an object; name its class, and its arguments with {{use: ..., argument: value}}")
    if not callable(found):
        raise ConfigError(f"{_CALLBACKS}={path} is neither a class nor a function")
    return _called(FunctionCallback, path, found, **arguments)


def _called(make: Any, path: str, *values: Any, **arguments: Any) -> Callback:
    try:
        inspect.signature(make).bind(*values, **arguments)
    except TypeError as error:
        raise ConfigError(f"{_CALLBACKS}={path}: {error}; arguments given: {', '.join(arguments) or 'none'}") from None
    return make(*values, **arguments)


def own_metrics(paths: Sequence[str] | None) -> dict[str, QuestionMetric]:
    """The functions that ``train.metrics`` names, by their names."""
    found: dict[str, QuestionMetric] = {}
    for path in paths or ():
        metric = import_object(path, setting="train.metrics")
        name = path.rpartition(":")[2].rpartition(".")[2]
        if not callable(metric) or inspect.isclass(metric):
            raise ConfigError(f"train.metrics={path} is not a function of (scores, labels)")
        if name in found or name in ("nll_loss", "in_batch_acc", "avg_rank", "avg_rank_low", "avg_rank_high"):
            raise ConfigError(f"train.metrics={path}: there is a figure {name} already; give the function another name")
        found[name] = metric
    return found


def own_data(path: str, files: Sequence[Path], *, name: str) -> TrainingData:
    """The data set that a catalogue entry's ``reader`` names, called with the entry's files."""
    setting = f"datasets.{name}.reader"
    found = import_object(path, setting=setting)
    if not (inspect.isclass(found) and issubclass(found, TrainingData)):
        raise ConfigError(f"{setting}={path} is not a subclass of dpr.data.training_data.TrainingData")
    make: Any = found
    data: TrainingData = make(list(files))
    data.name = name
    if not len(data):
        raise ConfigError(f"{setting}={path}: the data set has no rows")
    return data
