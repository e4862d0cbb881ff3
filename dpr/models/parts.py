"""What a bi-encoder is made of, as the readers of files and folders return it, and its towers and tensorizer
made of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from dpr.data.presentation import SPACED_TITLE
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.models.adapters import BaseModel, add_adapters
from dpr.models.encoder import Encoder
from dpr.models.settings import EncoderSettings, GivenTextSettings, TowerOptions, pooling_kinds


class ModelParts(NamedTuple):
    """What a bi-encoder is made of; ``weights`` by the toolkit's names, ``config`` of the backbone.

    ``temperature`` is the fixed or initial one, where it is stored; ``stated`` names the text settings that
    are.
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
        """The settings with the prompts, title template and apostrophe rule of ``given``, which the
        tensorizer takes on.

        Raises:
            ConfigError: the model states others.
        """
        if given is None:
            return self.settings
        text = given.text_of(self.tensorizer.text, stated=self.stated, source=source)
        self.tensorizer.present(text)
        return replace(self.settings, **vars(text))


def present(tensorizer: Tensorizer, settings: EncoderSettings) -> EncoderSettings:
    """Gives a new model's tensorizer its text settings; returns them with a title template where the
    tokenizer separates no pairs."""
    if not settings.title_template and not tensorizer.separates_titles:
        settings = replace(settings, title_template=SPACED_TITLE)
    tensorizer.present(settings.part(TextSettings))
    return settings


def new_tensorizer(
    name_or_folder: str,
    settings: EncoderSettings,
    *,
    do_lower_case: bool | None = None,
    special_tokens: Sequence[str] = (),
) -> tuple[Tensorizer, EncoderSettings]:
    """The tensorizer of a new model, and its settings with the title template.

    Raises:
        ConfigError: the last token of texts is read, and it would be one of their words; or a prompt does not
        fit.
    """
    tensorizer = Tensorizer.load(
        name_or_folder,
        sequence_length=settings.sequence_length,
        question_length=settings.question_length,
        do_lower_case=do_lower_case,
        special_tokens=special_tokens,
        append_eos=settings.append_eos,
    )
    if any(kind.needs_end_token for kind in pooling_kinds(settings.pooling)):
        tensorizer.check_end_token()
    return tensorizer, present(tensorizer, settings)


def build_towers(
    make_backbone: Callable[[], nn.Module], settings: EncoderSettings, options: TowerOptions, base: BaseModel
) -> tuple[Encoder, Encoder]:
    """The question and the context tower, which are the same object if shared.
    ``base`` is what ``make_backbone`` loads."""
    names = (
        "pooling",
        "projection_dim",
        "projection_activation",
        "normalize",
        "dimensions",
    )
    made_as: dict[str, Any] = {name: getattr(settings, name) for name in names}
    make_tower: Callable[..., Encoder] = partial(
        Encoder, **made_as, packed=options.packed, attention=options.attention
    )
    if settings.adapter != "none":
        backbone = make_backbone()
        adapters = add_adapters(backbone, base, settings, options)
        towers = [make_tower(backbone, adapter=adapters[0])]
        towers += [make_tower(backbone, adapter=adapter, fast=towers[0].fast) for adapter in adapters[1:]]
    elif settings.static_questions:
        from dpr.models.static_questions import table_beside

        ctx = make_tower(make_backbone())
        towers = [table_beside(ctx, settings, options), ctx]
    else:
        # All backbones before the projections: random weights are drawn in this order.
        backbones = [make_backbone() for _ in range(1 if settings.shared else 2)]
        towers = [make_tower(backbone) for backbone in backbones]
    return towers[0], towers[-1]
