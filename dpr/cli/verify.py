"""``dpr verify``: are the files of a checkpoint, a run, a vector shard or an index the ones that were written?"""

from __future__ import annotations

import sys
from pathlib import Path

_USAGE = """Usage: dpr verify FOLDER [FOLDER ...]

Compares every file with the size and SHA-256 in the folder's manifest.json; of a folder without one, such as that of a run, all parts
that have one or ought to. Ends with 3 when one differs.
"""


def main(argv: list[str]) -> int:
    """Checks each folder; 0 when all are whole, 3 when one is not."""
    if not argv or {"--help", "-h"} & set(argv):
        print(_USAGE, end="")
        return 0 if argv else 2
    from dpr.formats.durable import verify_folder

    is_whole = True
    for name in argv:
        folder = Path(name)
        if not folder.is_dir():
            print(f"error: {name} is not a folder", file=sys.stderr)
            return 2
        for part in _parts(folder):
            problems = verify_folder(part)
            print(f"{part}: good" if not problems else "\n".join(f"{part}: {problem}" for problem in problems))
            is_whole = is_whole and not problems
    return 0 if is_whole else 3


def _parts(folder: Path) -> list[Path]:
    """The folder itself if it has a manifest; else what is in it: folders with one, and checkpoints, which ought to have one."""
    if (folder / "manifest.json").exists():
        return [folder]
    found = {file.parent for file in folder.rglob("manifest.json")} | {path for path in folder.glob("*.step*") if path.is_dir()}
    visible = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return sorted(visible) or [folder]
