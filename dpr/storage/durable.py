"""The only writer of output files and folders, so that nothing half-written is ever read as complete.

Write beside the target under a name that starts with ``.tmp-``; flush to disk (folders: hash every file,
write ``manifest.json`` last); rename onto the target; flush the parent folder.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dpr.core.errors import InputError, OutputError
from dpr.core.logs import WatchedFile, counted
from dpr.core.paths import CHECKSUM as CHECKSUM
from dpr.core.version import __version__
from dpr.storage.leftovers import REPLACED, open_own, remove, remove_leftovers_once, temporary_beside
from dpr.storage.untrusted import is_below, read_json

MANIFEST = "manifest.json"
_MANY_FILES = 100  # fewer are counted by their bytes
SCHEMA = 1
MADE_OF = "# made_of "
_DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# Messages of libraries with their own exceptions, and of numpy, whose OSError has no errno.
_DISK_MESSAGES = re.compile(
    "|".join(
        [
            *(re.escape(os.strerror(number)) for number in _DISK_FAILS),
            r"(?P<short>\d+ requested and \d+ written)",
        ]
    )
)


@contextmanager
def durable_folder(
    target: Path, *, overwrite: bool = False, metadata: dict[str, Any] | None = None
) -> Iterator[Path]:
    """Yields an empty folder that appears at ``target`` complete, with a manifest, or not at all.

    ``metadata`` is read when the block ends, so the block may fill it. Files get the mode that the umask asks
    for, whoever wrote them (safetensors leaves 0600). An empty folder at ``target`` counts as absent.

    Raises:
        InputError: ``target`` exists, or appears meanwhile, and ``overwrite`` is false.
        OutputError: it cannot be written.
    """
    target = Path(target)
    if not overwrite:
        _refuse_existing(target)
    temporary = temporary_beside(target)
    try:
        with writing(target):
            remove_leftovers_once(target.parent)
            remove(temporary)
            temporary.mkdir(parents=True)
        with writing(target, calls_others=True):
            yield temporary
        with writing(target):
            write_manifest(temporary, metadata or {})
            _move_folder(temporary, target, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def durable_file(
    target: Path, mode: str = "w", *, note: Mapping[str, Any] | None = None
) -> Iterator[IO[Any]]:
    """Yields a file that appears at ``target`` complete, replacing an existing one, or not at all. Text is
    UTF-8, with newlines as written.

    With ``note``, a checksum file beside it holds its SHA-256 and the note: the provenance of the output. The
    checksum is written first, so that an existing file always has one; a process killed in between leaves the
    checksum of a missing file.

    Raises:
        OutputError: it cannot be written.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode {mode!r}: a durable file is written whole, with 'w' or 'wb'")
    target = Path(target)
    temporary = temporary_beside(target)
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers_once(target.parent)
            file = open_own(temporary, "xb")
            file = file if mode == "wb" else io.TextIOWrapper(file, encoding="utf-8", newline="")
        with writing(target, calls_others=True), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if note is not None:
            with durable_file(target.with_name(target.name + CHECKSUM)) as out:
                out.write(f"{MADE_OF}{json_text(sealed(note))}\n" if note else "")
                out.write(f"{describe_file(temporary)['sha256']}  {target.name}\n")
        with writing(target):
            os.replace(temporary, target)
            flush(target.parent)
    except BaseException:
        remove(temporary)
        raise


@contextmanager
def writing(target: Path, *, calls_others: bool = False, hint: str | None = None) -> Iterator[None]:
    """Turns failed writes of the block into an OutputError that names ``target``.

    A block that ``calls_others`` can also fail for other reasons; only errors that report a full or broken
    disk are converted there.
    """
    try:
        yield
    except OutputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and not calls_others:
            raise OutputError(target, error.strerror or str(error), hint=hint) from error
        if reason := _disk_failure(error):
            raise OutputError(target, reason, hint=hint) from error
        raise


def _disk_failure(error: BaseException | None) -> str | None:
    """Returns an error's message about a full or broken disk, or None. A library that tidies up after a
    failed write may end in an error of its own, whose context is the disk's error. ``torch.save``, for
    example, ends in one about a position in its archive."""
    while error is not None and not isinstance(error, InputError):
        if isinstance(error, OSError) and error.errno in _DISK_FAILS:
            return error.strerror or str(error)
        if getattr(error, "errno", None) is None and (match := _DISK_MESSAGES.search(str(error))):
            is_short = match["short"] is not None
            return f"{os.strerror(errno.ENOSPC)}, or it fails: {match[0]}" if is_short else match[0]
        error = error.__cause__ or error.__context__
    return None


def write_json(path: Path, obj: Any, *, note: Mapping[str, Any] | None = None) -> None:
    """Writes ``obj`` durably as JSON with sorted keys. NaN and infinity, which JSON lacks, become null."""
    with durable_file(Path(path), note=note) as file:
        file.write(json_text(obj, indent=2) + "\n")


def append_jsonl(path: Path, obj: Any) -> None:
    """Adds one line in one write call, so that lines of several processes do not mix. Ends a line that a
    killed writer left open."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json_text(obj) + "\n").encode()
    with open_own(path, "ab+", buffering=0) as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def write_manifest(
    folder: Path, metadata: dict[str, Any], *, files: dict[str, dict[str, Any]] | None = None
) -> None:
    """Flushes and hashes every file of a folder and writes ``manifest.json``. ``files`` are the entries if
    that is done already."""
    if files is None:
        files = {}
        (folder / MANIFEST).touch()  # takes the mode of an ordinary new file, which the others are given
        mode = (folder / MANIFEST).stat().st_mode & 0o777
        (folder / MANIFEST).unlink()
        for path in sorted(folder.rglob("*")):
            if path.is_symlink():
                raise ValueError(f"{path} is a symbolic link; a durable folder holds plain files")
            if path.is_file():
                path.chmod(mode)
                files[path.relative_to(folder).as_posix()] = describe_file(path)
            flush(path)
    manifest = {"schema": SCHEMA, "tool": f"dpr {__version__}", "metadata": metadata, "files": files}
    write_json(folder / MANIFEST, sealed(manifest))


def describe_file(path: Path) -> dict[str, Any]:
    """Returns size and SHA-256, as a manifest lists them."""
    with WatchedFile(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a folder.

    Raises:
        InputError: missing (the folder is unfinished, or another program wrote it), invalid, of an unknown
            schema, changed since it was written, or with names that leave the folder.
    """
    path = Path(path)
    file = path / MANIFEST
    if not path.is_dir():
        raise InputError("is a file, expected a folder" if path.exists() else "no such folder", file=path)
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InputError("cannot be read: Permission denied", file=path)
    if not file.is_file() or file.is_symlink():
        raise InputError(
            f"no {MANIFEST}, so the folder is unfinished or was not written by this toolkit", file=path
        )
    manifest = read_json(file)
    if (
        not isinstance(manifest, dict)
        or not isinstance(manifest.get("files"), dict)
        or not isinstance(manifest.get("metadata"), dict)
    ):
        raise InputError("not a manifest", file=file, expected="an object with schema, metadata and files")
    if manifest.get("schema") != SCHEMA:
        raise InputError(
            f"manifest schema {manifest.get('schema')!r} is not known", file=file, expected=str(SCHEMA)
        )
    for name, entry in manifest["files"].items():
        if not is_below(name):
            raise InputError(f"the file name {name!r} leaves the folder", file=file)
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("bytes"), int)
            or not isinstance(entry.get("sha256"), str)
        ):
            raise InputError(f"the entry of {name!r} has no bytes and sha256", file=file)
    # absent in the first folders of this schema
    is_whole = "sha256" not in manifest or sealed(manifest) == manifest
    if not manifest.keys() <= {"schema", "tool", "metadata", "files", "sha256"} or not is_whole:
        raise InputError("content has changed (SHA-256 differs from the one it states)", file=file)
    return manifest


def verify_folder(path: Path) -> list[str]:
    """Returns the problems of a folder with a manifest, one sentence each; empty if all its files are as they
    were written."""
    path = Path(path)
    try:
        listed = read_manifest(path)["files"]
    except InputError as error:
        return [str(error)]
    problems = []
    present: set[str] = set()
    names: Iterable[str] = names_below(path)
    if len(listed) > _MANY_FILES:
        names = counted(names, f"verifying {path.name}", len(listed), unit="files")
    for name in names:
        file = path / name
        if file.is_symlink():
            problems.append(f"{name}: is a symbolic link")
        elif file.is_dir():
            continue
        elif name in listed:
            problems += [f"{name}: {problem}" for problem in differences(file, listed[name])]
        elif name != MANIFEST:
            problems.append(f"{name}: is not in the manifest")
        present.add(name)
    return problems + [f"{name}: is missing" for name in listed if name not in present]


def names_below(folder: Path) -> list[str]:
    """Returns the names of all files and folders in a folder, relative to it, sorted. Links to folders are
    not followed."""
    names: list[str] = []
    for parent, folders, files in os.walk(folder):
        relative = Path(parent).relative_to(folder).as_posix()
        names += (name if relative == "." else f"{relative}/{name}" for name in (*folders, *files))
    return sorted(names)


def differences(path: Path, entry: dict[str, Any]) -> list[str]:
    """Returns the difference of a file from its entry in a manifest, one sentence; empty if there is none."""
    try:
        if (size := path.stat().st_size) != entry["bytes"]:
            return [f"has {size} bytes, the manifest says {entry['bytes']}"]
        if describe_file(path)["sha256"] != entry["sha256"]:
            return ["content has changed (SHA-256 differs from the manifest)"]
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    return []


def remove_folder(folder: Path) -> None:
    """Removes a durable folder at once. A process killed meanwhile leaves a temporary folder, never half a
    folder of that name."""
    doomed = temporary_beside(folder)
    remove(doomed)
    os.rename(folder, doomed)
    remove(doomed)


def _refuse_existing(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise InputError("already exists", file=target, hint="choose another name, or remove it first")


def _move_folder(temporary: Path, target: Path, *, overwrite: bool) -> None:
    replaced = None
    if overwrite and target.exists():
        replaced = temporary_beside(target, REPLACED)
        remove(replaced)
        os.rename(target, replaced)
    try:
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()  # only POSIX renames onto an empty folder
        os.rename(temporary, target)
    except OSError:
        if replaced is not None:
            os.rename(replaced, target)
        _refuse_existing(target)
        raise
    flush(target.parent)
    if replaced is not None:
        remove(replaced)


def flush(path: Path) -> None:
    """Flushes a file's content, or a folder's names, to disk. Windows flushes no folders, and only files open
    for writing."""
    is_windows = os.name == "nt"
    is_folder = path.is_dir()
    if is_windows and is_folder:
        return
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if (
            not is_folder or error.errno != errno.EINVAL
        ):  # some network file systems do not flush folders either
            raise
    finally:
        os.close(descriptor)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value with a SHA-256 of itself; an existing one is replaced."""
    bare = {key: item for key, item in value.items() if key != "sha256"}
    # damage may be half a character
    return {
        **bare,
        "sha256": hashlib.sha256(json_text(bare).encode(errors="surrogatepass")).hexdigest(),
    }


def _finite(obj: Any) -> Any:
    if isinstance(obj, float):
        return obj if math.isfinite(obj) else None
    if isinstance(obj, dict):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_finite(value) for value in obj]
    return obj


def json_text(obj: Any, *, indent: int | None = None) -> str:
    """Returns JSON with sorted keys. NaN and infinity, which JSON lacks, become null. Bytes of a name that
    are not UTF-8 become escapes."""
    text = json.dumps(_finite(obj), indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace").decode()
