"""Parts of a bi-encoder, as the readers of files and folders return them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import SPACED_TITLE
from dpr.models.adapters import BaseModel
from dpr.models.settings import EncoderSettings


class Given(NamedTuple):
    """What a person gives beside a folder: settings that it may not state, the ``base`` model of its adapters in
    place of the one that it names, and dropout."""

    settings: EncoderSettings = EncoderSettings()
    base: str | None = None
    dropout: float | None = None
    attention_dropout: float | None = None


class ModelParts(NamedTuple):
    """Parts of a bi-encoder; ``weights`` by the toolkit's names, ``config`` of the backbone.

    ``temperature`` is the stored fixed or initial one. ``stated`` names the text settings that are stored.
    """

    settings: EncoderSettings
    config: Any
    tensorizer: Tensorizer
    weights: dict[str, Tensor]
    temperature: float | None = None
    learned_temperature: float | None = None
    base: BaseModel | None = None
    """Model that the weights belong to, if they are adapters."""
    backbone: Any = None
    """That model, if it was loaded already."""
    stated: frozenset[str] = frozenset()


def with_text_settings(tensorizer: Tensorizer, settings: EncoderSettings) -> EncoderSettings:
    """Applies the text settings to a new model's tensorizer; returns them, with a title template if the
    tokenizer does not separate pairs."""
    if not settings.title_template and not tensorizer.separates_titles:
        settings = replace(settings, title_template=SPACED_TITLE)
    tensorizer.set_text_settings(settings.part(TextSettings))
    return settings
