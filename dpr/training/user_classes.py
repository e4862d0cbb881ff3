"""User-defined callbacks, losses, validations and data sets, which settings name by import path."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.settings import drop_unused, listed, split_entry, unused_note
from dpr.core.user_classes import create_object
from dpr.data.training_data import TrainingData
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import GATHERED, OWN_SCORES, Loss, Term
from dpr.models.biencoder import BiEncoder
from dpr.training.run import Callback
from dpr.training.settings import LossSettings, TrainingSettings
from dpr.training.validations.protocol import Validation

logger = get_logger(__name__)


def check_given(
    settings: TrainingSettings, model: Any, output_dir: Any, loss: Any, lists: Mapping[str, Any]
) -> None:
    """Checks the settings of a trainer, and the types of the objects that it was given.

    Raises:
        ConfigError: says in a sentence what was given, and what was expected.
    """
    if unused := drop_unused(settings):
        logger.warning(unused_note(unused))
    settings.check()
    if not isinstance(model, BiEncoder):
        raise ConfigError(
            f"model is of type {type(model).__name__}; give a BiEncoder, e.g."
            f" BiEncoder.load({str(model)[:80]!r})"
        )
    if not isinstance(output_dir, str | Path):
        raise ConfigError(
            f"output_dir is of type {type(output_dir).__name__}; give the folder of the run, e.g."
            " output_dir='runs/first'"
        )
    for key in ("temperature", "learn_temperature"):
        if (given := getattr(settings.loss, key)) and given != getattr(model.options, key):
            made = f"make the model with options=dpr.TowerOptions({key}={given})"
            raise ConfigError(f"loss.{key}={given}, but the model's is {getattr(model.options, key)}; {made}")
    if loss is not None and not isinstance(loss, Loss):
        raise ConfigError(
            f"loss is of type {type(loss).__name__}; give an object of a class that implements dpr.Loss"
        )
    for name, kind in (("callbacks", Callback), ("validations", Validation)):
        given = lists[name]
        for item in given if isinstance(given, Sequence) and not isinstance(given, str) else [given]:
            if item is given or not isinstance(item, kind):
                named = (
                    f"the class {item.__name__}, not an object of it"
                    if inspect.isclass(item)
                    else f"of type {type(item).__name__}"
                )
                raise ConfigError(
                    f"{name} holds what is {named}; give a list of objects of subclasses of"
                    f" dpr.{kind.__name__}"
                )


def user_callbacks(entries: Any) -> list[Callback]:
    """The callbacks that ``train.callbacks`` names.

    Raises:
        ConfigError: an entry is not an import path, not a callback, or does not take its arguments.
    """
    return [create_object(entry, Callback, setting="train.callbacks") for entry in listed(entries)]


def make_loss(
    settings: LossSettings, *, candidates: str, model: BiEncoder | None = None, namespaces: Sequence[str] = ()
) -> Loss:
    """The loss that ``loss.name`` names, with the pool's candidate rule, or the objective whose terms the
    settings weigh.

    Without ``model``, its vectors are not normalised and of any width; passage ids are unique within
    ``namespaces``.

    Raises:
        ConfigError: it, or a term, is neither known nor a class that implements the contract, or it needs
        what is not gathered.
        InputError: the shards of ``loss.guide`` or ``loss.teacher`` cannot be read, or do not fit together.
    """
    if settings.name != "nll":
        loss: Loss = _user_term(settings.name, Loss, GATHERED, setting="loss.name", candidates=candidates)
        return loss
    if not settings.changed():
        return BiEncoderNllLoss(candidates=candidates)
    from dpr.losses.objective import Objective  # the terms besides the NLL, which most runs do not have

    settings.check_objective("loss.")
    for width in settings.dimensions or ():
        if model is not None and width > model.dimension:
            raise ConfigError(
                f"loss.dimensions names {width}, but the model's vectors have {model.dimension} dimensions;"
                " leave it out"
            )
    terms = []
    for entry in settings.user_terms():
        named = {"use": entry.path, **entry.arguments}
        known = GATHERED | {OWN_SCORES}
        term = _user_term(named, Term, known, setting="loss.terms", candidates=candidates)
        terms.append((entry.weight, term))
    guide = None
    if settings.guide:
        from dpr.losses.guide import Guide
        from dpr.training.teacher import read_vectors

        guide = Guide(read_vectors(settings.guide, namespaces, setting="loss.guide"))
    teacher = None
    if settings.teacher is not None:
        from dpr.training.teacher import open_teacher

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
    """The user-defined loss or term that an entry names; it may need what is ``known``."""
    term: Term = create_object(entry, kind, setting=setting)
    term.candidates, path = candidates, split_entry(entry, setting=setting)[0]
    if unknown := sorted(set(term.needs) - known):
        raise ConfigError(
            f"{setting}={path} needs {', '.join(unknown)}; only {', '.join(sorted(known))} are gathered"
        )
    if isinstance(term, nn.Module) and any(True for _ in term.parameters()):
        raise ConfigError(f"{setting}={path} has parameters, which would not be trained or saved")
    return term


def user_validation(entry: Any) -> Validation:
    """The user-defined validation that an entry of ``train.validation`` names."""
    validation: Validation = create_object(entry, Validation, setting="train.validation")
    return validation


def user_data(path: str, files: Sequence[Path], *, name: str) -> TrainingData:
    """The data set that a catalogue entry's ``reader`` names, called with the entry's files."""
    setting = f"datasets.{name}.reader"
    data: TrainingData = create_object(path, TrainingData, setting=setting, values=(list(files),))
    data.name = name
    if not len(data):
        raise ConfigError(f"{setting}={path}: the data set has no rows")
    return data
