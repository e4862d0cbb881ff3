"""The loss and the temperature that settings name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from glob import has_magic
from pathlib import Path
from typing import Any

from torch import nn

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.settings import listed, split_entry
from dpr.core.user_classes import create_object
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import GATHERED, OWN_SCORES, Loss, Term
from dpr.models.biencoder import BiEncoder
from dpr.models.towers import Towers
from dpr.training.identity import stored_value
from dpr.training.settings import LossSettings, TrainingSettings

logger = get_logger(__name__)


def make_loss(
    settings: LossSettings, *, candidates: str, model: BiEncoder | None = None, namespaces: Sequence[str] = ()
) -> Loss:
    """Returns the loss that ``loss.name`` names, with the candidate rule, or the objective with the terms
    that the settings weight.

    Without ``model``, its vectors count as not normalised and may have any width. Passage ids are unique
    within ``namespaces``.

    Raises:
        ConfigError: the loss or a term is unknown, is not a class that implements the contract, or needs
            inputs that are not gathered; or the model could never learn from ``loss.teacher``.
        InputError: the shards of ``loss.guide`` or ``loss.teacher`` cannot be read, or do not fit together.
    """
    if settings.name != "nll":
        loss: Loss = _user_term(settings.name, Loss, GATHERED, setting="loss.name", candidates=candidates)
        return loss
    if not settings.changed():
        return BiEncoderNllLoss(candidates=candidates)
    from dpr.losses.objective import Objective  # only few runs have terms besides the NLL
    from dpr.training.teacher import ModelTeacher, StoredTeacher, read_vectors

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
    false_negatives = None
    if settings.guide:
        false_negatives = read_vectors(settings.guide, namespaces, setting="loss.guide")
    teacher: ModelTeacher | StoredTeacher | None = None
    if settings.teacher is not None:
        if model is None:
            raise ConfigError("loss.teacher needs the model that learns from it; give make_loss a model")
        paths = [str(each) for each in listed(settings.teacher)]
        if len(paths) == 1 and not has_magic(paths[0]) and not any(Path(paths[0]).glob("vectors-*.npy")):
            teacher = ModelTeacher(BiEncoder.load(paths[0], model.device), model, folder=paths[0])
        else:
            vectors = read_vectors(paths, namespaces, setting="loss.teacher")
            teacher = StoredTeacher(vectors, namespaces, model)
    return Objective(
        settings,
        candidates=candidates,
        normalize=model is not None and model.settings.normalize,
        false_negatives=false_negatives,
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


def settle_temperature(model: Towers, settings: TrainingSettings, folder: Path | None = None) -> None:
    """Gives the model the temperature of the settings. If neither settings nor model state one, it is that of
    the run in ``folder``, else 1 with compat=dpr, else the model's default.

    Raises:
        ConfigError: the model learns its temperature and the settings state another, or the settings ask for
            a learned temperature and the model's is fixed.
    """
    temperature = settings.loss.temperature
    own = model.options.temperature
    stored = model.stored_temperature
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
    elif settings.model_file and stored and not math.isclose(temperature, stored, rel_tol=1e-6):
        logger.warning(
            "loss.temperature=%g is used, but %s was trained with %.6g; leave it out to use that of the model",
            temperature,
            settings.model_file,
            stored,
        )
    model.options = replace(model.options, temperature=temperature)
    model.has_temperature = True
