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

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpr.core.errors import CheckpointError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.formats.text_input import iter_raw_lines, open_input
from dpr.storage.durable import (
    CHECKSUM,
    describe_file,
    differences,
    json_text,
    read_json,
    sealed,
    verify_folder,
    write_json,
)
from dpr.storage.untrusted import describe, inside, is_below

if TYPE_CHECKING:
    from torch import Tensor

logger = get_logger(__name__)

FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
ENCODER_FOLDER = "encoder"
SETTINGS_FILE = "encoder_settings.json"
STATE_FILE = "trainer_state.json"
CALLBACKS_FILE = "callbacks.json"
CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
RUN_FOLDER = "model"
"""Folder of the run that trained the model, inside the folder of a larger command."""
VERDICT_FILE = "verdict.json"
METRICS_LINES = "metrics.jsonl"
METRICS_RECORD = "metrics_lines"
"""Key in ``run.json`` of size and SHA-256 of ``metrics.jsonl`` at the last checkpoint; later lines follow."""
FILES_RECORD = "files"
"""Key in ``run.json``, once the run has ended, of size and SHA-256 of the other JSON files beside it, by
name."""


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


def metrics_lines(file: Path) -> Iterator[str | None]:
    """Yields the lines of a ``metrics.jsonl``, without newline; None for a line longer than any line of
    metrics.

    Raises:
        InputError: it cannot be read.
    """
    with open_input(file) as stream:
        for _, line, too_long in iter_raw_lines(stream):
            yield None if too_long else line.decode(errors="replace")  # the last may be torn within a letter


def describe_metrics(run: Path, size: int | None = None) -> dict[str, Any]:
    """Returns size and SHA-256 of the first ``size`` bytes of a run's ``metrics.jsonl`` (None: all). A
    missing file counts as empty."""
    file = run / METRICS_LINES
    content = file.read_bytes()[:size] if file.exists() else b""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def write_run(run: Path, metadata: Mapping[str, Any]) -> None:
    """Writes ``run.json`` with a SHA-256 of itself."""
    write_json(run / RUN_FILE, sealed(metadata))


def seal_run(run: Path) -> None:
    """Records in ``run.json``, at the end of a run, the contents of the other JSON files of its folder,
    except those that have a checksum beside them."""
    if (run / RUN_FILE).is_file():
        files = {
            file.name: describe_file(file)
            for file in sorted(run.glob("*.json"))
            if file.name != RUN_FILE and not file.with_name(file.name + CHECKSUM).exists()
        }
        write_run(run, {**read_json(run / RUN_FILE), FILES_RECORD: files})


def run_problems(run: Path) -> dict[str, list[str]]:
    """Returns, by name, the problems of those files of a run's folder, besides its checkpoints, that
    ``run.json`` records. Empty lists are good."""
    problems: dict[str, list[str]] = {}
    try:
        metadata = read_json(run / RUN_FILE)
        if "sha256" in metadata:
            as_written = json_text(sealed(metadata), indent=2) + "\n"
            is_whole = (run / RUN_FILE).read_text(encoding="utf-8") == as_written
            changed = "content has changed (SHA-256 differs from the one it states)"
            problems[RUN_FILE] = [] if is_whole else [changed]
        for name, entry in metadata.get(FILES_RECORD, {}).items():
            if is_below(name):
                problems[name] = differences(run / name, entry)
    except InputError as error:
        problems[RUN_FILE] = [error.found]
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        problems[RUN_FILE] = [f"is no record of a run ({error})"]
    if (lines := metrics_problems(run)) is not None:
        problems[METRICS_LINES] = lines
    return problems


def metrics_problems(run: Path) -> list[str] | None:
    """Returns the problems of a run's ``metrics.jsonl`` up to its last checkpoint, or None if ``run.json``
    does not record it."""
    try:
        metadata = read_json(run / RUN_FILE) if (run / RUN_FILE).is_file() else None
        if not isinstance(metadata, dict) or METRICS_RECORD not in metadata:
            return None
        stated = metadata[METRICS_RECORD]
        now = describe_metrics(run, int(stated["bytes"]))
    except (InputError, OSError, TypeError, KeyError, ValueError) as error:
        return [f"cannot be compared with what was written ({error})"]
    if now["bytes"] < stated["bytes"]:
        return [f"has been cut to {now['bytes']:,} of the {stated['bytes']:,} bytes that were written"]
    return [] if now["sha256"] == stated.get("sha256") else ["content has changed since it was written"]


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


def checkpoint_folders(output_dir: Path, name: str) -> list[Path]:
    """Returns the checkpoints of a run, newest (highest step) first."""
    found = []
    for path in output_dir.glob(f"{name}.step*"):
        step = path.name.removeprefix(f"{name}.step")
        if step.isdecimal() and path.is_dir():
            found.append((int(step), path))
    return [path for _, path in sorted(found, reverse=True)]


def warn_of_verdict(checkpoint: Path) -> None:
    """Warns if the best checkpoint of a run was found worse than the model it started from."""
    with suppress(DprError):
        found = read_json(checkpoint.parent / VERDICT_FILE)
        verdict = found if isinstance(found, dict) else {}
        if verdict.get("best_checkpoint") == checkpoint.name and verdict.get("verdict") == "worse":
            message = "%s is %s; train.keep=better opens the start in its place"
            logger.warning(message, checkpoint, verdict.get("line"))


def resolve_checkpoint(path: Path) -> Path:
    """Returns a checkpoint folder as it is; for a run folder, its best checkpoint or, without one, its last.
    The folder of ``dpr adapt`` or ``dpr quickstart`` stands for the run in it.

    Raises:
        CheckpointError: there is none.
    """
    if not (path / RUN_FILE).exists() and (path / RUN_FOLDER / RUN_FILE).is_file():
        path = path / RUN_FOLDER
    if (path / RUN_FILE).is_file():
        run = read_json(path / RUN_FILE)
        if not isinstance(run, dict):
            raise CheckpointError(f"is {describe(run)}", file=path / RUN_FILE, expected="an object")
        for key in ("best_checkpoint", "last_checkpoint"):
            name = run.get(key)
            if name is None:
                continue
            # unlike Path.is_dir, False for names that cannot be
            if os.path.isdir(checkpoint := inside(path, name, stated_in=RUN_FILE)):
                return checkpoint
            logger.warning("%s: the checkpoint %s is missing", path, name)
        raise CheckpointError("the run has no checkpoint yet", file=path)
    return path


TOKEN_FREQUENCIES_FILE = "token_frequencies.json"


@dataclass(frozen=True, slots=True)
class TokenFrequencies:
    """Numbers of passages that hold each token. ``passages`` is the number of passages counted;
    ``passages_with`` (V,) int64 is the number of them that hold each token, by token id. ``mean_length`` is
    the mean number of tokens of a passage, 0 if it was not counted."""

    passages: int
    passages_with: np.ndarray
    mean_length: float = 0.0

    def idf(self) -> np.ndarray:
        """Returns BM25's inverse document frequency of every token, (V,) float64.

        It is log(1 + (N - n + 1/2) / (n + 1/2)): positive, close to 0 for tokens that occur in every passage,
        such as [CLS], and greatest for tokens that never occurred.
        """
        with_it = self.passages_with
        return np.log1p((self.passages - with_it + 0.5) / (with_it + 0.5))

    def write(self, folder: Path) -> None:
        """Writes the file into an existing folder."""
        stated = {
            "passages": self.passages,
            "mean_length": self.mean_length,
            "passages_with": self.passages_with.tolist(),
        }
        write_json(folder / TOKEN_FREQUENCIES_FILE, stated)

    @classmethod
    def read(cls, folder: Path, *, vocab_size: int) -> TokenFrequencies | None:
        """Returns the frequencies of a folder, or None if it has none.

        Raises:
            InputError: the file is damaged, or counts another vocabulary than one of ``vocab_size`` tokens.
        """
        file = folder / TOKEN_FREQUENCIES_FILE
        if not file.is_file():
            return None
        try:
            stored: Any = read_json(file)
            passages = stored["passages"]
            counts = np.array(stored["passages_with"], dtype=np.int64)
            length = float(stored.get("mean_length", 0))
            is_right = counts.shape == (vocab_size,) and 0 <= counts.min() <= counts.max() <= passages
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            is_right = False
        if not is_right or not 0 <= length < math.inf:
            expected = f"how many passages have each of the {vocab_size} tokens of the vocabulary"
            raise InputError("is no count of tokens", file=file, expected=expected)
        return cls(passages, counts, length)
