"""What a bi-encoder is made of, as the readers of files and folders return it, and its towers and tensorizer
made of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import SPACED_TITLE
from dpr.formats.checkpoints import TOKEN_FREQUENCIES_FILE, TokenFrequencies
from dpr.models.adapters import BaseModel, add_adapters
from dpr.models.encoder import Encoder
from dpr.models.pooling import IdfPooling, Pooling, RootIdfPooling
from dpr.models.settings import EncoderSettings, GivenTextSettings, TowerOptions
from dpr.models.trials import is_static

logger = get_logger(__name__)


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

    @property
    def stored_temperature(self) -> float | None:
        """The learned temperature, else the fixed one."""
        return self.learned_temperature or self.temperature

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
    if settings.pooling == "last":
        tensorizer.check_end_token()
    return tensorizer, present(tensorizer, settings)


def build_towers(
    make_backbone: Callable[[], nn.Module], settings: EncoderSettings, options: TowerOptions, base: BaseModel
) -> tuple[Encoder, Encoder]:
    """The question and the context tower, which are the same object if shared.
    ``base`` is what ``make_backbone`` loads."""
    make_tower = partial(
        Encoder,
        pooling=settings.pooling,
        projection_dim=settings.projection_dim,
        projection_activation=settings.projection_activation,
        normalize=settings.normalize,
        dimensions=settings.dimensions,
        packed=options.packed,
        attention=options.attention,
    )
    if settings.adapter != "none":
        backbone = make_backbone()
        adapters = add_adapters(backbone, base, settings, options)
        towers = [make_tower(backbone, adapter=adapters[0])]
        towers += [make_tower(backbone, adapter=adapter, fast=towers[0].fast) for adapter in adapters[1:]]
    elif settings.static_questions:
        ctx = make_tower(make_backbone())
        towers = [table_beside(ctx, settings, options), ctx]
    else:
        # All backbones before the projections: random weights are drawn in this order.
        backbones = [make_backbone() for _ in range(1 if settings.shared else 2)]
        towers = [make_tower(backbone) for backbone in backbones]
    return towers[0], towers[-1]


def table_beside(ctx: Encoder, settings: EncoderSettings, options: TowerOptions) -> Encoder:
    """A tower of questions without layers: a row for each token of ``ctx``, as wide as the vectors of that
    before they are cut, and the pooling ``idf``.

    Raises:
        ConfigError: ``ctx`` has no layers either.
    """
    # a family that transformers learns of when it is imported; most models have no table
    from dpr.models.static import StaticBackbone, StaticConfig

    if is_static(ctx.backbone):
        raise ConfigError(
            "encoder.static_questions=true, but the model of the passages is static itself; leave it out"
        )
    width = ctx.pooled_width if ctx.encode_proj is None else ctx.encode_proj.out_features
    return Encoder(
        StaticBackbone(StaticConfig(int(ctx.config.vocab_size), width, ctx.config.pad_token_id)),
        pooling="idf",
        normalize=settings.normalize,
        packed=options.packed,
        dimensions=settings.dimensions,
    )


@torch.no_grad()
def begin_with_idf(pooling: Pooling, folder: Path) -> None:
    """Sets the weights of ``IdfPooling`` to the inverse document frequencies in the corpus that ``folder``
    was made for, divided by their mean, so that weights are of the size of 1, as rates of learning expect it.

    Without frequencies the weights stay 1, with a warning.

    Raises:
        InputError: the frequencies are damaged or those of another vocabulary.
    """
    if not isinstance(pooling, IdfPooling):
        return
    frequencies = TokenFrequencies.read(folder, vocab_size=len(pooling.token_weights))
    if frequencies is None:
        logger.warning(
            "%s has no %s, so all token weights of encoder.pooling=idf begin with 1",
            folder,
            TOKEN_FREQUENCIES_FILE,
        )
        return
    idf = torch.from_numpy(frequencies.idf())
    start = idf.sqrt() if isinstance(pooling, RootIdfPooling) else idf
    pooling.token_weights.copy_(start / start.mean())
