"""Comparison of outputs with their checksums and manifests, for a file, an output or a folder of outputs."""

from __future__ import annotations

from pathlib import Path

from dpr.formats.run_folders import RUN_FILE, run_problems
from dpr.storage.checksums import verify_file
from dpr.storage.durable import CHECKSUM, verify_folder


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
