"""Reader of the DPR classes of transformers: a folder for each of two BERTs, read at their first token."""

from __future__ import annotations

from dataclasses import replace

from dpr.core.errors import CheckpointError
from dpr.data.tokenizer_files import load_tokenizer
from dpr.formats.model_folder import CONFIG, ModelFolder, look
from dpr.models.backbones import load_weights, read_config
from dpr.models.folders.model_parts import ForeignTower, Given, ModelParts, bi_encoder_of
from dpr.models.folders.sentence_transformers_modules import SIDES, stated_length
from dpr.models.properties import distinct_weights

QUESTION = "question_encoder"
CTX = "ctx_encoder"
DPR_PAIR = (
    f"a folder that holds both: the folder of the question encoder as {QUESTION}, that of the context encoder"
    f" as {CTX}"
)


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
    options = {"tokenizer_type": "bert"} if str(kind).startswith("DPR") else {}
    return ForeignTower(
        folder.path,
        config,
        load_tokenizer(folder, **options),
        weights,
        config.max_position_embeddings,
        settings={"projection_dim": encoder.projection_dim},
    )
