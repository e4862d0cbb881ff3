"""An output folder that is written in steps, so that a killed command continues where its last finished step ended.

It is written as ``X.unfinished`` beside the future ``X``, with ``progress.json``: the number of steps when a process opened it, and the
size of each file after the last of them; ``progress.jsonl`` has a line for each step since, with the sizes of the files it changed, so a
step costs the same however many there are. What was written after the last of them is removed when the next process opens the folder.
When all is there, the folder gets its manifest and name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dpr.core.errors import InputError, OutputError
from dpr.storage.durable import (
    MANIFEST,
    appended,
    describe_file,
    flush,
    json_text,
    read_json,
    read_manifest,
    write_json,
    write_manifest,
    writing,
)
from dpr.storage.leftovers import open_own, remove_leftovers
from dpr.storage.outputs import output
from dpr.storage.strict_json import parsed

_PROGRESS, _LOG = "progress.json", "progress.jsonl"
_RERUN = "rerun the same command when there is room; finished steps are kept"


class ResumedFolder:
    """The unfinished folder, open for writing. ``steps`` have been committed, by this process or an earlier one."""

    def __init__(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        self.folder, self.steps = folder, 0
        self._provenance, self._sizes = dict(provenance), dict[str, int]()
        self._changed = set[str]()  # files since the last commit
        if folder.is_symlink():
            raise OutputError(folder, "it is a symbolic link", hint="remove it")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            if self.is_whole:
                self._require_same(read_manifest(folder)["metadata"].get("made_of"))
                self._remove_progress()
            elif (folder / _PROGRESS).is_file():
                self._resume()
            elif others := [path.name for path in folder.iterdir()]:
                raise InputError(f"holds other files ({others[0]})", file=folder, hint="remove it, or choose another name")
            else:
                self._state_progress()

    @property
    def is_whole(self) -> bool:
        """Whether everything is written, and only the name is missing."""
        return (self.folder / MANIFEST).is_file()

    @contextmanager
    def appended(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the folder, open for appending; what is written counts from the next ``commit`` on."""
        path = self.folder / name
        with writing(path, hint=_RERUN):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_own(path, "ab")
        with writing(path, calls_others=True, hint=_RERUN), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        self._sizes[name] = path.stat().st_size
        self._changed.add(name)

    def commit(self) -> None:
        """Ends a step: everything appended so far is kept."""
        self.steps += 1
        with writing(self.folder, hint=_RERUN):
            for parent in {self.folder, *((self.folder / name).parent for name in self._changed)}:
                flush(parent)
            with appended(self.folder / _LOG) as log:
                log.write((json_text({"steps": self.steps, "bytes": {name: self._sizes[name] for name in self._changed}}) + "\n").encode())
                os.fsync(log.fileno())
        self._changed.clear()

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Writes the manifest. Nothing can be appended any more."""
        with writing(self.folder, hint=_RERUN):
            files = {name: describe_file(self.folder / name) for name in sorted(self._sizes)}
            write_manifest(self.folder, {**metadata, "made_of": self._provenance}, files=files)
            self._remove_progress()

    def _state_progress(self) -> None:
        """Writes how far the folder is, in one piece. A log left beside it says nothing more."""
        write_json(self.folder / _PROGRESS, {"made_of": self._provenance, "steps": self.steps, "bytes": self._sizes})
        (self.folder / _LOG).unlink(missing_ok=True)
        open_own(self.folder / _LOG, "xb").close()  # its name is flushed before the first step is
        flush(self.folder)

    def _remove_progress(self) -> None:
        for name in (_PROGRESS, _LOG):
            (self.folder / name).unlink(missing_ok=True)

    def _resume(self) -> None:
        progress = read_json(self.folder / _PROGRESS)
        try:
            provenance = progress["made_of"]
            for step in (progress, *self._logged(int(progress["steps"]))):
                self.steps = int(step["steps"])
                self._sizes |= {str(name): int(size) for name, size in step["bytes"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            hint = f"remove {self.folder} and rerun the same command"
            raise InputError("does not say how far the output is", file=self.folder / _PROGRESS, hint=hint) from None
        self._require_same(provenance)
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            name = path.relative_to(self.folder).as_posix()
            if name not in (_PROGRESS, _LOG) and name not in self._sizes:
                path.unlink()
        for name, size in self._sizes.items():
            path = self.folder / name
            if Path(name).is_absolute() or path.resolve() != self.folder.resolve() / name:
                raise InputError(f"the file {name!r} is not in this folder", file=self.folder, hint="remove the folder")
            if not path.is_file() or path.stat().st_size < size:
                raise InputError("is shorter than it was written", file=path, hint=f"remove {self.folder} and rerun the same command")
            os.truncate(path, size)
        self._state_progress()

    def _logged(self, steps: int) -> Iterator[Any]:
        """The lines of the log about the steps after ``steps``; ends where a killed writer left half a line."""
        log = self.folder / _LOG
        for line in log.read_bytes().splitlines(keepends=True) if log.is_file() else ():
            with suppress(ValueError):
                if line.endswith(b"\n") and (step := parsed(line.decode()))["steps"] == steps + 1:
                    steps += 1
                    yield step

    def _require_same(self, provenance: Any) -> None:
        if provenance != json.loads(json.dumps(self._provenance)):
            found = "holds an unfinished output of other inputs or settings"
            raise InputError(found, file=self.folder, hint="remove it, or choose another name")


@contextmanager
def resumed_folder(target: Path, provenance: Mapping[str, Any]) -> Iterator[ResumedFolder | None]:
    """The folder to write, which appears at ``target`` after the block if ``finish`` was called in it; None where it is there already.

    Raises:
        InputError: ``target``, or what is unfinished beside it, is made of something else or damaged.
        OutputError: it cannot be written.
        CheckpointError: another process is writing it.
    """
    with output(target, provenance, overwrite=None) as is_missing:
        if not is_missing:
            yield None
            return
        folder = ResumedFolder(target.with_name(f"{target.name}.unfinished"), provenance)
        yield folder
        with writing(target):
            if target.is_dir():
                target.rmdir()  # it is empty
            os.rename(folder.folder, target)
            flush(target.parent)
