"""Reader of the towers in a checkpoint file of the original DPR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import CheckpointError
from dpr.data.tensorizer import Tensorizer
from dpr.formats.model_folder import folder_or_name
from dpr.formats.original.checkpoints import read_dpr_checkpoint
from dpr.models.backbones import read_config
from dpr.models.folders.model_parts import ModelParts
from dpr.models.settings import EncoderSettings
from dpr.models.sources import base_model

TOWERS = ("question_model", "ctx_model")


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
