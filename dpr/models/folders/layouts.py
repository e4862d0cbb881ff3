"""Finds out which library wrote a model's file or folder, and has it read: checkpoints of the toolkit and of the original DPR,
folders of Hugging Face, sentence-transformers and peft.

Statements of a folder take precedence over settings. Code in a folder is never run, and pickled weights are
not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import CheckpointError, InputError
from dpr.formats import checkpoints, run_folders
from dpr.formats.model_folder import CONFIG, look
from dpr.models.folders.foreign_towers import joined
from dpr.models.folders.hugging_face import backbone_tower
from dpr.models.folders.hugging_face_dpr import CTX, DPR_PAIR, QUESTION, dpr_parts, is_dpr
from dpr.models.folders.modules import MODULES
from dpr.models.folders.original_dpr import read_model_parts
from dpr.models.folders.own_checkpoint import checkpoint_parts
from dpr.models.folders.peft_adapter import adapter_tower, is_adapter
from dpr.models.folders.sentence_transformers import sentence_transformers_parts
from dpr.models.model_parts import ModelParts
from dpr.models.settings import EncoderSettings

EXPECTED = (
    "a folder with model.safetensors and encoder_settings.json, a run folder, a Hugging Face folder with"
    " config.json and model.safetensors, a folder of sentence-transformers or peft, or a checkpoint file of"
    " the original DPR"
)


def is_backbone(folder: Path) -> bool:
    """True if a folder holds a Hugging Face encoder alone, which does not state how it is used."""
    found = look(folder)
    is_stated = checkpoints.is_checkpoint(folder) or found.has(MODULES) or is_dpr(found)
    return found.has(CONFIG) and not is_stated


def read_model(
    path: Path,
    settings: EncoderSettings,
    *,
    base: str | None = None,
    special_tokens: Sequence[str] = (),
    trailing_sep: bool = True,
) -> tuple[ModelParts, Path]:
    """Reads the model in a file or folder; returns its parts and the folder in which it was found.

    ``settings`` supply what a third-party folder does not state. ``base`` names the model to which its
    adapters, or a file of the original, belong.

    Raises:
        CheckpointError: there is none, or it is invalid.
    """
    if path.is_file():  # of the original DPR: models of this toolkit and of other libraries are folders
        parts = read_model_parts(
            path, pretrained_model_cfg=base, special_tokens=special_tokens, trailing_sep=trailing_sep
        )
        return parts, path
    if not path.exists():
        # DPR numbered its checkpoints by epochs
        others = [other.name for other in path.parent.glob("*.step*")]
        raise CheckpointError(
            "there is no such file or folder", file=path, expected=" or ".join(sorted(others)[-3:]) or None
        )
    folder = run_folders.resolve_checkpoint(path)
    run_folders.warn_of_verdict(folder)
    try:
        if checkpoints.is_checkpoint(folder):
            return checkpoint_parts(folder, settings.pooling), folder
        found = look(folder)
        if found.has(MODULES):
            return sentence_transformers_parts(found, settings, base), folder
        if all((folder / name / CONFIG).is_file() for name in (QUESTION, CTX)):
            sides = [look(folder / name, within=folder) for name in (QUESTION, CTX)]
            if all(map(is_dpr, sides)):
                return dpr_parts(sides, settings), folder
        if is_adapter(found):
            tower = adapter_tower(found, base)
        elif is_dpr(found):
            raise CheckpointError(
                "is the folder of one encoder of a Hugging Face DPR pair", file=folder, expected=DPR_PAIR
            )
        elif found.has(CONFIG):
            tower = backbone_tower(found)
        else:
            raise CheckpointError("is not a checkpoint", file=path, expected=EXPECTED)
        return joined(tower, tower, settings), folder
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(
            error.found, file=error.file, line=error.line, expected=error.expected, hint=error.hint
        ) from error
