"""One stage of a ladder, and the record by which it is known to be done.

``<stage>/stage.json`` holds the settings that decide what the stage makes, hashes of what it was made of and of what it made, and whether
it is finished. It is written when the stage begins and again when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.durable import read_json, write_json
from dpr.ladder.contents import Facts, combined, input_facts, is_there, output_facts

RECORD = "stage.json"
_FORMAT = 1


@dataclass(frozen=True)
class Stage:
    """A command to be run once. ``name`` is also its folder's."""

    name: str
    folder: Path
    what: str
    """What it does, for people."""
    command: Callable[[], list[str]]
    """Arguments of ``dpr``; asked for when the stage begins, since they may name what earlier stages have made."""
    settings: Mapping[str, Any]
    """What decides the outcome, by the names of the settings."""
    outputs: Callable[[], Sequence[str]]
    """What it makes, by name inside its folder; asked for when it has ended."""
    inputs: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Files that are given from outside, by the setting that names them."""
    after: Sequence[str] = ()
    """Stages whose outputs it reads."""
    settings_file: Mapping[str, Any] | None = None
    """Written as ``settings.yaml`` before the command is run."""
    processes: int = 1
    """Processes that torchrun starts for it; 1 = without torchrun."""
    is_training: bool = False


class Record:
    """What ``stage.json`` says, and what it should say now."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._file = stage.folder / RECORD
        self.stored: dict[str, Any] = {}
        if self._file.is_file():
            self.stored = read_json(self._file)
            if not isinstance(self.stored, dict) or self.stored.get("format") != _FORMAT:
                raise InputError("is not the record of a stage", file=self._file, hint="remove it to run the stage again")

    @property
    def is_begun(self) -> bool:
        return bool(self.stored)

    @property
    def is_done(self) -> bool:
        return "outputs" in self.stored

    @property
    def digest(self) -> str:
        """Stands for what a finished stage made, in the records of those after it."""
        return combined(self.stored["outputs"])

    def settings_changed(self) -> list[str]:
        """How the settings differ from those the stage was made with, one sentence each."""
        was, now = self.stored.get("settings", {}), _as_json(self.stage.settings)
        keys = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
        return [f"{key} was {was.get(key)}, is now {now.get(key)}" for key in keys]

    def inputs_changed(self, inputs: Facts) -> list[str]:
        """How what it would be made of differs from what it was made of, one sentence each."""
        was = {name: facts["sha256"] for name, facts in self.stored.get("inputs", {}).items()}
        now = {name: facts["sha256"] for name, facts in inputs.items()}
        return [f"{name} is not what it was" for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name)]

    def lost(self) -> str | None:
        """What is missing of a finished stage."""
        return is_there(self.stage.folder, self.stored["outputs"])

    def files_now(self) -> Facts:
        """Facts of the files given from outside."""
        return {name: input_facts(paths) for name, paths in self.stage.inputs.items()}

    def begin(self, inputs: Facts, command: Sequence[str]) -> None:
        """Notes that the stage is under way."""
        self.stored = {
            "format": _FORMAT,
            "stage": self.stage.name,
            "settings": _as_json(self.stage.settings),
            "inputs": inputs,
            "command": list(command),
            "seconds": self.stored.get("seconds", 0.0),
        }
        write_json(self._file, self.stored)

    def add_seconds(self, seconds: float) -> None:
        """Notes how long it took so far, over all starts that ended by themselves."""
        self.stored["seconds"] = round(self.stored["seconds"] + seconds, 1)
        write_json(self._file, self.stored)

    def finish(self) -> None:
        """Notes what was made.

        Raises:
            InputError: the command ended well and left out some of it.
        """
        self.stored["outputs"] = output_facts(self.stage.folder, self.stage.outputs())
        write_json(self._file, self.stored)


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
