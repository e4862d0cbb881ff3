"""Stages of a folder: commands that run one after another, each in a folder of its own.

``<stage>/stage.json`` states the settings and texts of the whole, the command line that does the same by
hand, and, once the stage is done, its outputs. A stage that is done is skipped; one that was interrupted
continues. If the settings or the texts have changed, all stages are rerun.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from dpr.core.errors import ConfigError, InputError, StageError, StopRequested
from dpr.core.logs import details_in, get_logger
from dpr.core.settings import Settings, drop_unused, leaves, overrides
from dpr.core.stopping import SignalBlock, describe
from dpr.formats.run_folders import RUN_FILE, problems_below
from dpr.storage.durable import CHECKSUM, remove_folder, write_json
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.locks import LOCK_FILE, locked
from dpr.storage.outputs import require_writable
from dpr.storage.untrusted import read_json

logger = get_logger(__name__)
RECORD = "stage.json"
_FORMAT = 3
_TORCHRUN = """\
import logging
import sys
from torch.distributed import run
logging.disable(logging.WARNING)
sys.excepthook = lambda *_: None
run.main()
"""
"""torchrun without its warnings and its final traceback. The processes state what has ended them."""
DETAILS = "log.txt"
"""File of the stages' commands and all that they print."""


@dataclass(frozen=True)
class AdaptFolder:
    """Paths in the folder ``out``."""

    out: Path

    @property
    def model(self) -> Path:
        """Returns the folder of the run that ends as the model to search with."""
        return self.out / "model"

    @property
    def untrained(self) -> Path:
        """Returns the folder of the encoder that training begins with, if no model is given."""
        return self.out / "encoder" / "untrained"

    @property
    def vectors(self) -> Path:
        """Returns the vectors of the passages to search."""
        return self.out / "vectors" / "corpus_0"

    @property
    def evaluation_vectors(self) -> Path:
        """Returns the vectors of the passages without the text that became a question."""
        return self.out / "evaluation" / "corpus_0"

    @property
    def evaluation_index(self) -> Path:
        """Returns the BM25 index of the same passages, which the stage ``weight`` makes."""
        return self.out / "weight" / "index"

    def metrics(self, stage: str) -> Path:
        """Returns the metrics of a stage that searches with questions."""
        return self.out / stage / "metrics.json"


class _Interrupts(SignalBlock):
    """Block in which every signal that asks to stop has the effect of Ctrl-C."""

    number = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def stages_in(
    out: Path, made_of: Mapping[str, Any], *, first: Sequence[str], jobs: Mapping[str, Callable[[Any], Any]]
) -> Iterator[Stages]:
    """Lets this process alone make the stages of the folder ``out`` inside the block, one of ``first`` before
    all others.

    Args:
        made_of: the settings that determine the outputs, and the content of the user's files.
        jobs: the commands that stages may run, by name.

    Raises:
        ConfigError: ``out`` holds other files, and no such stage.
        StopRequested: a signal asked to stop.
    """
    stages = [record.parent for record in out.glob(f"*/{RECORD}")]
    if out.is_dir() and not any(stage.name in (*first, record_of(stage).get("stage")) for stage in stages):
        others = [path.name for path in sorted(out.iterdir()) if not path.name.startswith(".")]
        others = [name for name in others if name not in (*first, LOCK_FILE, DETAILS)]
        if others:
            kind = "a training run" if RUN_FILE in others else "other files"
            raise ConfigError(
                f"out={out} holds {kind} ({others[0]}); name a new folder, or one that this command made"
            )
    if inside := [parent for parent in out.resolve().parents if (parent / RECORD).is_file()]:
        raise ConfigError(
            f"out={out} is inside {inside[0]}, a stage of {inside[0].parent} that may be rerun; name another"
            " folder"
        )
    require_writable(out, folder=True)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out), _Interrupts() as signals, details_in(out / DETAILS, __name__) as details:
        remove_leftovers(out)
        try:
            yield Stages(out, made_of, jobs, details, signals)
        except KeyboardInterrupt:
            why = describe(signals.number) if signals.number else "interrupted"
            raise StopRequested(f"{why}. Rerun the same command to resume") from None


class Stages:
    """Stages of a folder, which ``run`` runs; their output goes to ``details``."""

    def __init__(
        self,
        out: Path,
        made_of: Mapping[str, Any],
        jobs: Mapping[str, Callable[[Any], Any]],
        details: TextIO | None,
        signals: _Interrupts,
    ) -> None:
        self.out = out
        self._jobs = jobs
        self._signals = signals
        self.details = details
        self._made_of = json.loads(json.dumps(made_of))
        self._passed = [out]

    def run(
        self,
        name: str,
        what: str,
        job: str,
        config: Settings,
        outputs: Sequence[str],
        *,
        processes: int = 1,
        part: Callable[[Any], None] | None = None,
    ) -> None:
        """Runs a job with these settings, unless it is done. Stages of the folder that this process has not
        come to yet are removed before, since they read its outputs.

        Args:
            name: name of the stage and of its folder.
            what: description of the stage, for messages.
            job: command that does it.
            outputs: its outputs, by name inside its folder.
            processes: number of processes that do it together, started by torchrun.
            part: function to call instead of the command, for a stage that is only a part of it; in one
                process.

        Raises:
            InputError: an output is missing at the end.
            StageError: it has failed in several processes; carries the exit code.
        """
        if self._signals.number:  # its KeyboardInterrupt was lost, as Python ignores those in a destructor
            raise KeyboardInterrupt
        folder = self.out / name
        file = folder / RECORD
        self._passed.append(folder)
        if file.is_file():
            record = record_of(folder)
            if not record:
                hint = f"remove {folder} to run the stage again"
                raise InputError("is not the record of a stage", file=file, hint=hint)
            was = record.get("made_of", {})
            reasons = [f"{key} changed" for key in self._made_of if was.get(key) != self._made_of[key]]
            if "outputs" in record:
                reasons += [f"{output} is missing" for output in outputs if not (folder / output).exists()]
                if not reasons:
                    found = problems_below(folder)
                    reasons += [f"{part}: {problems[0]}" for part, problems in found.items() if problems]
                if not reasons:
                    logger.debug("%s: already done", name)
                    return
            if reasons:
                logger.warning("rerunning %s and all later stages: %s", name, ", ".join(reasons))
                remove_folder(folder)
        # A killed run leaves the record first, and before that its checksum.
        elif others := {path.name for path in folder.glob("[!.]*")} - {RECORD + CHECKSUM}:
            hint = "move the folder away, or name another one by out="
            raise InputError(
                f"holds other files ({min(others)}), but a stage needs this folder", file=folder, hint=hint
            )
        for later in list(self.out.glob(f"*/{RECORD}")):  # later stages read these outputs
            stage = later.parent
            # a stage that somebody has copied or renamed is no longer one of this folder
            if stage not in self._passed and record_of(stage).get("stage") == stage.name:
                remove_folder(stage)

        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        drop_unused(config)
        config.check()
        command = command_line(job, config)
        logger.info("%s: %s", name, what)
        logger.debug("$ %s", shlex.join(command))
        record = {"format": _FORMAT, "stage": name, "made_of": self._made_of, "command": command}
        write_json(file, record, note={})
        if processes == 1:
            with redirect_stdout(self.details):
                (part or self._jobs[job])(config)
            gc.collect()  # frees models in reference cycles
        else:
            # -m dpr means this package, whatever is in the working directory
            paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
            own = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            launcher = [_TORCHRUN, "--standalone", f"--nproc-per-node={processes}", "-m"]
            child = subprocess.Popen([sys.executable, "-c", *launcher, *command], env=os.environ | own)
            try:
                code = child.wait()
            except KeyboardInterrupt:  # a signal ends the stage as it would end the command
                child.terminate()
                child.wait()
                raise
            if code:
                said = f"{name} ended with exit code {code}\nfix the error above and rerun the same command to resume"
                raise StageError(said, exit_code=code if code > 0 else 128 - code)
        for output in outputs:
            if not (folder / output).exists():
                raise InputError("was not written", file=folder / output)
        write_json(file, record | {"outputs": outputs}, note={})


def record_of(stage: Path) -> dict[str, Any]:
    """Returns the record of a stage; empty if it is damaged or of another version."""
    with suppress(InputError):
        record = read_json(stage / RECORD)
        if isinstance(record, dict) and record.get("format") == _FORMAT:
            return record
    return {}


def command_line(job: str, config: Settings) -> list[str]:
    """Returns the command that does the job with these settings: the words after ``python -m``."""
    values: dict[str, Any] = {}
    for key, leaf in leaves(config).items():
        if key == "datasets":
            for entry, options in leaf.value.items():
                values |= {f"datasets.{entry}.{option}": value for option, value in options.items()}
        elif leaf.value != leaf.default:
            values[key] = leaf.value
    return ["dpr", job, *overrides(values)]
