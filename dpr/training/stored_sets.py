"""The sets of a run, with their tokens read from token stores as ``train.token_store`` says."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpr.core.distributed import current_ranks
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.collator import as_encoded
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokens import StoredPairs, StoredTokens, open_tokens
from dpr.data.training_data import OpenedSets, SampleSource, opened_sets
from dpr.formats.training_sets import TrainingSet
from dpr.models.biencoder import BiEncoder
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)
_LOOKED_AT = 64


def opened_for_run(sets: Any, name: str, settings: TrainingSettings, model: BiEncoder) -> OpenedSets:
    """What ``BiEncoderTrainer`` takes as data sets, opened (``opened_sets``), as tokens (``as_tokens``).

    Raises:
        InputError, ConfigError: as these two; or the options of a set say where to read it.
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
    return as_tokens(pairs, settings, model)


def as_tokens(sets: OpenedSets, settings: TrainingSettings, model: BiEncoder) -> OpenedSets:
    """User-defined sets stay as they are, and so do those that are read from stores already.

    Raises:
        ConfigError: a set has another prompt than the model, or the folder of the stores cannot be written.
    """
    sets = [(source, options.agreed(source.name, model.tensorizer.text)) for source, options in sets]
    for source, options in sets:
        _check_known(source, options, model.tensorizer)
    train, folder = settings.train, settings.train.token_store_folder()
    if train.token_store == "off":
        return sets
    # Tokenising everything first pays only in a run that is long enough.
    questions = (
        train.global_batch_size or train.batch_size * current_ranks().world_size
    ) * train.gradient_accumulation_steps
    sees_most_rows = (
        not train.max_steps or train.max_steps * questions >= sum(len(source) for source, _ in sets) // 2
    )
    build = folder is not None or (sees_most_rows and not train.dry_run)
    result: OpenedSets = []
    for source, options in sets:
        if isinstance(source, TrainingSet | PseudoPairs):
            result.append(
                (open_tokens(source, model.tensorizer, options, folder=folder, build=build), options)
            )
        else:
            if not isinstance(source, StoredTokens | StoredPairs):
                logger.info(
                    "%s: read by a user-defined class, so its texts are tokenised as they come", source.name
                )
            result.append((source, options))
    return result


def _check_known(source: SampleSource, options: DataSetSettings, tensorizer: Tensorizer) -> None:
    """Raises InputError where most words of a set are unknown to the tokenizer, by some rows that are spread
    over it."""
    rows = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(int)).tolist() if len(source) else []
    samples = [source[row] for row in rows]
    tokens = tensorizer.question_tokens([sample.question for sample in samples], **options.of_questions)
    tokens += tensorizer.passage_tokens(
        [as_encoded(sample.positives[0], options) for sample in samples if sample.positives]
    )
    tensorizer.check_known(
        np.array([token for sequence in tokens for token in sequence], dtype=np.int64), source.name
    )
