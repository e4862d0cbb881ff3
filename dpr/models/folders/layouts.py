"""The layouts of models' files and folders: which one a folder has, what that states, and its reader.

Another layout is one more entry of ``_LAYOUTS``; if its parts are in folders that no file names, add these to
``dpr.models.sources``. Statements of a folder take precedence over settings. Code in a folder is never run,
and pickled weights are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dpr.core.errors import CheckpointError, InputError
from dpr.formats import checkpoints, run_folders
from dpr.formats.model_folder import CONFIG, ModelFolder, look
from dpr.models.folders.dpr import (
    is_hf_dpr,
    is_hf_dpr_pair,
    read_hf_dpr,
    read_original_dpr,
    refuse_one_of_pair,
)
from dpr.models.folders.model_parts import Given, ModelParts, read_backbone
from dpr.models.folders.own_checkpoint import read_own_checkpoint
from dpr.models.folders.peft_adapter import is_adapter, read_peft
from dpr.models.folders.sentence_transformers import read_sentence_transformers
from dpr.models.folders.sentence_transformers_modules import MODULES

EXPECTED = (
    "a folder with model.safetensors and encoder_settings.json, a run folder, a Hugging Face folder with"
    " config.json and model.safetensors, a folder of sentence-transformers or peft, or a checkpoint file of"
    " the original DPR"
)


class Layout(NamedTuple):
    """A layout of folders, by a test that these pass and their reader. ``states_vectors``: they state how a text
    becomes a vector, so that no setting has to."""

    fits: Callable[[ModelFolder], bool]
    read: Callable[[ModelFolder, Given], ModelParts]
    states_vectors: bool = True


OWN = Layout(lambda folder: checkpoints.is_checkpoint(folder.path), read_own_checkpoint)
"""A checkpoint of this toolkit. Only its encoder's folder may come from elsewhere."""
BACKBONE = Layout(lambda folder: folder.has(CONFIG), read_backbone, states_vectors=False)
"""A Hugging Face encoder alone."""
# A folder has the first layout that fits it.
_LAYOUTS = (
    Layout(lambda folder: folder.has(MODULES), read_sentence_transformers),
    Layout(is_hf_dpr_pair, read_hf_dpr),
    Layout(is_adapter, read_peft, states_vectors=False),
    Layout(is_hf_dpr, refuse_one_of_pair),
    BACKBONE,
)


def layout_of(path: Path) -> tuple[Layout | None, ModelFolder]:
    """Returns the layout of a folder, or of the checkpoint that a run's folder stands for, and that folder. The
    layout is None if it holds no model.

    Raises:
        InputError: the folder may not be read.
    """
    folder = run_folders.resolve_checkpoint(path)
    if checkpoints.is_checkpoint(folder):
        return OWN, ModelFolder(folder)
    found = look(folder)
    return next((layout for layout in _LAYOUTS if layout.fits(found)), None), found


def read_model(
    path: Path, given: Given, *, special_tokens: Sequence[str] = (), trailing_sep: bool = True
) -> tuple[ModelParts, Path]:
    """Reads the model in a file or folder; returns its parts and the folder in which it was found.

    Raises:
        CheckpointError: there is none, or it is invalid.
    """
    if path.is_file():  # of the original DPR: models of this toolkit and of other libraries are folders
        parts = read_original_dpr(
            path, pretrained_model_cfg=given.base, special_tokens=special_tokens, trailing_sep=trailing_sep
        )
        return parts, path
    if not path.exists():
        # DPR numbered its checkpoints by epochs
        others = [other.name for other in path.parent.glob("*.step*")]
        raise CheckpointError(
            "there is no such file or folder", file=path, expected=" or ".join(sorted(others)[-3:]) or None
        )
    try:
        layout, folder = layout_of(path)
        run_folders.warn_of_verdict(folder.path)
        if layout is None:
            raise CheckpointError("is not a checkpoint", file=path, expected=EXPECTED)
        return layout.read(folder, given), folder.path
    except CheckpointError:
        raise
    except InputError as error:
        raise CheckpointError(
            error.found, file=error.file, line=error.line, expected=error.expected, hint=error.hint
        ) from error
