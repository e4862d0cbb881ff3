"""The settings of a ladder's training stages: the user's, with the files of the round put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dpr.assembly.sources import NamedSource
from dpr.core.errors import ConfigError
from dpr.core.settings import DECIDING, flat_values
from dpr.data.settings import DataSetSettings
from dpr.training.command_settings import BiEncoderTrainConfig


class Prefixes:
    """What is put before passages and questions, as the training sets say.

    Args:
        of_questions_asked: whether the model is asked questions of no training set, too.

    Raises:
        ConfigError: they are to be asked, and the sets do not agree on how.
    """

    def __init__(self, sources: Sequence[NamedSource], *, of_questions_asked: bool) -> None:
        self.of_passages: dict[str, str] = {}
        """Each passage prefix, with the name of the first set that has it; the corpus is embedded with each."""
        for source in sources:
            self.of_passages.setdefault(source.options.passage_prefix or "", source.name)
        of_questions = {source.options.before_questions() or "": source.name for source in sources}
        if of_questions_asked:
            for key, found in (("query_prefix", of_questions), ("passage_prefix", self.of_passages)):
                if len(found) > 1:
                    which = ", ".join(f"{name} has {prefix!r}" for prefix, name in found.items())
                    raise ConfigError(
                        f"ladder.questions: with which {key}? {which}; evaluate by hand with dpr retrieve, or give all sets one"
                    )
        self.of_questions = next(iter(of_questions), "")


def encoding_prefixes(source: NamedSource) -> dict[str, str]:
    """The settings of ``dpr mine`` by which a set's questions, and the corpus, are encoded as in training."""
    prefixes = {"query_prefix": source.options.before_questions(), "passage_prefix": source.options.passage_prefix}
    return {f"mine.{key}": prefix for key, prefix in prefixes.items() if prefix}


def existing(key: str, path: str) -> Path:
    """A file that a setting names.

    Raises:
        ConfigError: it is not there.
    """
    if not (found := Path(path).expanduser()).exists():
        raise ConfigError(f"{key}={path} does not exist")
    return found


def data_set_entry(source: NamedSource, mined: Path | None) -> dict[str, Any]:
    """The catalogue entry of a training set: the user's options, with the mined file in place of the files."""
    entry = {**differing(source.options, DataSetSettings()), "file": [str(file) for file in source.files] if mined is None else str(mined)}
    entry.pop("source", None)
    return entry


def train_settings(
    config: BiEncoderTrainConfig, entries: Mapping[str, Any], places: Sequence[int], *, output_dir: Path, processes: int
) -> BiEncoderTrainConfig:
    """What ``dpr train`` is told: the user's training settings, on the data sets of ``entries``.

    The pool is stated, so that it stays the same when the run is gone on with by another number of processes.

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
        "datasets": {**_entries_named(config), **entries},
    }
    return BiEncoderTrainConfig(**values)


def deciding(config: BiEncoderTrainConfig) -> dict[str, Any]:
    """The settings that decide what a training ends with, by their dotted names; files count by their content, elsewhere."""
    entries = {key: value for key, value in _flat(config.datasets, "datasets.").items() if not _names_files(key, value)}
    return flat_values(config, DECIDING) | entries


def differing(config: Any, default: Any) -> dict[str, Any]:
    """The values of a tree of dataclasses that are not the default ones, as nested dictionaries."""
    found: dict[str, Any] = {}
    for item in fields(default):
        value, usual = getattr(config, item.name), getattr(default, item.name)
        if is_dataclass(usual):
            if inside := differing(value, usual):
                found[item.name] = inside
        elif value != usual:
            found[item.name] = value
    return found


def _entries_named(config: BiEncoderTrainConfig) -> dict[str, Any]:
    """The catalogue's entries of the dev sets."""
    names = config.dev_datasets if isinstance(config.dev_datasets, list | tuple) else [config.dev_datasets]
    return {name: config.datasets[name] for name in names if name in config.datasets}


def _names_files(key: str, value: Any) -> bool:
    """Whether a catalogue key is an entry's file; an entry that is no more than a file is one itself."""
    return key.endswith((".file", ".source")) or (key.count(".") == 1 and isinstance(value, str | list | tuple))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat
