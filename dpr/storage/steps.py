"""Output folders that are written in steps, so that a killed command continues after its last finished one.

1. The claim, the first file, says what the folder is made of. Work of another provenance is refused.
2. A step counts once its files are flushed and recorded; what a killed process had written of one is removed
   or written again.
3. The manifest is written last; then the claim and the records go. The bytes do not depend on interruptions.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ClassVar

from dpr.core.errors import InputError, OutputError
from dpr.storage.durable import (
    MANIFEST,
    appended,
    describe_file,
    durable_file,
    flush,
    json_text,
    read_json,
    read_manifest,
    write_json,
    write_manifest,
    writing,
)
from dpr.storage.inside import inside
from dpr.storage.leftovers import open_own, remove_leftovers
from dpr.storage.outputs import output
from dpr.storage.strict_json import parsed

_KEPT = "rerun the same command where it can be written; finished steps are kept"


class Steps(ABC):
    """A folder under way: finished, begun by an earlier process, or new.

    Raises:
        InputError: it is of another ``provenance`` (the message names the difference), holds something else,
        or is damaged.
        OutputError: it cannot be written.
    """

    claim: ClassVar[str]
    """Name of the file that says what an unfinished folder is made of."""
    contents: ClassVar[str] = "output"
    """What the folder holds, and ``rename``, how to get another one, for messages."""
    rename: ClassVar[str] = "choose another name"

    def __init__(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        self.folder, self.provenance = folder, dict(provenance)
        if folder.exists() and not folder.is_dir():
            raise InputError(
                f"is a file, expected a folder to write {self.contents} into", file=folder, hint=self.rename
            )
        with writing(folder, hint=_KEPT):
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            if self.is_complete():
                self._require_same(self._stated_in(read_manifest(folder)["metadata"]), "finished")
                self._remove_records()
            elif (folder / self.claim).is_file():
                self._resume(read_json(folder / self.claim))
            elif others := [path.name for path in folder.iterdir() if not path.name.startswith(".tmp-")]:
                raise InputError(f"holds other files ({others[0]})", file=folder, hint=self.rename)
            else:
                self._begin()

    def is_complete(self) -> bool:
        """Whether all steps are done and the manifest is written."""
        return (self.folder / MANIFEST).is_file()

    @abstractmethod
    def _begin(self) -> None:
        """Writes the claim."""

    @abstractmethod
    def _resume(self, claim: Any) -> None:
        """Takes up what another process began, if that was of the same provenance."""

    @abstractmethod
    def _stated_in(self, metadata: dict[str, Any]) -> Any:
        """The provenance in the metadata of a manifest."""

    @abstractmethod
    def _is_record(self, name: str) -> bool:
        """Whether a file of this name is the claim or the record of a step."""

    def write_manifest(self, metadata: dict[str, Any], files: dict[str, dict[str, Any]]) -> None:
        """Finishes the folder. ``files`` are described as in a manifest."""
        with writing(self.folder, hint=_KEPT):
            write_manifest(self.folder, metadata, files=files)
            self._remove_records()

    def _remove_records(self) -> None:
        for path in self.folder.iterdir():
            if self._is_record(path.name):
                path.unlink(missing_ok=True)

    def _require_same(self, stated: Any, state: str) -> None:
        theirs, ours = dict(_by_key(stated)), dict(_by_key(json.loads(json.dumps(self.provenance))))
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key) != ours.get(key):
                found = (
                    f"holds {state} {self.contents} with {key}={theirs.get(key)!r}, this run has"
                    f" {ours.get(key)!r}"
                )
                raise InputError(found, file=self.folder, hint=f"{self.rename}, or remove the folder")


def _by_key(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested objects by their keys, joined by dots."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _by_key(item, f"{key}.{name}" if key else name)
    else:
        yield key, value


class StepsInOrder(Steps):
    """Steps of one process, which may add to the same files.

    ``progress.json`` has the number of steps when a process opened the folder, and the size of each file
    after the last of them; ``progress.jsonl`` a line for each step since, with the sizes of the files it
    changed, so a step costs the same however many there are.
    """

    claim = "progress.json"

    def __init__(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        self.num_done = 0
        self._sizes, self._changed = dict[str, int](), set[str]()  # those changed since the last commit
        self._log = folder / "progress.jsonl"
        if folder.is_symlink():
            raise OutputError(folder, "it is a symbolic link", hint="remove it")
        super().__init__(folder, provenance)

    @contextmanager
    def appended(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the folder, open for appending; what is written counts from the next ``commit`` on."""
        path = self.folder / name
        with writing(path, hint=_KEPT):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_own(path, "ab")
        with writing(path, calls_others=True, hint=_KEPT), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        self._sizes[name] = path.stat().st_size
        self._changed.add(name)

    def commit(self) -> None:
        """Ends a step: everything appended so far is kept."""
        self.num_done += 1
        with writing(self.folder, hint=_KEPT):
            self._flush_names()
            with appended(self._log) as log:
                sizes = {name: self._sizes[name] for name in self._changed}
                log.write((json_text({"steps": self.num_done, "bytes": sizes}) + "\n").encode())
                os.fsync(log.fileno())
        self._changed.clear()

    def _flush_names(self) -> None:
        for parent in {self.folder, *((self.folder / name).parent for name in self._changed)}:
            flush(parent)

    def finish(self, metadata: Mapping[str, Any]) -> None:
        """Writes the manifest, which ends the last step. A process that is killed before it leaves what was
        appended since the last ``commit`` unfinished, and the next one appends that anew."""
        with writing(self.folder, hint=_KEPT):
            self._flush_names()
            files = {name: describe_file(self.folder / name) for name in sorted(self._sizes)}
        self.write_manifest({**metadata, "made_of": self.provenance}, files)

    def _begin(self) -> None:
        """Writes how far the folder is, in one piece. A log left beside it says nothing more."""
        write_json(
            self.folder / self.claim,
            {"made_of": self.provenance, "steps": self.num_done, "bytes": self._sizes},
        )
        self._log.unlink(missing_ok=True)
        open_own(self._log, "xb").close()  # its name is flushed before the first step is
        flush(self.folder)

    def _resume(self, claim: Any) -> None:
        try:
            provenance = claim["made_of"]
            for step in (claim, *self._logged(int(claim["steps"]))):
                self.num_done = int(step["steps"])
                self._sizes |= {str(name): int(size) for name, size in step["bytes"].items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            hint = f"remove {self.folder} and rerun the same command"
            raise InputError(
                "does not say how far the output is", file=self.folder / self.claim, hint=hint
            ) from None
        self._require_same(provenance, "unfinished")
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            name = path.relative_to(self.folder).as_posix()
            if not self._is_record(name) and name not in self._sizes:
                path.unlink()
        for name, size in self._sizes.items():
            path = inside(self.folder, name, stated_in=self.claim)
            if not path.is_file() or path.stat().st_size < size:
                raise InputError(
                    "is shorter than it was written",
                    file=path,
                    hint=f"remove {self.folder} and rerun the same command",
                )
            os.truncate(path, size)
        self._begin()

    def _logged(self, steps: int) -> Iterator[Any]:
        """The lines of the log about the steps after ``steps``; ends where a killed writer left half a
        line."""
        for line in self._log.read_bytes().splitlines(keepends=True) if self._log.is_file() else ():
            with suppress(ValueError):
                if line.endswith(b"\n") and (step := parsed(line.decode()))["steps"] == steps + 1:
                    steps += 1
                    yield step

    def _stated_in(self, metadata: dict[str, Any]) -> Any:
        return metadata.get("made_of")

    def _is_record(self, name: str) -> bool:
        return name in (self.claim, self._log.name)


class StepsInAnyOrder(Steps):
    """Steps that several processes may write at the same time, each of files of its own; one of them finishes
    the folder.

    ``<step>-00000.json`` proves that step 0 is done: its number of rows, and size and SHA-256 of its files.
    """

    step: ClassVar[str]
    counts: ClassVar[tuple[str, ...]]
    """Names of the metadata that are not part of the provenance."""

    @abstractmethod
    def files_of(self, number: int) -> list[str]:
        """Names of the files of a step."""

    def finished_steps(self) -> set[int]:
        """Numbers of the steps whose files are as they were written; all others have to be written
        (again)."""
        return {number for number, proof in self.proofs().items() if self._is_intact(number, proof["files"])}

    def _is_intact(self, number: int, files: dict[str, Any]) -> bool:
        try:
            return set(files) == set(self.files_of(number)) and all(
                describe_file(self.folder / name) == files[name] for name in files
            )
        except OSError:
            return False

    def proofs(self) -> dict[int, dict[str, Any]]:
        """Proofs of steps by number; damaged ones do not count, and the files are not verified."""
        proofs = {}
        for path in self.folder.iterdir():
            if match := self._proof_match(path.name):
                with suppress(InputError):
                    proof = read_json(path)
                    is_valid = (
                        isinstance(proof, dict)
                        and isinstance(proof.get("files"), dict)
                        and isinstance(proof.get("rows"), int)
                    )
                    if is_valid and proof["files"]:
                        proofs[int(match[1])] = proof
        return proofs

    def write_step(self, number: int, rows: int, contents: Sequence[Callable[[IO[bytes]], Any]]) -> None:
        """Writes the files of a step, each by a function, and then its proof."""
        with writing(self.folder, hint=_KEPT):
            proof = self.folder / self._proof_file(number)
            proof.unlink(missing_ok=True)
            files = self.files_of(number)
            for name, write in zip(files, contents, strict=True):
                with durable_file(self.folder / name, "wb") as out:
                    write(out)
            write_json(
                proof, {"files": {name: describe_file(self.folder / name) for name in files}, "rows": rows}
            )

    def reopen(self, proofs: Mapping[int, dict[str, Any]]) -> None:
        """Turns a finished folder into an unfinished one with these steps."""
        with writing(self.folder, hint=_KEPT):
            self._begin()
            for number, proof in proofs.items():
                write_json(self.folder / self._proof_file(number), proof)
            (self.folder / MANIFEST).unlink()

    def _proof_file(self, number: int) -> str:
        return f"{self.step}-{number:05d}.json"

    def _proof_match(self, name: str) -> re.Match[str] | None:
        return re.fullmatch(rf"{self.step}-(\d{{5,}})\.json", name)

    def _is_record(self, name: str) -> bool:
        return name == self.claim or self._proof_match(name) is not None

    def _begin(self) -> None:
        write_json(self.folder / self.claim, self.provenance)

    def _resume(self, claim: Any) -> None:
        self._require_same(claim, "unfinished")

    def _stated_in(self, metadata: dict[str, Any]) -> Any:
        return {key: value for key, value in metadata.items() if key not in self.counts}


@contextmanager
def steps_in_order(target: Path, provenance: Mapping[str, Any]) -> Iterator[StepsInOrder | None]:
    """The folder to write, which appears at ``target`` after the block if ``finish`` was called in it; None
    where it is there already.

    Until then it is ``X.unfinished`` beside the future ``X``.

    Raises:
        InputError: ``target``, or what is unfinished beside it, is made of something else or damaged.
        OutputError: it cannot be written.
        CheckpointError: another process is writing it.
    """
    with output(target, provenance, overwrite=None) as is_missing:
        if not is_missing:
            yield None
            return
        steps = StepsInOrder(target.with_name(f"{target.name}.unfinished"), provenance)
        yield steps
        with writing(target):
            if target.is_dir():
                target.rmdir()  # it is empty
            os.rename(steps.folder, target)
            flush(target.parent)
