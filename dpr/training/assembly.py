"""Assembly of a training run: data sets, loss, validations and callbacks, made from settings, from the import
paths that settings name and from given objects, around the loop of trainer.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpr.core.distributed import current_ranks
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.paths import user_path
from dpr.core.settings import drop_unused, listed, split_entry, unused_note
from dpr.core.user_classes import create_object
from dpr.data.collator import as_encoded
from dpr.data.opened_sets import opened_sets
from dpr.data.pairs import PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.data.swapped_columns import look_swapped
from dpr.data.tokens import StoredPairs, StoredTokens, open_tokens
from dpr.data.training_data import OpenedSets, TrainingData, spread_rows
from dpr.formats.training_sets import TrainingSet
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import GATHERED, OWN_SCORES, Loss, Term
from dpr.models.biencoder import BiEncoder
from dpr.training.callbacks.defaults import default_callbacks
from dpr.training.identity import stored_value
from dpr.training.run import Callback
from dpr.training.settings import LossSettings, TrainingSettings
from dpr.training.trainer import Trainer
from dpr.training.validations.dev_sets import dev_validations
from dpr.training.validations.protocol import Validation
from dpr.training.validations.retrieval import RetrievalValidation, read_entry

logger = get_logger(__name__)
_LOOKED_AT = 64
DataSets = Any
"""A training set, or a list of them, each alone or with its ``DataSetSettings`` (``opened_sets`` in
dpr/data/opened_sets.py)."""


@dataclass(frozen=True)
class Named:
    """The objects that ``train.callbacks`` and ``train.validation`` name. They need no data, so they are made
    first."""

    callbacks: Sequence[Callback]
    validations: Sequence[Validation]

    @classmethod
    def of(cls, settings: TrainingSettings) -> Named:
        """Makes the objects that ``settings`` name.

        Raises:
            ConfigError: a name, an entry or an argument cannot be used.
            InputError: a file that an entry names cannot be read.
        """
        train = settings.train
        callbacks = [
            create_object(entry, Callback, setting="train.callbacks") for entry in listed(train.callbacks)
        ]
        validations: list[Validation] = []
        for number, entry in enumerate(listed(train.validation)):
            if options := read_entry(entry, number):
                if options.guard is not None and train.eval_at_start is False:
                    key = f"train.validation[{number}].guard={options.guard:g}"
                    raise ConfigError(
                        f"{key} has no effect with train.eval_at_start=false; leave one of them out"
                    )
                validations.append(RetrievalValidation(options, precision=train.precision))
            else:
                validations.append(create_object(entry, Validation, setting="train.validation"))
        return cls(callbacks, validations)


def check_metric_names(
    validations: Sequence[Validation], settings: TrainingSettings, dev_sets: Sequence[str]
) -> None:
    """Refuses a ``train.best_metric`` that neither these validations nor those over these dev sets return.
    User-defined validations name their metrics later, so with one of them nothing is refused.

    Raises:
        ConfigError: lists the known names.
    """
    train = settings.train
    names: list[str] = []
    for of_dev_sets in dev_validations([], settings) if dev_sets else []:
        if any(map(of_dev_sets.is_due, range(train.num_train_epochs))):
            names += of_dev_sets.names_for(dev_sets)
    for validation in validations:
        if not isinstance(validation, RetrievalValidation):
            return
        names += validation.names()
    if names and train.best_metric is not None and train.best_metric not in names:
        raise ConfigError(
            f"train.best_metric={train.best_metric} is not a metric of any validation of this run; choose"
            f" one of {', '.join(names)}"
        )


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

    ``loss`` replaces ``loss.name``, and ``named`` replaces the objects named in settings. ``config`` is
    stored in checkpoints for people to read, by default the settings.

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
        named: Named | None = None,
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        settings = TrainingSettings.of(settings, **options)
        if unused := drop_unused(settings):
            logger.warning(unused_note(unused))
        settings.check()
        _require("model", model, BiEncoder, f"a BiEncoder, e.g. BiEncoder.load({str(model)[:80]!r})")
        _require("output_dir", output_dir, str | Path, "the folder of the run, e.g. output_dir='runs/first'")
        if loss is not None:
            wanted = "an object of a class that implements dpr.Loss, or leave it out, for in-batch negatives"
            _require("loss", loss, Loss, f"{wanted}; temperature=0.05 is a scale of 20")
        callbacks = listed(callbacks)
        validations = listed(validations)
        for each in callbacks:
            _require("one of callbacks", each, Callback, "an object of a subclass of dpr.Callback")
        for each in validations:
            _require("one of validations", each, Validation, "an object of a subclass of dpr.Validation")
        folder = user_path(str(output_dir))
        settle_temperature(model, settings, folder)

        opened = opened_for_run(train_sets, "train", settings, model)
        if loss is None:
            namespaces = [source.name for source, _ in opened]
            loss = make_loss(
                settings.loss, candidates=settings.candidates(), model=model, namespaces=namespaces
            )
        if defaults:
            named = named or Named.of(settings)
            validations = [*named.validations, *validations]
            callbacks = default_callbacks(settings.train, folder, [*named.callbacks, *callbacks])
        opened_dev = opened_for_run(dev_sets, "dev", settings, model)
        # Questions of user-defined sets, and of pairs cut from a corpus, are not known before they are read.
        asked, known = (
            [
                key
                for source, _ in sets
                for key in getattr(getattr(source, "text", source), "question_hashes", ())
            ]
            for sets in (opened_dev, opened)
        )
        if shared := int(np.isin(asked, known).sum()):
            logger.warning("%d of the %d dev questions are training questions", shared, len(asked))
        check_metric_names(validations, settings, [source.name for source, _ in opened_dev])
        if opened_dev:
            of_dev_sets = dev_validations(opened_dev, settings, candidates=loss.candidates)
            validations = [*of_dev_sets, *validations]
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


def settle_temperature(model: BiEncoder, settings: TrainingSettings, folder: Path | None = None) -> None:
    """Gives the model the temperature of the settings. If neither settings nor model state one, it is that of
    the run in ``folder``, else 1 with compat=dpr, else the model's default.

    Raises:
        ConfigError: the model learns its temperature and the settings state another, or the settings ask for
            a learned temperature and the model's is fixed.
    """
    temperature = settings.loss.temperature
    own = model.options.temperature
    if settings.loss.learn_temperature and model.log_temperature is None:
        raise ConfigError(
            "learn_temperature=True, but the model's is fixed; make the model with"
            " options=dpr.TowerOptions(learn_temperature=True)"
        )
    if temperature is None:
        if model.has_temperature:
            return
        temperature = stored_value(folder, settings, "loss.temperature") or (1.0 if settings.as_dpr else own)
        if model.settings.normalize:
            logger.info("vectors are normalised and loss.temperature is not set: it is %g", temperature)
    elif temperature != own and model.log_temperature is not None:
        raise ConfigError(
            f"temperature={temperature}, but the model learns its own from {own}; make the model with"
            f" options=dpr.TowerOptions(temperature={temperature}, learn_temperature=True)"
        )
    model.options = replace(model.options, temperature=temperature)


def _require(name: str, given: Any, kind: Any, wanted: str) -> None:
    if not isinstance(given, kind):
        raise ConfigError(f"{name} is of type {type(given).__name__}; give {wanted}")


def make_loss(
    settings: LossSettings, *, candidates: str, model: BiEncoder | None = None, namespaces: Sequence[str] = ()
) -> Loss:
    """Returns the loss that ``loss.name`` names, with the candidate rule, or the objective with the terms
    that the settings weight.

    Without ``model``, its vectors count as not normalised and may have any width. Passage ids are unique
    within ``namespaces``.

    Raises:
        ConfigError: the loss or a term is unknown, is not a class that implements the contract, or needs
            inputs that are not gathered.
        InputError: the shards of ``loss.guide`` or ``loss.teacher`` cannot be read, or do not fit together.
    """
    if settings.name != "nll":
        loss: Loss = _user_term(settings.name, Loss, GATHERED, setting="loss.name", candidates=candidates)
        return loss
    if not settings.changed():
        return BiEncoderNllLoss(candidates=candidates)
    from dpr.losses.objective import Objective  # only few runs have terms besides the NLL
    from dpr.training.teacher import open_teacher, read_vectors

    settings.check_objective("loss.")
    for width in settings.dimensions or ():
        if model is not None and width > model.dimension:
            raise ConfigError(
                f"loss.dimensions names {width}, but the model's vectors have {model.dimension} dimensions;"
                " leave it out"
            )
    known = GATHERED | {OWN_SCORES}
    terms = [
        (weight, _user_term(entry, Term, known, setting="loss.terms", candidates=candidates))
        for weight, entry in settings.user_terms()
    ]
    guide = None
    if settings.guide:
        guide = read_vectors(settings.guide, namespaces, setting="loss.guide")
    teacher = None
    if settings.teacher is not None:
        teacher = open_teacher(settings.teacher, model, namespaces)
    return Objective(
        settings,
        candidates=candidates,
        normalize=model is not None and model.settings.normalize,
        guide=guide,
        teacher=teacher,
        user_terms=terms,
    )


def _user_term(entry: Any, kind: type[Any], known: frozenset[str], *, setting: str, candidates: str) -> Any:
    """Returns the user-defined loss or term that an entry names. It may need the ``known`` inputs."""
    term: Term = create_object(entry, kind, setting=setting)
    term.candidates = candidates
    path, _ = split_entry(entry, setting=setting)
    if unknown := sorted(set(term.needs) - known):
        raise ConfigError(
            f"{setting}={path} needs {', '.join(unknown)}; only {', '.join(sorted(known))} are gathered"
        )
    if isinstance(term, nn.Module) and any(True for _ in term.parameters()):
        raise ConfigError(f"{setting}={path} has parameters, which would not be trained or saved")
    return term


def user_data(path: str, files: Sequence[Path], *, name: str) -> TrainingData:
    """Returns the data set that a catalogue entry's ``reader`` names, called with the entry's files."""
    setting = f"datasets.{name}.reader"
    data: TrainingData = create_object(path, TrainingData, setting=setting, values=(list(files),))
    data.name = name
    if not len(data):
        raise ConfigError(f"{setting}={path}: the data set has no rows")
    return data


def opened_for_run(sets: DataSets, name: str, settings: TrainingSettings, model: BiEncoder) -> OpenedSets:
    """Returns the data sets given to ``BiEncoderTrainer``, opened (``opened_sets``) and as tokens
    (``as_tokens``).

    Raises:
        InputError, ConfigError: raised by these two; or the options of an open set say where to read it.
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
    pool_size = train.global_batch_size or train.batch_size * current_ranks().world_size
    questions = train.max_steps * pool_size * train.gradient_accumulation_steps
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
