"""Reader of the DPR classes of transformers: a folder for each of two BERTs, read at their first token."""

from __future__ import annotations

from pathlib import Path

from dpr.data.tokenizer_files import check_files, load_tokenizer
from dpr.models.backbones import CONFIG, check_safetensors, load_weights, read_config, read_object
from dpr.models.folders.foreign_towers import ForeignTower
from dpr.models.properties import distinct_weights

QUESTION = "question_encoder"
CTX = "ctx_encoder"
DPR_PAIR = (
    f"a folder that holds both: the folder of the question encoder as {QUESTION}, that of the context encoder"
    f" as {CTX}"
)


def is_dpr(folder: Path) -> bool:
    """True if a folder holds one encoder of a Hugging Face DPR pair."""
    return (folder / CONFIG).is_file() and read_object(folder / CONFIG).get("model_type") == "dpr"


def dpr_tower(folder: Path) -> ForeignTower:
    """Reads the question or the context tower, depending on the name of the folder.

    Raises:
        InputError: a file is absent or damaged.
        CheckpointError: the folder holds the other encoder, or none.
    """
    from transformers import BertConfig, DPRContextEncoder, DPRQuestionEncoder

    check_files(folder, within=folder.parent)
    check_safetensors(folder)
    model_class = DPRQuestionEncoder if folder.name == QUESTION else DPRContextEncoder
    encoder = getattr(load_weights(model_class, folder, read_config(folder)), folder.name)
    weights = {f"backbone.{key}": tensor for key, tensor in distinct_weights(encoder.bert_model).items()}
    if encoder.projection_dim:
        weights |= {f"encode_proj.{key}": value for key, value in encoder.encode_proj.state_dict().items()}
    values = encoder.config.to_dict()
    for key in ("model_type", "architectures", "projection_dim"):
        values.pop(key, None)
    config = BertConfig.from_dict(values)
    # Use BERT's tokenizer in place of DPR's classes: some of these lower-case every text, whatever their file
    # says.
    kind = read_object(folder / "tokenizer_config.json").get("tokenizer_class", "DPR")
    options = {"tokenizer_type": "bert"} if str(kind).startswith("DPR") else {}
    return ForeignTower(
        folder,
        config,
        load_tokenizer(folder, **options),
        weights,
        config.max_position_embeddings,
        settings={"projection_dim": encoder.projection_dim},
    )
