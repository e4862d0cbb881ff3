"""Commands that are run one after another as the stages of one folder: ``dpr adapt``, ``dpr quickstart``.

``<stage>/stage.json`` says what the whole is made of, the command line that does the same by hand, and, once the
stage is done, what it has made. A stage that is done is skipped, one that was interrupted goes on. Where the
settings or the texts have changed, all stages are made again.
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
from dpr.core.settings import Settings, drop_unused, leaves, overrides
from dpr.core.stopping import SignalBlock, describe
from dpr.formats.checkpoints import RUN_FILE
from dpr.storage.durable import (
    read_json,
    remove_folder,
    write_json,
)
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.outputs import LOCK_FILE, held, require_writable

logger = get_logger(__name__)

RECORD = "stage.json"
_FORMAT = 3


class _Interrupts(SignalBlock):
    """A block in which every signal that asks to stop does what Ctrl-C does."""

    number = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def stages_in(out: Path, made_of: Mapping[str, Any], *, first: str) -> Iterator[Stages]:
    """A block in which this process alone makes the stages of the folder ``out``; ``first`` is made first.

    Args:
        made_of: the settings that decide what is made, and the content of the user's files.

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
            yield Stages(out, made_of)
        except KeyboardInterrupt:
            why = describe(signals.number) if signals.number else "interrupted"
            raise StopRequested(f"{why}. Rerun the same command to resume") from None


class Stages:
    """Runs the stages of a folder."""

    def __init__(self, out: Path, made_of: Mapping[str, Any]) -> None:
        self.out = out
        self._made_of = json.loads(json.dumps(made_of))
        self._passed: list[Path] = []

    def run(
        self,
        name: str,
        what: str,
        job: ModuleType,
        config: Settings,
        outputs: Sequence[str],
        *,
        processes: int = 1,
    ) -> None:
        """Runs a job with these settings, unless that is done.

        Args:
            name: that of the stage, which is also its folder's.
            what: what it does, for people.
            job: the module of ``dpr/jobs`` that the command is named after.
            outputs: what it makes, by name inside its folder.
            processes: how many do it together, started by torchrun.

        Raises:
            InputError: it has not made that.
            StageError: it has failed in several processes; carries the exit code.
        """
        folder = self.out / name
        self._passed.append(folder)
        record = _read_record(folder)
        if record:
            was = record["made_of"]
            reasons = [f"{key} changed" for key in self._made_of if was.get(key) != self._made_of[key]]
            if "outputs" in record:
                reasons += [f"{output} is missing" for output in outputs if not (folder / output).exists()]
                if not reasons:
                    logger.info("%s: already done", name)
                    return
            if reasons:
                logger.warning("making %s again, and what follows: %s", name, ", ".join(reasons))
                remove_folder(folder)
        for later in list(self.out.rglob(RECORD)):  # these read what is made here
            if later.parent not in [self.out, *self._passed]:
                remove_folder(later.parent)

        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        drop_unused(config)
        config.check()
        command = command_line(job, config)
        logger.info("%s: %s\n$ %s", name, what, shlex.join(command))
        record = {"format": _FORMAT, "stage": name, "made_of": self._made_of, "command": command}
        write_json(folder / RECORD, record, note={})
        start = time.monotonic()
        if processes == 1:
            job.run(config)
            gc.collect()  # models and what refers to them in a circle
        else:
            _run_together(name, command, processes)
        for output in outputs:
            if not (folder / output).exists():
                raise InputError("was not written", file=folder / output)
        write_json(folder / RECORD, record | {"outputs": outputs}, note={})
        logger.info("%s: done in %.0f s", name, time.monotonic() - start)


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
    is_record = isinstance(record, dict) and record.get("format") == _FORMAT
    if not is_record or not isinstance(record.get("made_of"), dict):
        raise InputError(
            "is not the record of a stage", file=file, hint=f"remove {folder} to run the stage again"
        )
    return dict(record)
