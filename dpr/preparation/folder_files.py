"""The documents of a folder: which files are read, and which cannot be, with the reason."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import as_text
from dpr.formats.documents.document import Document
from dpr.formats.documents.registry import READERS, read_document

SKIPPED_FOLDERS = frozenset(
    "__pycache__ node_modules site-packages dist-packages build dist venv env".split()
)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file and what was read from it. ``name`` is its path from the folder, with slashes."""

    name: str
    document: Document


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that was left out."""

    name: str
    reason: str


def find_documents(folder: Path, types: Sequence[str] = ()) -> list[Path]:
    """The files that a reader exists for, sorted by name. Hidden files and folders, links, and folders that
    programs fill are left out; named pipes and the like are not, and ``read_documents`` names them.

    Args:
        types: endings such as ``md``; none = all that can be read.

    Raises:
        ConfigError: an ending that nothing reads.
        InputError: the folder does not exist, or holds no such file.
    """
    wanted = {f".{name.lstrip('.').lower()}" for name in types} or set(READERS)
    if unknown := sorted(wanted - READERS.keys()):
        raise ConfigError(
            f"types={unknown[0][1:]} is not read; choose from {', '.join(name[1:] for name in READERS)}"
        )
    if not folder.is_dir():
        raise InputError(
            "is a file" if folder.exists() else "no such folder",
            file=folder,
            expected="a folder of documents",
        )
    files = sorted(
        (path for path in _files(folder) if path.suffix.lower() in wanted),
        key=lambda path: name_in(folder, path),
    )
    if not files:
        raise InputError(
            "holds no documents", file=folder, expected=f"files that end in {', '.join(sorted(wanted))}"
        )
    return files


def read_documents(folder: Path, files: Sequence[Path]) -> Iterator[ReadFile | BadFile]:
    """Every file read, or the reason why it was not; in order."""
    for path in files:
        name = name_in(folder, path)
        try:
            yield ReadFile(name, read_document(path, PurePosixPath(name)))
        except InputError as error:
            yield BadFile(name, str(InputError(error.found, expected=error.expected, hint=error.hint)))
        except ConfigError as error:
            yield BadFile(name, str(error))


def name_in(folder: Path, path: Path) -> str:
    """The path from the folder, with slashes on every system, as a text."""
    return as_text(path.relative_to(folder).as_posix())


def _files(folder: Path) -> Iterator[Path]:
    for parent, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if _is_wanted(name, SKIPPED_FOLDERS))
        for name in files:
            path = Path(parent, name)
            if _is_wanted(name) and not path.is_symlink():
                yield path


def _is_wanted(name: str, unwanted: Collection[str] = ()) -> bool:
    return not name.startswith((".", "~")) and name not in unwanted
