"""``dpr verify``: are the files of a checkpoint, a vector shard or an index the ones that were written?"""

from __future__ import annotations

import sys
from pathlib import Path

_USAGE = """Usage: dpr verify FOLDER [FOLDER ...]

Compares every file with the size and SHA-256 in the folder's manifest.json. Ends with 3 when one differs.
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
        problems = verify_folder(folder)
        print(f"{name}: good" if not problems else "\n".join(f"{name}: {problem}" for problem in problems))
        is_whole = is_whole and not problems
    return 0 if is_whole else 3
