"""Vectors of fewer dimensions than the model was trained with (Matryoshka)."""

from __future__ import annotations

from dataclasses import replace

from dpr.models.biencoder import BiEncoder


def keep_dimensions(model: BiEncoder, dimensions: int) -> None:
    """Cuts the model's vectors to their first ``dimensions`` numbers from now on; 0 leaves them as they are.

    It is part of the model's settings, so its fingerprint differs for every width and a saved model keeps it.

    Raises:
        ConfigError: the vectors have fewer dimensions.
    """
    if not dimensions or dimensions == model.dimension:
        return
    for tower in model.towers:
        tower.keep(dimensions)
    model.settings = replace(model.settings, dimensions=dimensions)
