"""Commands that are run one after another as the stages of one folder: ``dpr adapt``, ``dpr quickstart``.

``<stage>/stage.json`` says what a stage was made of, what it has made, and the command line that does the same
by hand. It is written when the stage starts and again when it ends. A stage whose record says the same as it
would now is skipped, one that was interrupted goes on, any other is removed and made again.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from dpr.core.errors import ConfigError, InputError, StageError, StopRequested
from dpr.core.logs import get_logger
from dpr.core.records import text_sha256
from dpr.core.settings import Settings, drop_unused, leaves, overrides
from dpr.core.stopping import SignalBlock, describe
from dpr.formats.checkpoints import RUN_FILE
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import (
    MANIFEST,
    describe_file,
    differences,
    read_json,
    read_manifest,
    remove_folder,
    write_json,
)
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.outputs import LOCK_FILE, held, require_writable
from dpr.storage.untrusted import inside

logger = get_logger(__name__)

RECORD = "stage.json"
_FORMAT = 2


class _Interrupts(SignalBlock):
    """A block in which every signal that asks to stop does what Ctrl-C does."""

    asked = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        raise KeyboardInterrupt


@contextmanager
def stages_in(out: Path, *, first: str) -> Iterator[Stages]:
    """A block in which this process alone makes the stages of the folder ``out``; ``first`` is made first.

    Raises:
        ConfigError: ``out`` holds other files, and not the first stage.
        StopRequested: a signal asked to stop.
    """
    if out.is_dir() and not (out / first / RECORD).is_file():
        others = [path.name for path in out.iterdir() if not path.name.startswith(".")]
        others = sorted(set(others) - {first, LOCK_FILE})
        if others:
            kind = "a training run" if RUN_FILE in others else "other files"
            raise ConfigError(
                f"out={out} holds {kind} ({others[0]}); name a new folder, or one that this command made"
            )
    require_writable(out, folder=True)
    out.mkdir(parents=True, exist_ok=True)
    with held(out), _Interrupts() as signals:
        remove_leftovers(out)
        try:
            yield Stages(out)
        except KeyboardInterrupt:
            why = describe(signals.asked) if signals.asked else "interrupted"
            raise StopRequested(f"{why}. Rerun the same command to resume") from None


class Stages:
    """Runs the stages of a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._made: dict[str, str] = {}
        """What each stage has made, as one hash, by its name."""

    def run(
        self,
        name: str,
        what: str,
        job: ModuleType,
        config: Settings,
        *,
        outputs: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        files: Mapping[str, Sequence[Path]] | None = None,
        after: Sequence[str] = (),
        processes: int = 1,
    ) -> None:
        """Runs a job with these settings, unless that is done.

        Args:
            name: that of the stage, which is also its folder's.
            what: what it does, for people.
            job: the module of ``dpr/jobs`` that the command is named after.
            outputs: what it makes, by name inside its folder; a training without any: its best and last
                checkpoint and its metrics.
            settings: the settings that decide what it makes, by the name that people know.
            files: the user's files that it reads, by the setting that names them.
            after: stages whose outputs it reads.
            processes: how many do it together, started by torchrun.

        Raises:
            InputError: a file is missing.
            StageError: it has failed in several processes; carries the exit code.
        """
        folder = self.out / name
        made_of = dict(settings or {})
        for key, paths in (files or {}).items():
            made_of[key] = _hash([content_sha256(file) for path in paths for file in _files(path)])
        for other in after:
            made_of[f"what {other} made"] = self._made[other]
        made_of = json.loads(json.dumps(made_of))

        record = _read_record(folder)
        if record:
            was = record["made_of"]
            changed = [key for key in sorted(was | made_of) if was.get(key) != made_of.get(key)]
            reason = (
                f"{', '.join(changed)} changed" if changed else _damage(folder, record.get("outputs", {}))
            )
            if reason:
                logger.warning("making %s again: %s", name, reason)
                remove_folder(folder)
                record = {}
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        if "outputs" in record:
            logger.info("%s: already done", name)
        else:
            drop_unused(config)
            config.check()
            command = command_line(job, config)
            logger.info("%s: %s\n$ %s", name, what, shlex.join(command))
            record = {"format": _FORMAT, "stage": name, "made_of": made_of, "command": command}
            write_json(folder / RECORD, record, note={})
            start = time.monotonic()
            if processes == 1:
                job.run(config)
                gc.collect()  # models and what refers to them in a circle
            else:
                _run_together(name, command, processes)
            written = outputs or trained_files(folder)
            record["outputs"] = {output: describe_file(_standing_for(folder / output)) for output in written}
            write_json(folder / RECORD, record, note={})
            logger.info("%s: done in %.0f s", name, time.monotonic() - start)
        self._made[name] = _hash(record["outputs"])


def command_line(job: ModuleType, config: Settings) -> list[str]:
    """The command that does the job with these settings: the words behind ``python -m``."""
    values: dict[str, Any] = {}
    for key, leaf in leaves(config).items():
        if key == "datasets":
            for entry, options in leaf.value.items():
                values |= {f"datasets.{entry}.{option}": value for option, value in options.items()}
        elif leaf.value != leaf.default:
            values[key] = leaf.value
    name = job.__name__.rpartition(".")[2].replace("_", "-")
    return ["dpr", name, *overrides(values)]


def trained_files(folder: Path) -> list[str]:
    """What a finished training has made that others read: its best and last checkpoint, and last its
    metrics."""
    run = read_json(folder / RUN_FILE)
    kept = {run[key] for key in ("best_checkpoint", "last_checkpoint") if run.get(key)}
    for name in kept:
        inside(folder, name, stated_in=RUN_FILE)  # what is named may be removed
    return [*sorted(kept), "metrics.json"]


def _run_together(name: str, command: Sequence[str], processes: int) -> None:
    """Runs a command under torchrun, which a signal ends as it would end the command."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    # -m dpr means this package, whatever is in the working directory
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    child = subprocess.Popen([sys.executable, "-m", *launcher, *command], env=os.environ | own)
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    if code:
        raise StageError(
            f"{name} ended with exit code {code}\nfix the error above and rerun the same command to resume",
            exit_code=code if code > 0 else 128 - code,
        )


def _read_record(folder: Path) -> dict[str, Any]:
    """The record of a stage; empty where it has not been started."""
    file = folder / RECORD
    if not file.is_file():
        return {}
    record = read_json(file)
    if (
        not isinstance(record, dict)
        or record.get("format") != _FORMAT
        or not isinstance(record.get("made_of"), dict)
        or not isinstance(record.get("outputs", {}), dict)
    ):
        raise InputError(
            "is not the record of a stage", file=file, hint=f"remove {folder} to run the stage again"
        )
    return record


def _damage(folder: Path, outputs: Mapping[str, Any]) -> str:
    """Which output of a finished stage is missing or has changed. Of what is inside folders sizes are compared;
    contents are for ``dpr verify``."""
    for name, described in outputs.items():
        try:
            file = _standing_for(inside(folder, name, stated_in=RECORD))
            if differences(file, described):
                return f"{name} has changed"
            entries = read_manifest(file.parent)["files"] if file.name == MANIFEST else {}
            for inner, entry in entries.items():
                if (file.parent / inner).stat().st_size != entry["bytes"]:
                    return f"{name}/{inner} has changed"
        except (InputError, OSError):
            return f"{name} is missing"
    return ""


def _standing_for(path: Path) -> Path:
    """The file that stands for a path: its manifest, for a folder."""
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise InputError("was not written", file=path)
    return file


def _hash(parts: Any) -> str:
    return text_sha256(json.dumps(parts, sort_keys=True))


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
