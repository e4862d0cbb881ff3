"""Reader of a Hugging Face folder with a plain encoder."""

from __future__ import annotations

from typing import Any

from dpr.core.errors import CheckpointError
from dpr.data.tokenizer_files import load_tokenizer
from dpr.formats.model_folder import ModelFolder
from dpr.models.backbones import load_backbone
from dpr.models.folders.foreign_towers import ForeignTower, backbone_metadata
from dpr.models.properties import distinct_weights


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
