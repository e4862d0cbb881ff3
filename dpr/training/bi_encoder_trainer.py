"""The public trainer: it makes data sets, loss, validations and callbacks from settings, import paths and
given objects, around the loop of trainer.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.distributed import current_ranks
from dpr.core.errors import ConfigError
from dpr.core.logs import configure_by_default, get_logger
from dpr.core.other_names import hint
from dpr.core.paths import user_path
from dpr.core.settings import drop_unused, listed, unused_note
from dpr.core.user_classes import create_object
from dpr.formats.run_folders import METRICS_LINES
from dpr.losses.protocol import Loss
from dpr.models.biencoder import BiEncoder
from dpr.training.callbacks.base_comparison import BaseComparison
from dpr.training.callbacks.batch_metrics import GlobalBatchMetrics
from dpr.training.callbacks.early_stopping import EarlyStopping
from dpr.training.callbacks.log_lines import LogEvery, ProgressLine
from dpr.training.callbacks.metrics_file import MetricsFile, ReportPage
from dpr.training.callbacks.saving import ValidateAndSave
from dpr.training.data_sets import DataSets, opened_for_run, with_token_stores
from dpr.training.make_loss import make_loss, settle_temperature
from dpr.training.run import Callback
from dpr.training.settings import TrainingSettings, TrainNode
from dpr.training.trainer import Trainer
from dpr.training.validations.dev_sets import dev_validations
from dpr.training.validations.protocol import Validation
from dpr.training.validations.retrieval import RetrievalValidation, read_entry

logger = get_logger(__name__)
_HASHES_AT_ONCE = 1 << 20


def extensions_of(
    settings: TrainingSettings,
    dev_sets: Sequence[str],
    *,
    callbacks: Sequence[Callback] = (),
    validations: Sequence[Validation] = (),
) -> tuple[list[Callback], list[Validation]]:
    """Makes the callbacks and validations that ``train.callbacks`` and ``train.validation`` name. They need no data,
    so they are made first. Returns them, each followed by those given.

    Refuses a ``train.best_metric`` that neither a validation nor those over the ``dev_sets`` of these names
    return. User-defined validations name their metrics later, so with one of them nothing is refused.

    Raises:
        ConfigError: a name, an entry or an argument cannot be used, or the metric is unknown.
        InputError: a file that an entry names cannot be read.
    """
    train = settings.train
    made = [create_object(entry, Callback, setting="train.callbacks") for entry in listed(train.callbacks)]
    checks: list[Validation] = []
    for number, entry in enumerate(listed(train.validation)):
        if options := read_entry(entry, number):
            if options.guard is not None and train.eval_at_start is False:
                key = f"train.validation[{number}].guard={options.guard:g}"
                raise ConfigError(
                    f"{key} has no effect with train.eval_at_start=false; leave one of them out"
                )
            checks.append(RetrievalValidation(options, precision=train.precision))
        else:
            checks.append(create_object(entry, Validation, setting="train.validation"))
    checks += validations

    names: list[str] = []
    for of_dev_sets in dev_validations([], settings) if dev_sets else []:
        if any(map(of_dev_sets.is_due, range(train.num_train_epochs))):
            names += of_dev_sets.names_for(dev_sets)
    searches = [each for each in checks if isinstance(each, RetrievalValidation)]
    names += [name for each in searches for name in each.names()]
    is_known = train.best_metric in (None, *names) or len(searches) < len(checks)
    if names and not is_known:
        raise ConfigError(
            f"train.best_metric={train.best_metric} is not a metric of any validation of this run; choose"
            f" one of {', '.join(names)}"
        )
    return [*made, *callbacks], checks


class BiEncoderTrainer(Trainer):
    """Trainer of a bi-encoder on one or several ranks, with the default callbacks and those named in its
    settings. Call ``train()``.

    ``train_sets`` and ``dev_sets`` are one data set or a list. A data set is anything that
    ``open_training_set`` takes or returns (files, rows in memory, data sets), or a pair of that and
    ``DataSetSettings``.

    ``settings`` are those of ``dpr train``. Each can also be given by its own name, such as
    ``batch_size=16``, ``seed=1`` or ``temperature=0.05``, which replaces the model's temperature.

    ``callbacks`` and ``validations`` are added to the default ones and to those named in settings. With
    ``defaults=False``, only the given ones are used, besides the validations over dev sets. Then nothing
    validates or saves unless a callback does, such as those of ``default_callbacks``.

    ``loss`` replaces ``loss.name``. ``config`` is stored in checkpoints for information, by default the
    settings.

    Raises:
        ConfigError: settings that are out of range, mutually exclusive, or do not fit the data.
    """

    def __init__(
        self,
        model: BiEncoder,
        train_sets: DataSets = (),
        dev_sets: DataSets = (),
        *,
        output_dir: str | Path | None = None,
        settings: TrainingSettings | None = None,
        loss: Loss | None = None,
        validations: Sequence[Validation] = (),
        callbacks: Sequence[Callback] = (),
        defaults: bool = True,
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        configure_by_default(rank=current_ranks().rank)
        if hasattr(train_sets, "per_device_train_batch_size"):  # the second argument of other trainers
            options["args"] = train_sets
        settings = TrainingSettings.of(settings, **options)
        if unused := drop_unused(settings):
            logger.warning(unused_note(unused))
        settings.check()
        _require("model", model, BiEncoder, f"a BiEncoder, e.g. BiEncoder.load({str(model)[:80]!r})")
        _require("output_dir", output_dir, str | Path, "the folder of the run, e.g. output_dir='runs/first'")
        if loss is not None:
            wanted = "an object of a class that implements dpr.Loss, or leave it out, for in-batch negatives"
            line = (
                hint(getattr(loss, "__name__", type(loss).__name__)) or "; temperature=0.05 is a scale of 20"
            )
            _require("loss", loss, Loss, f"{wanted}{line}")
        callbacks = listed(callbacks)
        validations = listed(validations)
        for each in callbacks:
            example = "class Mine(dpr.Callback), with def on_step_end(self, run): run.progress.step"
            _require(
                "one of callbacks", each, Callback, f"an object of a subclass of dpr.Callback: {example}"
            )
        for each in validations:
            _require("one of validations", each, Validation, "an object of a subclass of dpr.Validation")
        folder = user_path(str(output_dir))
        settle_temperature(model, settings, folder)

        opened, opened_dev = opened_for_run(train_sets, "train"), opened_for_run(dev_sets, "dev")
        if defaults:
            names = [source.name for source, _ in opened_dev]
            callbacks, validations = extensions_of(
                settings, names, callbacks=callbacks, validations=validations
            )
            callbacks = default_callbacks(settings.train, folder, callbacks)
        if loss is None:
            names = [source.name for source, _ in opened]
            loss = make_loss(settings.loss, candidates=settings.candidates(), model=model, namespaces=names)
        opened, opened_dev = (with_token_stores(sets, settings, model) for sets in (opened, opened_dev))
        asked = np.concatenate([np.empty(0, dtype=np.uint64), *_question_hashes(opened_dev)])
        is_known = np.zeros(len(asked), dtype=bool)
        for known in _question_hashes(opened) if len(asked) else ():
            for start in range(0, len(known), _HASHES_AT_ONCE):  # all at once would be copied and sorted
                is_known |= np.isin(asked, known[start : start + _HASHES_AT_ONCE])
        if shared := int(is_known.sum()):
            logger.warning("%d of the %d dev questions are also training questions", shared, len(asked))
        if opened_dev:
            validations = [*dev_validations(opened_dev, settings, candidates=loss.candidates), *validations]
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


def _question_hashes(sets: Sequence[Any]) -> list[np.ndarray]:
    """Returns the hashes of the questions of each set. Those of user-defined sets, and of pairs cut from a corpus,
    are not known before they are read."""
    texts = [getattr(source, "text", source) for source, _ in sets]
    return [text.question_hashes for text in texts if hasattr(text, "question_hashes")]


def _require(name: str, given: Any, kind: Any, wanted: str) -> None:
    if not isinstance(given, kind):
        raise ConfigError(f"{name} is of type {type(given).__name__}; give {wanted}")


def default_callbacks(
    settings: TrainNode, output_dir: Path, further: Sequence[Callback] = ()
) -> list[Callback]:
    """Returns the callbacks that log, validate and save, and those that settings switch on, with ``further``
    ones among them.

    The order matters: callbacks that add to the metrics come first, then those that collect and write them,
    and last the one that saves the state.
    """
    callbacks = [
        BaseComparison(),
        GlobalBatchMetrics(settings.log_batch_step),
        ReportPage(output_dir),
        *further,
    ]
    if patience := settings.early_stopping.patience:
        callbacks.append(EarlyStopping(patience=patience))
    return [
        *callbacks,
        LogEvery(settings.log_batch_step),
        ProgressLine(),
        MetricsFile(output_dir / METRICS_LINES),
        ValidateAndSave(settings),
    ]
