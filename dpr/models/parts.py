"""What a bi-encoder is made of, as the readers of files and folders return it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from dpr.core.settings import part_of
from dpr.data.presentation import SPACED_TITLE
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.models.adapters import BaseModel
from dpr.models.settings import EncoderSettings, GivenTextSettings


class ModelParts(NamedTuple):
    """What a bi-encoder is made of; ``weights`` by the toolkit's names, ``config`` of the backbone.

    ``temperature`` is the fixed or initial one, where it is stored; ``stated`` names the text settings that are.
    """

    settings: EncoderSettings
    config: Any
    tensorizer: Tensorizer
    weights: dict[str, Tensor]
    temperature: float | None = None
    learned_temperature: float | None = None
    base: BaseModel | None = None
    """Where the weights are adapters: the model they belong to."""
    stated: frozenset[str] = frozenset()

    def present(self, given: GivenTextSettings | None, source: Any) -> EncoderSettings:
        """The settings with the prompts, title template and apostrophe rule of ``given``, which the tensorizer takes on.

        Raises:
            ConfigError: the model states others.
        """
        if given is None:
            return self.settings
        text = given.text_of(self.tensorizer.text, stated=self.stated, source=source)
        self.tensorizer.present(text)
        return part_of(EncoderSettings, text, self.settings)


def present(tensorizer: Tensorizer, settings: EncoderSettings) -> EncoderSettings:
    """Gives a new model's tensorizer its text settings; returns them with a title template where the tokenizer separates no pairs."""
    if not settings.title_template and not tensorizer.separates_titles:
        settings = replace(settings, title_template=SPACED_TITLE)
    tensorizer.present(part_of(TextSettings, settings))
    return settings


def new_tensorizer(
    name_or_folder: str, settings: EncoderSettings, *, do_lower_case: bool | None = None, special_tokens: Sequence[str] = ()
) -> tuple[Tensorizer, EncoderSettings]:
    """The tensorizer of a new model, and its settings with the title template.

    Raises:
        ConfigError: the last token of texts is read, and it would be one of their words; or a prompt does not fit.
    """
    tensorizer = Tensorizer.load(
        name_or_folder,
        sequence_length=settings.sequence_length,
        question_length=settings.question_length,
        do_lower_case=do_lower_case,
        special_tokens=special_tokens,
        append_eos=settings.append_eos,
    )
    if settings.pooling == "last":
        tensorizer.check_end_token()
    return tensorizer, present(tensorizer, settings)
