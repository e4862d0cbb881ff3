"""The data sets of a run: given from Python or named in settings, opened, checked, and read from token stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.distributed import current_ranks
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.user_classes import create_object
from dpr.data.collator import as_encoded
from dpr.data.opened_sets import opened_sets
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.data.swapped_columns import look_swapped
from dpr.data.tokens import StoredPairs, StoredTokens, open_tokens
from dpr.data.training_data import OpenedSets, TrainingData, spread_rows
from dpr.formats.stored_training_set import TrainingSet
from dpr.models.towers import Towers
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)

_LOOKED_AT = 64
DataSets = Any
"""A training set, or a list of them, each alone or with its ``DataSetSettings`` (``opened_sets`` in
dpr/data/opened_sets.py)."""


def user_data(path: str, files: Sequence[Path], *, name: str) -> TrainingData:
    """Returns the data set that a catalogue entry's ``reader`` names, called with the entry's files."""
    setting = f"datasets.{name}.reader"
    data: TrainingData = create_object(path, TrainingData, setting=setting, values=(list(files),))
    data.name = name
    if not len(data):
        raise ConfigError(f"{setting}={path}: the data set has no rows")
    return data


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
                f"the options of {source.name} say where to read it, but it is open; leave file, reader and"
                " source out"
            )
    return pairs


def as_tokens(sets: OpenedSets, settings: TrainingSettings, model: Towers) -> OpenedSets:
    """Returns the sets of a run, with their tokens read from token stores as ``train.token_store`` says.
    User-defined sets stay as they are, as do sets already read from stores.

    Raises:
        ConfigError: a set has another prompt than the model, or the folder of the stores cannot be written.
        InputError: most words of a set are unknown to the tokenizer.
    """
    sets = [(source, options.agreed(source.name, model.tensorizer.text)) for source, options in sets]
    for source, options in sets:
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
