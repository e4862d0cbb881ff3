"""Output folders that are written in steps, so that a killed command continues after those it has finished.

    unfinished.json   the claim, the first file: the provenance of the folder; work of another
                      provenance is refused, or started over
    step-00003.json   proves that a step is done, with size and SHA-256 of its files, which are flushed before;
                      a step that a killed process left unfinished is written again
    manifest.json     is written last; then the claim and the proofs are removed

The bytes do not depend on interruptions, on the order of the steps, or on how many processes write them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.storage.durable import (
    MANIFEST,
    describe_file,
    durable_file,
    read_manifest,
    remove_folder,
    sealed,
    write_json,
    write_manifest,
    writing,
)
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.untrusted import read_json

logger = get_logger(__name__)

CLAIM = "unfinished.json"
RECORDS = re.compile(r"unfinished\.json|step-(\d{5,})\.json")
_KEPT = "rerun the same command where it can be written; finished steps are kept"


class Steps:
    """A folder under way: finished, begun by an earlier process, or new. Several processes may write steps of
    it at the same time, each with files of its own; one of them finishes it. Can be sent to other processes.

    Args:
        restart: removes existing content of another provenance, or of none.

    Raises:
        InputError: the folder is of another ``provenance`` (the message names the difference), holds
        something else, or is damaged.
        OutputError: it cannot be written.
    """

    contents: ClassVar[str] = "output"
    """Content of the folder for messages; ``rename`` is their advice for getting another folder."""
    rename: ClassVar[str] = "choose another name"

    def __init__(self, folder: Path, provenance: Mapping[str, Any], *, restart: bool = False) -> None:
        self.folder, self.provenance = folder, json.loads(json.dumps(provenance))
        if folder.exists() and not folder.is_dir():
            raise InputError(
                f"is a file, expected a folder to write {self.contents} into", file=folder, hint=self.rename
            )
        with writing(folder, hint=_KEPT):
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            try:
                if self.is_complete():
                    self._require_same(self._stated_in(read_manifest(folder)["metadata"]), "finished")
                    self._remove_records()
                elif (folder / CLAIM).is_file():
                    self._require_same(read_json(folder / CLAIM), "unfinished")
                elif others := [
                    path.name for path in folder.iterdir() if not path.name.startswith((".tmp-", CLAIM))
                ]:
                    raise InputError(f"holds other files ({others[0]})", file=folder, hint=self.rename)
                else:
                    write_json(folder / CLAIM, self.provenance)
            except InputError:
                if not restart:
                    raise
                logger.warning("%s belongs to other data or settings; starting over", folder)
                remove_folder(folder)
                write_json(folder / CLAIM, self.provenance)

    def is_complete(self) -> bool:
        """True if all steps are done and the manifest is written."""
        return (self.folder / MANIFEST).is_file()

    def write_step(self, number: int, files: Mapping[str, Callable[[IO[bytes]], Any]]) -> None:
        """Writes the files of a step, each with a function, and then its proof."""
        with writing(self.folder, hint=_KEPT):
            self._proof(number).unlink(missing_ok=True)
            for name, write in files.items():
                with durable_file(self.folder / name, "wb") as out:
                    write(out)
            self._prove(number, {name: describe_file(self.folder / name) for name in files})

    def is_done(self, number: int) -> bool:
        """True if the files of a step are as they were written; if not, the step has to be written
        (again)."""
        files = self.files_of(number)
        try:
            return bool(files) and all(describe_file(self.folder / name) == files[name] for name in files)
        except OSError:
            return False

    def files_of(self, number: int) -> dict[str, Any]:
        """Returns the files in the proof of a step, without verifying them; empty if there is no intact
        proof."""
        with suppress(InputError):
            proof = read_json(self._proof(number))
            if isinstance(proof, dict) and sealed(proof) == proof:
                return dict(proof["files"])
        return {}

    def proofs(self) -> dict[int, dict[str, Any]]:
        """Returns the files in the proof of each step, by number, without verifying them."""
        matches = [RECORDS.fullmatch(path.name) for path in self.folder.iterdir()]
        numbers = sorted(int(match[1]) for match in matches if match and match[1])
        return {number: files for number in numbers if (files := self.files_of(number))}

    def finished_steps(self) -> set[int]:
        """Returns the numbers of the steps that are done."""
        return {number for number in self.proofs() if self.is_done(number)}

    def write_manifest(self, metadata: dict[str, Any], files: dict[str, Any] | None = None) -> None:
        """Finishes the folder once all steps are done, in whichever process. ``metadata`` state its
        provenance; ``files`` are by default those of the steps."""
        if files is None:
            files = {name: entry for proof in self.proofs().values() for name, entry in proof.items()}
        with writing(self.folder, hint=_KEPT):
            write_manifest(self.folder, metadata, files=files)
            self._remove_records()

    def reopen(self) -> None:
        """Makes a finished folder unfinished again, so that its damaged steps can be written again. The first
        number in the name of a file is that of its step."""
        steps: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        for name, entry in read_manifest(self.folder)["files"].items():
            if match := re.search(r"\d+", name):
                steps[int(match[0])][name] = entry
        with writing(self.folder, hint=_KEPT):
            write_json(self.folder / CLAIM, self.provenance)
            for number, files in steps.items():
                self._prove(number, files)
            (self.folder / MANIFEST).unlink()

    def _stated_in(self, metadata: dict[str, Any]) -> Any:
        """Returns the provenance in the metadata of a manifest."""
        return metadata.get("made_of")

    def _remove_records(self) -> None:
        for path in self.folder.iterdir():
            if RECORDS.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _proof(self, number: int) -> Path:
        return self.folder / f"step-{number:05d}.json"

    def _prove(self, number: int, files: dict[str, Any]) -> None:
        write_json(self._proof(number), sealed({"files": files}))

    def _require_same(self, stated: Any, state: str) -> None:
        if not isinstance(stated, dict):
            hint = f"remove {self.folder} and rerun the same command"
            raise InputError(
                f"does not state the provenance of its {self.contents}", file=self.folder, hint=hint
            )
        for key in sorted(stated.keys() | self.provenance.keys()):
            theirs = stated.get(key)
            ours = self.provenance.get(key)
            if theirs != ours:
                found = f"holds {state} {self.contents} with {key}={theirs!r:.80}, this run has {ours!r:.80}"
                raise InputError(found, file=self.folder, hint=f"{self.rename}, or remove the folder")
