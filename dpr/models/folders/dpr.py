"""Readers of DPR's own models: the DPR classes of transformers, a folder for each of two BERTs that are read at
their first token; and the towers in a checkpoint file of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokenizer_files import load_tokenizer
from dpr.formats.model_folder import CONFIG, ModelFolder, folder_or_name, look
from dpr.formats.original.checkpoints import read_dpr_checkpoint
from dpr.models.backbones import load_weights, read_config
from dpr.models.folders.model_parts import ForeignTower, Given, ModelParts, bi_encoder_of
from dpr.models.folders.sentence_transformers_modules import SIDES, stated_length
from dpr.models.properties import distinct_weights
from dpr.models.settings import EncoderSettings
from dpr.models.sources import base_model

QUESTION = "question_encoder"
CTX = "ctx_encoder"
DPR_PAIR = (
    f"a folder that holds both: the folder of the question encoder as {QUESTION}, that of the context encoder"
    f" as {CTX}"
)
TOWERS = ("question_model", "ctx_model")


def is_hf_dpr(folder: ModelFolder) -> bool:
    """True if a folder holds one encoder of a Hugging Face DPR pair."""
    return folder.has(CONFIG) and folder.settings(CONFIG).get("model_type") == "dpr"


def is_hf_dpr_pair(folder: ModelFolder) -> bool:
    """True if a folder holds both encoders of a Hugging Face DPR pair."""
    has_both = all((folder.path / name / CONFIG).is_file() for name in (QUESTION, CTX))
    return has_both and all(map(is_hf_dpr, _sides(folder)))


def _sides(folder: ModelFolder) -> list[ModelFolder]:
    return [look(folder.path / name, within=folder.path) for name in (QUESTION, CTX)]


def read_hf_dpr(folder: ModelFolder, given: Given) -> ModelParts:
    """Reads the folders of the question and of the context tower."""
    sides = _sides(folder)
    question, ctx = map(_hf_dpr_tower, sides)
    lengths = [stated_length(folder, side) for folder, side in zip(sides, SIDES, strict=True)]
    settings = replace(given.settings, pooling="cls", normalize=False)
    return bi_encoder_of(question, ctx, settings, lengths=lengths, own_text=True)


def refuse_one_of_pair(folder: ModelFolder, given: Given) -> ModelParts:
    """Raises CheckpointError: one encoder of a pair is not a model for both sides."""
    found = "is the folder of one encoder of a Hugging Face DPR pair"
    raise CheckpointError(found, file=folder.path, expected=DPR_PAIR)


def _hf_dpr_tower(folder: ModelFolder) -> ForeignTower:
    """Reads the question or the context tower, depending on the name of the folder.

    Raises:
        InputError: a file is absent or damaged.
        CheckpointError: the folder holds the other encoder, or none.
    """
    from transformers import BertConfig, DPRContextEncoder, DPRQuestionEncoder

    folder.require_safetensors()
    model_class = DPRQuestionEncoder if folder.path.name == QUESTION else DPRContextEncoder
    encoder = getattr(load_weights(model_class, folder, read_config(folder)), folder.path.name)
    weights = {f"backbone.{key}": tensor for key, tensor in distinct_weights(encoder.bert_model).items()}
    if encoder.projection_dim:
        weights |= {f"encode_proj.{key}": value for key, value in encoder.encode_proj.state_dict().items()}
    values = encoder.config.to_dict()
    for key in ("model_type", "architectures", "projection_dim"):
        values.pop(key, None)
    config = BertConfig.from_dict(values)
    # Use BERT's tokenizer in place of DPR's classes: some of these lower-case every text, whatever their file
    # says.
    kind = folder.settings("tokenizer_config.json").get("tokenizer_class", "DPR")
    options: dict[str, Any] = {"tokenizer_type": "bert"} if str(kind).startswith("DPR") else {}
    return ForeignTower(
        folder.path,
        config,
        load_tokenizer(folder, **options),
        weights,
        config.max_position_embeddings,
        settings={"projection_dim": encoder.projection_dim},
    )


def read_original_dpr(
    path: Path,
    *,
    pretrained_model_cfg: str | None = None,
    special_tokens: Sequence[str] = (),
    trailing_sep: bool = True,
) -> ModelParts:
    """Reads a checkpoint file of the original DPR.

    The file has no backbone config and no tokenizer. Both come from ``pretrained_model_cfg`` or, without one,
    from the model that the file names. That name is only looked up on this machine, so that a file cannot
    cause a download.

    Raises:
        CheckpointError: the file is not such a checkpoint, its towers are not Hugging Face's, or the name in
        it is not on this machine.
    """
    stored = read_dpr_checkpoint(path)
    kind = stored.settings.get("encoder_model_type")
    if isinstance(kind, str) and not kind.startswith("hf_"):
        raise CheckpointError(
            f"encoder_model_type is {kind[:40]}",
            file=path,
            expected="hf_bert; other kinds of towers are not read",
        )
    with base_model(pretrained_model_cfg, stored.pretrained_model_cfg, path) as name:
        source = folder_or_name(name)
        config = read_config(source)
        tensorizer = Tensorizer.load(
            source,
            sequence_length=stored.sequence_length,
            do_lower_case=stored.do_lower_case,
            special_tokens=special_tokens,
        )
    settings = EncoderSettings(
        projection_dim=len(stored.weights.get("question_model.encode_proj.weight", ())),
        sequence_length=stored.sequence_length,
        dpr_trailing_sep=trailing_sep,
    )
    weights = {}
    for name, tensor in stored.weights.items():
        tower, _, rest = name.partition(".")
        of_backbone = tower in TOWERS and not rest.startswith("encode_proj.")
        weights[f"{tower}.backbone.{rest}" if of_backbone else name] = tensor
    return ModelParts(settings, config, tensorizer, weights)
