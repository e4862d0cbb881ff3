"""Parts of a bi-encoder, as the readers of files and folders return them: towers of other libraries' folders, and how
one, or two that belong together, become these parts."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dpr.core.errors import CheckpointError
from dpr.core.logs import get_logger, warn_once
from dpr.data.settings import TextSettings
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import SPACED_TITLE, TYPOGRAPHIC_APOSTROPHE
from dpr.data.tokenizer_files import append_end_token, load_tokenizer, steps_of
from dpr.formats.model_folder import ModelFolder
from dpr.models.adapters import BaseModel
from dpr.models.backbones import load_backbone
from dpr.models.properties import distinct_weights, longest_sequence
from dpr.models.settings import EncoderSettings

logger = get_logger(__name__)
LONGEST = 1 << 17
"""Longest text in tokens where nothing limits it: the library reads such texts to the end."""
# Keys of a config that two towers may state differently, since they change no vector.
_NO_MATTER = re.compile(
    r"_?name_or_path|architectures|(torch_)?dtype|transformers_version|tokenizer_class|use_cache|.*drop.*|.*_token_id|problem_type"
    r"|(id2label|label2id)|projection_dim"
)


class Given(NamedTuple):
    """Options that a user gives with a folder: settings that it may not state, the ``base`` model of its
    adapters in place of the one that it names, and dropout."""

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
    """Base model of the weights, if they are adapters."""
    backbone: Any = None
    """Base model of the adapters, if it is already loaded."""
    stated: frozenset[str] = frozenset()


def with_text_settings(tensorizer: Tensorizer, settings: EncoderSettings) -> EncoderSettings:
    """Applies the text settings to a new model's tensorizer; returns them, with a title template if the
    tokenizer does not separate pairs."""
    if not settings.title_template and not tensorizer.separates_titles:
        settings = replace(settings, title_template=SPACED_TITLE)
    tensorizer.set_text_settings(settings.part(TextSettings))
    return settings


class ForeignTower(NamedTuple):
    """One tower as it was read.

    ``weights`` go by their names within a tower; names of adapter weights end in ``lora_A.weight`` or
    ``lora_B.weight``.
    """

    source: Path
    config: Any
    tokenizer: Any
    weights: dict[str, Tensor]
    longest: int = LONGEST
    """Maximum number of tokens of a text that its backbone reads."""
    has_token_types: bool = False
    """True if its backbone takes token types. The library passes them to it; the toolkit leaves them out."""
    settings: Mapping[str, Any] = {}
    """Settings that follow from its weights: ``projection_dim`` and, of an adapter, rank, scale and layers."""
    base: BaseModel | None = None
    """Name of the base model of its adapter."""
    backbone: Any = None
    """Base model of its adapter."""


def backbone_metadata(backbone: Any) -> tuple[int, bool]:
    """Returns the longest text of a backbone in tokens, and whether it takes token types."""
    return longest_sequence(backbone, LONGEST), "token_type_ids" in inspect.signature(
        backbone.forward
    ).parameters


def backbone_tower(folder: ModelFolder) -> ForeignTower:
    """Reads a Hugging Face folder with a whole encoder and its tokenizer.

    Raises:
        InputError: it cannot be loaded.
        CheckpointError: the model does not give a state for every token.
    """
    folder.require_safetensors()
    backbone: Any = load_backbone(folder)
    if (
        backbone.config.is_encoder_decoder and hasattr(backbone, "decoder")
    ) or backbone.config.model_type == "dpr":
        raise CheckpointError(
            f"is a {type(backbone).__name__}",
            file=folder.path,
            expected="one encoder that gives a vector for every token, such as a BERT",
        )
    weights = {f"backbone.{name}": tensor for name, tensor in distinct_weights(backbone).items()}
    return ForeignTower(
        folder.path, backbone.config, load_tokenizer(folder), weights, *backbone_metadata(backbone)
    )


def read_backbone(folder: ModelFolder, given: Given) -> ModelParts:
    """Reads a Hugging Face encoder as one tower for both sides."""
    tower = backbone_tower(folder)
    return bi_encoder_of(tower, tower, given.settings)


def marks_segments(tower: ForeignTower, *texts: str) -> bool:
    """True if a token type other than 0 reaches the backbone for one text, or a pair."""
    names = getattr(tower.tokenizer, "model_input_names", ())
    return (
        tower.has_token_types
        and "token_type_ids" in names
        and any(tower.tokenizer(*texts, verbose=False).encodings[0].type_ids)
    )


def bi_encoder_of(
    question: ForeignTower,
    ctx: ForeignTower,
    settings: EncoderSettings,
    *,
    lengths: Sequence[int | None] = (None, None),
    stated: frozenset[str] = frozenset(),
    own_text: bool = False,
) -> ModelParts:
    """Joins two towers, or one given twice, into the parts of a bi-encoder.

    Args:
        lengths: those of questions and passages, where they are stated. None takes the length from
            ``settings``.
        own_text: True if questions keep their typographic apostrophes, as in the library, unless its
            tokenizer of questions makes them plain. With one tower for both sides they always keep them.

    Raises:
        CheckpointError: the towers differ in more than weights.
        ConfigError: the tokenizer or a length does not fit.
    """
    metadata = [
        {name: value for name, value in tower.config.to_dict().items() if not _NO_MATTER.fullmatch(name)}
        | {f"encoder.{name}": value for name, value in tower.settings.items()}
        for tower in (question, ctx)
    ]
    # a difference in family explains all others
    for name in sorted({**metadata[0], **metadata[1]}, key=lambda name: (name != "model_type", name)):
        values = [each.get(name) for each in metadata]
        if values[0] != values[1]:
            raise CheckpointError(
                f"its two encoders differ in {name} ({str(values[0])[:60]} and {str(values[1])[:60]})",
                file=question.source.parent,
                expected="two encoders of one kind, which differ in weights only",
            )
    plain = question is not ctx and _makes_questions_plain(question, ctx)
    of_ctx = min(lengths[1] or settings.sequence_length, ctx.longest)
    of_question = lengths[0] or (settings.question_length if lengths[1] is None else 0) or of_ctx
    of_question = min(of_question, question.longest)
    for asked, tower in zip(lengths, (question, ctx), strict=True):
        if asked and asked > tower.longest:
            message = (
                "%s: texts are cut at %d tokens, not at %d as it states: the encoder has no more positions"
            )
            warn_once(logger, message, tower.source, tower.longest, asked)
    if settings.projection_dim not in (0, question.settings.get("projection_dim")):
        raise CheckpointError(
            f"encoder.projection_dim={settings.projection_dim}, but this folder has no such projection",
            file=question.source,
            hint="set it to 0; to train with one, start from encoder.pretrained_model_cfg=<the folder>",
        )
    of_weights: dict[str, Any] = {
        "projection_dim": 0,
        "projection_activation": "none",
        "adapter": "none",
        "static_questions": False,  # set after a model is loaded
        **question.settings,
    }
    settings = replace(
        settings,
        **of_weights,
        shared=question is ctx,
        sequence_length=of_ctx,
        question_length=0 if of_question == of_ctx else of_question,
    )
    if own_text or plain or question is ctx:
        settings = replace(settings, plain_apostrophes=plain)
    if settings.append_eos:
        append_end_token(ctx.tokenizer)
    tensorizer = Tensorizer(
        ctx.tokenizer, sequence_length=settings.sequence_length, question_length=settings.question_length
    )
    settings = with_text_settings(tensorizer, settings)
    towers = {"question": question} if question is ctx else {"question": question, "ctx": ctx}
    weights = {}
    for side, tower in towers.items():
        for name, tensor in tower.weights.items():
            if tower.base is not None and name.startswith("backbone."):
                # both adapters belong to one backbone, which is named after the question tower
                weights[f"question_model.{name.removesuffix('weight')}{side}.weight"] = tensor
            else:
                weights[f"{side}_model.{name}"] = tensor
    return ModelParts(
        settings,
        question.config,
        tensorizer,
        weights,
        stated=stated,
        base=question.base,
        backbone=question.backbone,
    )


def _makes_questions_plain(question: ForeignTower, ctx: ForeignTower) -> bool:
    """True if the tokenizer of questions makes typographic apostrophes plain, and that of passages does not.

    Raises:
        CheckpointError: they differ in anything else.
    """
    # State that determines the ids of a text, except for its length.
    states: list[dict[str, Any]] = []
    for tokenizer in (question.tokenizer, ctx.tokenizer):
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        lengths = {"truncation": None, "padding": None, "truncation_side": tokenizer.truncation_side}
        states.append(state | lengths | {"normalizer": steps_of(state.get("normalizer"))})
    first, second = states
    steps = first["normalizer"]
    rule = steps[0] if steps and first != second else {}
    makes_plain = rule.get("pattern") == {"String": TYPOGRAPHIC_APOSTROPHE} and rule.get("content") == "'"
    if makes_plain:
        first["normalizer"] = steps[1:]
    if differing := [name for name in second if first[name] != second[name]]:
        raise CheckpointError(
            f"the tokenizers of questions and passages differ ({differing[0]})",
            file=question.source.parent,
            expected="one tokenizer; the toolkit's towers share it",
        )
    return makes_plain
