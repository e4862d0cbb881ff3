"""How a training is put together: data sets, loss, validations and callbacks, from settings and from what is
given, around the loop of trainer.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.paths import user_path
from dpr.core.settings import listed
from dpr.losses.protocol import Loss
from dpr.models.biencoder import BiEncoder
from dpr.training.callbacks.usual import usual_callbacks
from dpr.training.run import Callback
from dpr.training.settings import TrainingSettings
from dpr.training.stored_sets import opened_for_run
from dpr.training.trainer import Trainer
from dpr.training.user_classes import (
    check_given,
    make_loss,
    user_callbacks,
    user_validation,
)
from dpr.training.validations.dev_sets import dev_validations
from dpr.training.validations.protocol import Validation
from dpr.training.validations.retrieval import RetrievalValidation
from dpr.training.validations.retrieval_settings import is_built_in, read_entry

DataSets = Any
"""A training set, or a list of them, each alone or with its ``DataSetSettings`` (``opened_sets`` in
dpr/data/training_data.py)."""


@dataclass(frozen=True)
class Named:
    """The objects behind ``train.callbacks`` and ``train.validation``. They need no data,
    so they are made first."""

    callbacks: Sequence[Callback]
    validations: Sequence[Validation]
    searches: Mapping[int, RetrievalValidation]
    """Those of ``validations`` that search a corpus, by the number of their entry."""

    @classmethod
    def of(cls, settings: TrainingSettings) -> Named:
        """Those that ``settings`` name.

        Raises:
            ConfigError: a name, an entry or an argument cannot be used.
            InputError: a file that an entry names cannot be read.
        """
        train = settings.train
        entries = dict(enumerate(listed(train.validation)))
        searched = {
            number: read_entry(entry, number) for number, entry in entries.items() if is_built_in(entry)
        }
        searches = {
            number: RetrievalValidation(options, precision=train.precision)
            for number, options in searched.items()
        }
        validations = [searches.get(number) or user_validation(entry) for number, entry in entries.items()]
        return cls(user_callbacks(train.callbacks), validations, searches)

    def check_metric_names(self, settings: TrainingSettings, dev_sets: Sequence[str]) -> None:
        """Refuses metrics to choose by that no validation of a run on these dev sets returns; user-defined
        ones name theirs later.

        Raises:
            ConfigError: lists the names that there are.
        """
        train = settings.train
        over_dev_sets = dev_validations([], settings) if dev_sets else []
        due = [each for each in over_dev_sets if any(map(each.is_due, range(train.num_train_epochs)))]
        names = [name for each in due for name in each.names_for(dev_sets)]
        if any(number not in self.searches for number in range(len(self.validations))) or not (
            names or self.searches
        ):
            return
        names += [name for search in self.searches.values() for name in search.names()]
        if train.best_metric is not None and train.best_metric not in names:
            raise ConfigError(
                f"train.best_metric={train.best_metric} is not a metric of any validation of this run; choose"
                f" one of {', '.join(names)}"
            )


class BiEncoderTrainer(Trainer):
    """Trains a bi-encoder on one or several ranks, with the usual callbacks and what its settings name.

    ``train_sets`` and ``dev_sets`` are one or a list of what ``open_training_set`` takes or returns (files,
    rows in memory, data sets), or pairs of that and ``DataSetSettings``. ``settings`` are those of ``dpr
    train``; each can also be given by its name alone, as ``batch_size=16`` or ``seed=1``. ``callbacks``
    and ``validations`` are added to the usual ones and to those that settings name; with
    ``usual=False`` they are all that there are besides the validations over dev sets, and nothing validates
    or saves without a callback that does, as those of ``usual_callbacks``. ``loss`` takes the place of
    ``loss.name``, ``named`` that of what settings name. ``config`` is what checkpoints keep for people to
    read, by default the settings. Call ``train()``.

    Raises:
        ConfigError: settings that are out of range, mutually exclusive, or do not fit the data.
    """

    def __init__(
        self,
        model: BiEncoder,
        train_sets: DataSets,
        dev_sets: DataSets = (),
        *,
        output_dir: str | Path,
        settings: TrainingSettings | None = None,
        loss: Loss | None = None,
        validations: Sequence[Validation] = (),
        callbacks: Sequence[Callback] = (),
        usual: bool = True,
        named: Named | None = None,
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        settings = TrainingSettings.of(settings, **options)
        lists = {"callbacks": callbacks, "validations": validations}
        check_given(settings, model, output_dir, loss, lists)
        folder = user_path(output_dir)

        opened = opened_for_run(train_sets, "train", settings, model)
        if loss is None:
            namespaces = [source.name for source, _ in opened]
            loss = make_loss(
                settings.loss, candidates=settings.candidates(), model=model, namespaces=namespaces
            )
        if usual:
            named = named or Named.of(settings)
            validations = [*named.validations, *validations]
            callbacks = usual_callbacks(settings.train, folder, [*named.callbacks, *callbacks])
        opened_dev = opened_for_run(dev_sets, "dev", settings, model)
        if opened_dev:
            validations = [
                *dev_validations(opened_dev, settings, candidates=loss.candidates),
                *validations,
            ]
        super().__init__(
            model,
            opened,
            opened_dev,
            output_dir=folder,
            settings=settings,
            loss=loss,
            validations=validations,
            callbacks=callbacks,
            config=config,
        )
