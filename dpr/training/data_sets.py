"""The data sets of a run: given from Python or named in settings, opened, checked, and read from token stores."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.catalogue import EntryKind, published_form, read_entry, unknown_entry
from dpr.core.distributed import current_ranks
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.paths import matching_paths
from dpr.core.settings import listed
from dpr.core.user_classes import create_object
from dpr.data.collator import as_encoded
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.data.tokens import StoredPairs, StoredTokens, open_tokens
from dpr.data.training_data import OpenedSets, SampleSource, TrainingData, spread_rows
from dpr.data.words import look_swapped
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.training_files.registry import look_at
from dpr.models.towers import Towers
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)
_TRAINING_SETS = EntryKind(
    "datasets",
    "data set",
    DataSetSettings,
    ("dpr.data.biencoder_data.JsonQADataset", "dpr.data.biencoder_data.JsonlQADataset"),
    ("total_data_size", "data_range_start"),
)
_LOOKED_AT = 64
DataSets = Any
"""A training set, or a list of them, each alone or with its ``DataSetSettings`` (``opened_sets``)."""


@dataclass(frozen=True, slots=True)
class NamedSource:
    """One training or dev set. ``name`` is unique within its list and used in logs and metric keys."""

    name: str
    files: tuple[Path, ...]
    options: DataSetSettings


def resolve_training_files(names: Any, catalogue: Mapping[str, Any]) -> list[NamedSource]:
    """Resolves the value of ``train_datasets`` or ``dev_datasets``.

    Args:
        names: a catalogue key, a path, a glob (its files are one set), the options of an entry (``{file:
            corpus.tsv, pairs: crops}``), or a list of these; None gives an empty list.
        catalogue: the ``datasets`` settings, name -> options. Relative files are taken from the working
        directory.

    Raises:
        ConfigError: a name is unknown, a file is missing, an option is unknown or of the wrong type.
    """
    sources: dict[str, NamedSource] = {}
    for name in [names] if isinstance(names, Mapping) else listed(names):
        entry: Any = None
        if isinstance(name, Mapping) and isinstance(file := name.get("file"), str):
            short_name = _short_name(Path(file).name)
            entry = name
        elif not isinstance(name, str) or not name:
            raise ConfigError(
                f"{name!r} is not a data set; give names of the catalogue, paths, entries with a file, or a"
                " list of them"
            )
        elif name in catalogue and not Path(name).is_file():
            short_name = name
            entry = catalogue[name] or {}
        else:
            path = Path(name)
            short_name = _short_name(path.name)
            options = DataSetSettings()
            files = _expand(name)
            if not files and path.is_dir():
                if not look_at(path)[0]:
                    raise ConfigError(f"{name} is a folder; name its files, e.g. '{name.rstrip('/')}/*.json'")
                files = (path,)
            elif not files and glob.has_magic(name):
                raise ConfigError(f"no file matches {name}")
            elif not files:
                raise unknown_entry(_TRAINING_SETS, name, catalogue)
        if entry is not None:
            options = read_entry(_TRAINING_SETS, short_name, entry)
            files = _entry_files(short_name, options)
        unique = short_name
        number = 2
        while unique in sources:
            unique = f"{short_name}_{number}"
            number += 1
        sources[unique] = NamedSource(unique, files, options)
    return list(sources.values())


def _entry_files(name: str, options: DataSetSettings) -> tuple[Path, ...]:
    if options.reader is not None and options.file is None:
        return ()
    files: list[Path] = []
    for entry in listed(options.file) or [None]:
        if not isinstance(entry, str) or not entry:
            raise ConfigError(
                f"datasets.{name}.file={entry!r} is not a path; set datasets.{name}.file=<path>"
            )
        files += _expand(entry) or [published_form(_TRAINING_SETS, name, entry, options.source)]
    return tuple(files)


def _expand(pattern: str) -> tuple[Path, ...]:
    return tuple(path for path in matching_paths(pattern) if path.is_file())


def _short_name(file_name: str) -> str:
    """Returns a name without its endings: ``nq-train.json.gz`` -> ``nq-train``; ``part-*.jsonl`` -> ``part``."""
    stem = file_name
    for suffix in (".gz", ".jsonl", ".json", ".tsv", ".parquet"):
        stem = stem.removesuffix(suffix)
    return "".join("" if letter in "*?[]" else letter for letter in stem).strip("-_. ") or "data"


def user_data(path: str, files: Sequence[Path], *, name: str) -> TrainingData:
    """Returns the data set that a catalogue entry's ``reader`` names, called with the entry's files."""
    setting = f"datasets.{name}.reader"
    data: TrainingData = create_object(path, TrainingData, setting=setting, values=(list(files),))
    data.name = name
    if not len(data):
        raise ConfigError(f"{setting}={path}: the data set has no rows")
    return data


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


def opened_for_run(sets: DataSets, name: str) -> OpenedSets:
    """Returns the data sets given to ``BiEncoderTrainer``, opened (``opened_sets``).

    Raises:
        InputError, ConfigError: as ``opened_sets``; or the options of an open set say where to read it.
    """
    pairs = [
        item if isinstance(item, tuple) else (item, DataSetSettings()) for item in opened_sets(sets, name)
    ]
    if not pairs and name == "train":
        raise ConfigError("train_sets is empty; give a file, a list of dictionaries, or a data set")
    for source, options in pairs:
        options.check(f"datasets.{source.name}.")
        if options.file or options.reader or options.source:
            raise ConfigError(
                f"the options of {source.name} name files, but the data set is already open; leave file,"
                " reader and source out"
            )
    return pairs


def check_texts(source: SampleSource, options: DataSetSettings, model: Towers) -> None:
    """Warns if questions and passages of a set seem to be swapped.

    Raises:
        InputError: most words of the set are unknown to the tokenizer.
    """
    samples: list[Any] = [source[row] for row in spread_rows(len(source), _LOOKED_AT)]
    texts = [sample.question for sample in samples]
    passages = [as_encoded(sample.positives[0], options) for sample in samples if sample.positives]
    positives = [sample.positives[0].text for sample in samples if isinstance(source, TrainingSet)]
    if positives and (said := look_swapped(texts, positives)):
        logger.warning("%s: %s", source.name, said)
    tokens = model.tensorizer.question_tokens(texts, **options.of_questions)
    tokens += model.tensorizer.passage_tokens(passages)
    flat = np.array([token for sequence in tokens for token in sequence], dtype=np.int64)
    model.tensorizer.check_known(flat, source.name)


def with_token_stores(sets: OpenedSets, settings: TrainingSettings, model: Towers) -> OpenedSets:
    """Returns the sets of a run with the model's prompts, their texts checked, and their tokens read from token
    stores as ``train.token_store`` says. User-defined sets stay as they are, as do sets already read from
    stores.

    Raises:
        ConfigError: a set has another prompt than the model, or the folder of the stores cannot be written.
        InputError: as ``check_texts``.
    """
    sets = [(source, options.agreed(source.name, model.tensorizer.text)) for source, options in sets]
    for source, options in sets:
        check_texts(source, options, model)
    train = settings.train
    folder = None if train.token_store == "auto" else train.token_store
    if train.token_store == "off":
        return sets
    # Tokenising everything first pays only in a run that is long enough.
    global_batch_size = train.global_batch_size or train.batch_size * current_ranks().world_size
    questions = train.max_steps * global_batch_size * train.gradient_accumulation_steps
    sees_most_rows = not train.max_steps or questions >= sum(len(source) for source, _ in sets) // 2
    build = folder is not None or (sees_most_rows and not train.dry_run)
    for number, (source, options) in enumerate(sets):
        if isinstance(source, TrainingSet | PseudoPairs):
            stored = open_tokens(source, model.tensorizer, options, folder=folder, build=build)
            sets[number] = stored, options
        elif not isinstance(source, StoredTokens | StoredPairs):
            logger.info(
                "%s: read by a user-defined class, so its texts are tokenised as they come", source.name
            )
    return sets
