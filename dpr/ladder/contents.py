"""What files hold, as one hash, so that a stage can tell whether it was made of the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.checksums import content_sha256
from dpr.formats.durable import MANIFEST, describe_file, read_manifest

Facts = dict[str, Any]


def input_facts(paths: Sequence[Path]) -> Facts:
    """The hash of files and of all files in folders, in the order given; their names and times do not count.

    Raises:
        InputError: a path is gone or cannot be read.
    """
    return {"sha256": combined([content_sha256(file) for path in paths for file in _files(path)])}


def output_facts(folder: Path, names: Sequence[str]) -> Facts:
    """Size and hash of what a stage has made: of a file, or of the manifest of a folder, which names and hashes what is in it.

    Raises:
        InputError: one of them is not there.
    """
    return {name: describe_file(_listed(folder / name)) for name in names}


def is_there(folder: Path, outputs: Facts) -> str | None:
    """Why the outputs of a stage are not as they were made, None where they are. Compares sizes; contents are for ``dpr verify``."""
    for name, facts in outputs.items():
        try:
            file = _listed(folder / name)
            if file.stat().st_size != facts["bytes"]:
                return f"{name} has changed"
            listed = read_manifest(folder / name)["files"] if file.name == MANIFEST else {}
            for inner, entry in listed.items():
                if (folder / name / inner).stat().st_size != entry["bytes"]:
                    return f"{name}/{inner} has changed"
        except (InputError, OSError):
            return f"{name} is gone"
    return None


def combined(parts: Any) -> str:
    """One hash of several."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _listed(path: Path) -> Path:
    """The file that stands for a path: its manifest, for a folder."""
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise InputError("was not made", file=path)
    return file
