"""The settings of a ladder's training stages: the user's, with the files of the round put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import DECIDING, flat_values, listed
from dpr.data.settings import DataSetSettings
from dpr.formats.checkpoints import RUN_FILE
from dpr.jobs.sources import NamedSource
from dpr.storage.durable import read_json
from dpr.training.command_settings import BiEncoderTrainConfig


def data_set_entry(source: NamedSource, mined: Path | None) -> dict[str, Any]:
    """The catalogue entry of a training set: the user's options, with the mined file in place of the files."""
    entry = {**differing(source.options, DataSetSettings()), "file": [str(file) for file in source.files] if mined is None else str(mined)}
    entry.pop("source", None)
    return entry


def train_settings(
    config: BiEncoderTrainConfig, entries: Mapping[str, Any], places: Sequence[int], *, output_dir: Path, processes: int
) -> BiEncoderTrainConfig:
    """The settings of a ``dpr train``: the user's, on the data sets of ``entries``.

    The pool's size is fixed, so that it stays the same when another number of processes resumes the run.

    Args:
        places: for each entry the number of the user's train set that it is made of, whose factors it gets.
    """

    def for_each(key: str, values: Sequence[float] | None) -> list[float] | None:
        if values is not None and len(values) != len(set(places)):
            raise ConfigError(f"{key} has {len(values)} values for {len(set(places))} train_datasets; give one for each")
        return None if values is None else [values[place] for place in places]

    train = replace(
        config.train,
        global_batch_size=config.train.global_batch_size or config.train.batch_size * processes,
        sampling=replace(config.train.sampling, weights=for_each("train.sampling.weights", config.train.sampling.weights)),
    )
    values = {item.name: getattr(config, item.name) for item in fields(BiEncoderTrainConfig)}
    values |= {
        "train": train,
        "output_dir": str(output_dir),
        "train_datasets": list(entries),
        "train_sampling_rates": for_each("train_sampling_rates", config.train_sampling_rates),
        "loss_scale_factors": for_each("loss_scale_factors", config.loss_scale_factors),
        "datasets": {name: config.datasets[name] for name in listed(config.dev_datasets) if str(name) in config.datasets} | dict(entries),
    }
    return BiEncoderTrainConfig(**values)


def deciding(config: BiEncoderTrainConfig) -> dict[str, Any]:
    """The settings that affect the result of a training, by their dotted names; files count by their content, elsewhere."""
    entries = {key: value for key, value in _flat(config.datasets, "datasets.").items() if not _names_files(key, value)}
    return flat_values(config, DECIDING) | entries


def trained_files(folder: Path) -> list[str]:
    """What a finished training has made that others read: its best and last checkpoint, and last its metrics."""
    run = read_json(folder / RUN_FILE)
    kept = {run[key] for key in ("best_checkpoint", "last_checkpoint") if run.get(key)}
    return [*sorted(kept), "metrics.json"]


def differing(config: Any, default: Any) -> dict[str, Any]:
    """The values of a tree of dataclasses that are not the default ones, as nested dictionaries."""
    changed: dict[str, Any] = {}
    for item in fields(default):
        value, usual = getattr(config, item.name), getattr(default, item.name)
        if is_dataclass(usual):
            if inside := differing(value, usual):
                changed[item.name] = inside
        elif value != usual:
            changed[item.name] = value
    return changed


def _names_files(key: str, value: Any) -> bool:
    """Whether a catalogue key is an entry's file; an entry may itself be a file."""
    return key.endswith((".file", ".source")) or (key.count(".") == 1 and isinstance(value, str | list | tuple))


def _flat(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {prefix + str(key): value}
    return flat
