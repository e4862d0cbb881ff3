"""A model's folder: one look at it checks what may be read and what its links and names lead to. Each of its
JSON files is read once, however many readers ask for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpr.core.errors import CheckpointError, InputError
from dpr.core.paths import odd_kind
from dpr.storage.untrusted import describe, inside, leads_inside, read_json

CONFIG = "config.json"
_MIB = 1 << 20
# The files of a folder that models and tokenizers are read from, with the largest size of each kind; of
# weights, None.
_READ: dict[str, int | None] = {
    r".*\.(safetensors|bin|pt)": None,
    r"(tokenizer|vocab)\.json|(vocab|merges)\.txt|.*\.model": 256 * _MIB,
    r"(tokenizer_config|added_tokens|special_tokens_map|.*\.index)\.json": 32 * _MIB,
    r"(.*config.*|modules)\.json|chat_template\..*": _MIB,
}
_OWN = ("encoder_settings.json", "token_frequencies.json")


@dataclass(frozen=True)
class ModelFolder(os.PathLike[str]):
    """A folder that ``look`` found safe to read, and the values of those of its JSON files that were read."""

    path: Path
    _values: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def has(self, name: str) -> bool:
        """True if the folder holds a file of this name."""
        return (self.path / name).is_file()

    def value(self, name: str) -> Any:
        """Returns the value in a JSON file. Raises InputError as ``read_json`` does."""
        if name not in self._values:
            self._values[name] = read_json(self.path / name)
        return self._values[name]

    def settings(self, name: str) -> dict[str, Any]:
        """Returns the settings in a JSON file; empty if there is none. Raises CheckpointError if it holds no
        object."""
        # an existing path must be a file
        found = self.value(name) if os.path.lexists(self.path / name) else {}
        if not isinstance(found, dict):
            raise CheckpointError(f"is {describe(found)}", file=self.path / name, expected="an object")
        return found

    def require_plain(self, name: str, plain: Mapping[str, Any], expected: str) -> None:
        """Raises CheckpointError if one of these settings is stated in a file and is not the ``plain`` one."""
        stated = self.settings(name)
        for key, value in plain.items():
            if stated.get(key) and stated[key] != value:
                raise CheckpointError(
                    f"{key} is {describe(stated[key])}", file=self.path / name, expected=expected
                )

    def require_safetensors(self) -> None:
        """Raises CheckpointError if there is no safetensors file, because pickled weights are not read."""
        if not any(self.path.glob("*.safetensors")):
            found = "has no model.safetensors" if self.path.exists() else "there is no such folder"
            if any(self.path.glob("*.bin")):
                found += "; its pytorch_model.bin is a pickle"
            hint = "save_pretrained of a recent transformers writes one, hf download NAME --local-dir FOLDER fetches one"
            raise CheckpointError(found, file=self.path, hint=hint)


def is_read(name: str) -> bool:
    """True if a model or a tokenizer is read from a file of this name in its folder."""
    return name in _OWN or any(re.fullmatch(pattern, name) for pattern in _READ)


def look(folder: str | os.PathLike[str], *, within: Path | None = None) -> ModelFolder:
    """Returns a model's folder, which may be absent; one that was looked at already is returned as it is.

    Links in a model folder may lead out of it, and so may the names in an index of weights. ``folder`` itself
    may be a link if a person typed it; a folder that the model folder ``within`` names must be inside that.

    Raises:
        InputError: reading it would leave it, or would read texts of a size that no model has.
    """
    if isinstance(folder, ModelFolder):
        return folder
    found = ModelFolder(Path(folder))
    path = found.path
    if within is not None and not leads_inside(within, path):
        raise InputError("is a link", file=path, expected=f"a folder inside {within}")
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name) if path.is_dir() else ():
        kind = next((pattern for pattern in _READ if re.fullmatch(pattern, entry.name)), None)
        if kind is None:
            continue
        file = path / entry.name
        if odd := odd_kind(file):
            raise InputError(f"is {odd}", file=file, expected="a file")
        most = _READ[kind]
        if entry.is_symlink() and not leads_inside(path, file):
            raise InputError(
                "is a link",
                file=file,
                expected=f"a file inside {path}, or a blob of a hub's cache that it is in",
            )
        if most is not None and file.is_file() and (size := entry.stat().st_size) > most:
            raise InputError(f"has {size:,} bytes", file=file, expected=f"at most {most:,}")
        if not entry.name.endswith(".index.json"):
            continue
        index = found.value(entry.name)
        names = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(names, dict):
            raise InputError("has no weight_map", file=file, expected="files by the names of their weights")
        for name in names.values():
            if inside(path, name, stated_in=file.name).suffix != ".safetensors":
                raise InputError(f"names {describe(name)}", file=file, expected="safetensors files beside it")
    return found


def folder_or_name(source: str) -> ModelFolder | str:
    """Returns the folder of this name as ``look`` does, or the name itself if it is none here, but on the hub."""
    return look(source) if Path(source).is_dir() else source
