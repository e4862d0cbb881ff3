"""The temperature that a model is trained or evaluated with."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.models.towers import Towers
from dpr.training.identity import stored_value
from dpr.training.settings import TrainingSettings

logger = get_logger(__name__)


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
