"""Folders of training runs: which checkpoint stands for the run, ``run.json``, and the SHA-256 that seal it and
the files beside it. Also finds what in a folder of outputs differs from its checksums and manifests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.formats.text_input import iter_raw_lines, open_input
from dpr.storage.checksums import verify_file
from dpr.storage.durable import (
    CHECKSUM,
    describe_file,
    differences,
    json_text,
    sealed,
    verify_folder,
    write_json,
)
from dpr.storage.untrusted import describe, inside, is_below, read_json

logger = get_logger(__name__)
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
        problems[RUN_FILE] = [f"is not a record of a run ({error})"]
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


def checkpoint_name(step: int | str) -> str:
    """Returns the name of the folder of a step's checkpoint."""
    return f"dpr_biencoder.step{step}"


def checkpoint_folders(output_dir: Path) -> list[Path]:
    """Returns the checkpoints of a run, newest (highest step) first."""
    found = []
    for path in output_dir.glob(checkpoint_name("*")):
        step = path.name.removeprefix(checkpoint_name(""))
        if step.isdecimal() and path.is_dir():
            found.append((int(step), path))
    return [path for _, path in sorted(found, reverse=True)]


def warn_of_verdict(checkpoint: Path) -> None:
    """Warns if the best checkpoint of a run is worse than its base model."""
    with suppress(DprError):
        found = read_json(checkpoint.parent / VERDICT_FILE)
        verdict = found if isinstance(found, dict) else {}
        if verdict.get("best_checkpoint") == checkpoint.name and verdict.get("verdict") == "worse":
            message = "%s is %s; with train.keep=better the run opens the base model instead"
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


def problems_below(path: Path) -> dict[Path, list[str]]:
    """Returns the problems of a file, or of each part of a folder that has a checksum or a manifest; an empty
    list means none."""
    found = {}
    for part in _parts(path) if path.is_dir() else [path]:
        found[part] = verify_folder(part) if part.is_dir() else verify_file(part)
    for run in sorted(path.rglob(RUN_FILE)):
        found |= {run.with_name(name): problems for name, problems in run_problems(run.parent).items()}
    return found


def _parts(folder: Path) -> list[Path]:
    """Returns the folder itself if it has a manifest; else the folders in it that have one or should
    (checkpoints), and files with a checksum."""
    if (folder / "manifest.json").exists():
        return [folder]
    outputs = {file.parent for file in folder.rglob("manifest.json")} | {
        path for path in folder.glob("*.step*") if path.is_dir()
    }
    files = {note.with_name(note.name.removesuffix(CHECKSUM)) for note in folder.rglob(f"?*{CHECKSUM}")}
    outputs |= {file for file in files if not outputs & set(file.parents)}
    return sorted(path for path in outputs if is_visible(path, folder)) or [folder]


def is_visible(path: Path, folder: Path) -> bool:
    """Returns whether no part of a path below ``folder`` begins with a dot."""
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)
