"""Names that a file of a folder gives: they lead to what is inside that folder, or are not followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from dpr.core.errors import CheckpointError
from dpr.storage.strict_json import describe

_LONGEST = 4096


def inside(folder: Path, name: Any, *, stated_in: str | Path) -> Path:
    """The file or folder of this name, which ``stated_in``, a file of the folder, gives; it need not exist.

    Whoever reads, writes or removes what a file names asks here, since the file may be anybody's.

    Raises:
        CheckpointError: it is no name, or leaves the folder: an absolute one, one with ``..``, or a link that
        leads out.
    """
    if is_below(name) and leads_inside(folder, folder / name):
        return folder / name
    found = f"names {describe(name)}" + (", which is a link" if is_below(name) else "")
    raise CheckpointError(
        found, file=folder / stated_in, expected="a file or folder inside its own, and nothing elsewhere"
    )


def is_below(name: Any) -> TypeGuard[str]:
    """Whether a name is one of something below a folder, as far as its letters tell."""
    if not isinstance(name, str) or "\\" in name or "\0" in name or len(name) > _LONGEST:
        return False
    parts = Path(name).parts
    return bool(parts) and ".." not in parts and not Path(name).is_absolute()


def leads_inside(folder: Path, path: Path) -> bool:
    """Whether a path leads into the folder once all links are followed; a blob of the hub's cache that the
    folder is in counts too."""
    try:
        target = path.resolve()
        return target.is_relative_to(folder.resolve()) or _is_blob(folder.resolve(), target)
    except (OSError, RuntimeError):  # links in a circle
        return False


def _is_blob(folder: Path, target: Path) -> bool:
    """Whether a link in ``REPOSITORY/snapshots/REVISION`` leads to a file in ``REPOSITORY/blobs``."""
    repository = next(
        (place.parent.parent for place in (folder, *folder.parents) if place.parent.name == "snapshots"), None
    )
    return repository is not None and target.parent == repository / "blobs"
