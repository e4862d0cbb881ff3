"""Checkpoint folders: the files that any use of a model needs, and those from which a run resumes. No pickle;
every file is hashed.

Only checkpoints of a training run have the last five files. The manifest is written last.

    model.safetensors        weights, keys `question_model.` and `ctx_model.` (only the first with a shared tower)
    encoder/                 backbone config (of passages, if questions have a static table) and tokenizer
                             files, as Hugging Face writes them; token_frequencies.json,
                             where `idf` pooling starts
    encoder_settings.json    pooling, lengths: all other settings that determine a vector
    manifest.json            sizes and SHA-256 of all files
    optimizer.safetensors    optimizer state by parameter name
    scaler.json              loss scale of fp16
    callbacks.json           state of callbacks, by class name
    trainer_state.json       progress, identity of the run, best value
    config.json              the resolved configuration of the run
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpr.core.errors import CheckpointError
from dpr.storage.durable import verify_folder
from dpr.storage.untrusted import describe, read_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
SCALER_FILE = "scaler.json"
ENCODER_FOLDER = "encoder"
SETTINGS_FILE = "encoder_settings.json"
STATE_FILE = "trainer_state.json"
CALLBACKS_FILE = "callbacks.json"
CONFIG_FILE = "config.json"


def is_checkpoint(folder: Path) -> bool:
    """True if this toolkit wrote the folder (complete or not)."""
    return (folder / MODEL_FILE).is_file() and (folder / SETTINGS_FILE).is_file()


def write_tensors(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    """Writes tensors into a folder that ``durable_folder`` is about to publish.

    Raises:
        OSError: the disk is full or refuses.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(
            {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, str(folder / name)
        )
    except SafetensorError as error:
        raise OSError(f"{name}: {error}") from error


def write_json_file(folder: Path, name: str, value: dict[str, Any] | list[Any]) -> None:
    """Writes JSON into a folder that ``durable_folder`` is about to publish."""
    (folder / name).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Reads tensors onto the CPU.

    Raises:
        CheckpointError: the file is absent or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with open(folder / name, "rb"):  # safetensors calls whatever it cannot open absent
            return load_file(str(folder / name))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot be read ({error})", file=folder / name, expected="a safetensors file"
        ) from error


def check_whole(folder: Path) -> None:
    """Raises CheckpointError unless every file of the folder is as its manifest says."""
    if problems := verify_folder(folder):
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(
            "; ".join(problems[:3]) + more,
            file=folder,
            expected="the files its manifest lists",
            hint="use another checkpoint of the run",
        )


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the encoder settings of a checkpoint."""
    settings = read_json(folder / SETTINGS_FILE)
    if not isinstance(settings, dict):
        raise CheckpointError(f"is {describe(settings)}", file=folder / SETTINGS_FILE, expected="an object")
    version = settings.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"format_version is {version!a:.40}", file=folder / SETTINGS_FILE, expected=str(FORMAT_VERSION)
        )
    return dict(settings)
