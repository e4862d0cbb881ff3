"""One stage of a ladder, and the record that shows whether it is done.

``<stage>/stage.json`` holds the settings that affect what the stage makes, hashes of its inputs and outputs,
and whether it is finished. It is written when the stage starts and again when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.hashes import text_sha256
from dpr.formats.checkpoints import RUN_FILE
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import MANIFEST, describe_file, read_json, read_manifest, write_json
from dpr.storage.inside import inside

RECORD = "stage.json"
_FORMAT = 1
Facts = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A command to be run once. ``name`` is also its folder's."""

    name: str
    folder: Path
    what: str
    """What it does, for people."""
    command: Callable[[], list[str]]
    """Arguments of ``dpr``; called when the stage starts, since they may name what earlier stages have
    made."""
    settings: Mapping[str, Any]
    """The settings that affect the result, by name."""
    outputs: Callable[[], Sequence[str]]
    """What it makes, by name inside its folder; called when it has ended."""
    scratch: Callable[[], Sequence[str]] = list
    """Folders that it makes and nobody reads, removed when it has ended."""
    inputs: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """The user's files that it reads, by the setting that names them."""
    after: Sequence[str] = ()
    """Stages whose outputs it reads."""
    processes: int = 1
    """Processes that torchrun starts for it; 1 = without torchrun."""
    is_training: bool = False


class Record:
    """What ``stage.json`` holds, and what it should hold now."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._file = stage.folder / RECORD
        self.stored: dict[str, Any] = {}
        if self._file.is_file():
            self.stored = read_json(self._file)
            if not isinstance(self.stored, dict) or self.stored.get("format") != _FORMAT:
                raise InputError(
                    "is not the record of a stage", file=self._file, hint="remove it to run the stage again"
                )

    @property
    def is_started(self) -> bool:
        return bool(self.stored)

    @property
    def is_done(self) -> bool:
        return "outputs" in self.stored

    @property
    def digest(self) -> str:
        """Stands for what a finished stage made, in the records of those after it."""
        return _combined(self.stored["outputs"])

    def settings_changed(self) -> list[str]:
        """How the settings differ from those the stage was made with, one sentence each."""
        was, now = self.stored.get("settings", {}), _as_json(self.stage.settings)
        keys = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
        return [f"{key} was {was.get(key)}, is now {now.get(key)}" for key in keys]

    def inputs_changed(self, inputs: Facts) -> list[str]:
        """Which inputs differ from those the stage was made of, one sentence each."""
        was = {name: facts["sha256"] for name, facts in self.stored.get("inputs", {}).items()}
        now = {name: facts["sha256"] for name, facts in inputs.items()}
        return [
            f"{name} has changed"
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        ]

    def lost(self) -> str | None:
        """Which output of a finished stage is missing or has changed. Compares sizes; contents are for ``dpr
        verify``."""
        folder = self.stage.folder
        for name, facts in self.stored["outputs"].items():
            try:
                file = _described(inside(folder, name, stated_in=RECORD))
                if file.stat().st_size != facts["bytes"]:
                    return f"{name} has changed"
                for inner, entry in (
                    read_manifest(folder / name)["files"] if file.name == MANIFEST else {}
                ).items():
                    if (folder / name / inner).stat().st_size != entry["bytes"]:
                        return f"{name}/{inner} has changed"
            except (InputError, OSError):
                return f"{name} is missing"
        return None

    def files_now(self) -> Facts:
        """One hash for each of the stage's inputs, over the files and all files in folders; their names and
        times do not count.

        Raises:
            InputError: a file is missing or cannot be read.
        """
        return {
            name: {"sha256": _combined([content_sha256(file) for path in paths for file in _files(path)])}
            for name, paths in self.stage.inputs.items()
        }

    def start(self, inputs: Facts, command: Sequence[str]) -> None:
        self.stored = {
            "format": _FORMAT,
            "stage": self.stage.name,
            "settings": _as_json(self.stage.settings),
            "inputs": inputs,
            "command": list(command),
            "seconds": self.stored.get("seconds", 0.0),
        }
        write_json(self._file, self.stored, note={})

    def add_seconds(self, seconds: float) -> None:
        """Adds to the time of all starts that were not killed."""
        self.stored["seconds"] = round(self.stored["seconds"] + seconds, 1)
        write_json(self._file, self.stored, note={})

    def finish(self) -> None:
        """Stores size and hash of what was made: of a file, or of the manifest of a folder, which names and
        hashes the files in it.

        Raises:
            InputError: the command ended well but left out some of it.
        """
        folder = self.stage.folder
        self.stored["outputs"] = {
            name: describe_file(_described(folder / name)) for name in self.stage.outputs()
        }
        write_json(self._file, self.stored, note={})


def trained_files(folder: Path) -> list[str]:
    """What a finished training has made that others read: its best and last checkpoint, and last its
    metrics."""
    run = read_json(folder / RUN_FILE)
    kept = {run[key] for key in ("best_checkpoint", "last_checkpoint") if run.get(key)}
    for name in kept:
        inside(folder, name, stated_in=RUN_FILE)  # what is named may be removed
    return [*sorted(kept), "metrics.json"]


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def _combined(parts: Any) -> str:
    return text_sha256(json.dumps(parts, sort_keys=True))


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _described(path: Path) -> Path:
    """The file that stands for a path: its manifest, for a folder."""
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise InputError("was not written", file=path)
    return file
