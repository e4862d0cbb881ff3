"""Being somebody whom file permissions bind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def bound_by_permissions(folder: Path | None = None) -> Iterator[None]:
    """Makes the superuser, who may write everything, nobody in this block, who owns ``folder``."""
    if os.geteuid() != 0:
        yield
        return
    if folder is not None:
        for path in (folder, *folder.parents):
            if path == folder or path.name.startswith(
                ("pytest-", "popen-")
            ):  # pytest closes its folders to others
                path.chmod(0o755)
        os.chown(folder, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
