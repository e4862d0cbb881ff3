"""Runs the stages in order: skips what is done, refuses what does not match, runs the rest."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import StageError, StopRequested
from dpr.core.logs import get_logger
from dpr.core.stopping import describe
from dpr.formats.checkpoints import RUN_FILE
from dpr.jobs.ladder.process import PassOn, python_command
from dpr.jobs.ladder.stages import Facts, Record, Stage
from dpr.storage.durable import read_json, remove_folder
from dpr.storage.leftovers import remove_leftovers
from dpr.storage.outputs import require_writable
from dpr.storage.run_lock import held

logger = get_logger(__name__)

LOG_FILE = "log.txt"


def climb(stages: Sequence[Stage], output_dir: Path) -> None:
    """Runs all stages to their end. A stage that is finished and matches the settings and data is skipped,
    one that does not match is removed and run again.

    Raises:
        InputError: a file is missing; another process is using ``output_dir``.
        StageError: a command has failed; carries its exit code.
        StopRequested: a signal asked to stop.
    """
    require_writable(output_dir, folder=True)
    output_dir.mkdir(parents=True, exist_ok=True)
    with held(output_dir):
        remove_leftovers(output_dir)
        ladder = _Ladder(stages)
        with PassOn() as signals:
            for stage in stages:
                ladder.complete(stage, signals)


class _Ladder:
    """The stages with their records."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.records = {stage.name: Record(stage) for stage in stages}

    def misfits(self, record: Record) -> list[str]:
        """How a stage's record differs from the present settings and data, as far as that is known yet."""
        if not record.is_started:
            return []
        if changed := record.settings_changed():
            return changed
        inputs = self._inputs(record)
        return [] if inputs is None else record.inputs_changed(inputs)

    def complete(self, stage: Stage, signals: PassOn) -> None:
        record = self.records[stage.name]
        if reasons := self.misfits(record):
            logger.warning("making %s again: %s", stage.name, _shown(reasons))
            remove_folder(stage.folder)
            record = self.records[stage.name] = Record(stage)
        if record.is_done:
            _tidy(stage)
            if (lost := record.lost()) is None:
                logger.info("%s: already done", stage.name)
                return
            if not self._is_needed(stage):
                logger.info("%s: already done; %s, but no later stage needs it", stage.name, lost)
                return
            logger.warning("running %s again: %s", stage.name, lost)
        if signals.asked:
            raise StopRequested(
                f"{describe(signals.asked)} before {stage.name}. Rerun the same command to resume"
            )
        _run(record, self._inputs(record) or {}, signals)

    def _inputs(self, record: Record) -> Facts | None:
        """Facts of everything a stage reads; None while a stage before it is not done."""
        before = [self.records[name] for name in record.stage.after]
        if not all(other.is_done for other in before):
            return None
        return {
            **record.files_now(),
            **{f"what {other.stage.name} made": {"sha256": other.digest} for other in before},
        }

    def _is_needed(self, stage: Stage) -> bool:
        """Whether a lost output has to be made again: vectors and mined files may be deleted once all stages
        that read them are done."""
        readers = [other for other in self.records.values() if stage.name in other.stage.after]
        return (
            stage.is_training
            or not readers
            or any(not it.is_done or self.misfits(it) or it.lost() for it in readers)
        )


def _shown(reasons: list[str]) -> str:
    return "; ".join(reasons[:3]) + (f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else "")


def _tidy(stage: Stage) -> None:
    """Removes what a stage that is done has no use for, and what a process that was killed while it did so
    has left."""
    remove_leftovers(stage.folder)
    for name in stage.scratch():
        if (stage.folder / name).exists():
            remove_folder(stage.folder / name)


def _run(record: Record, inputs: Facts, signals: PassOn) -> None:
    stage = record.stage
    stage.folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(stage.folder)
    arguments = stage.command()
    logger.info("%s: %s\n$ dpr %s", stage.name, stage.what, shlex.join(arguments))
    record.start(inputs, ["dpr", *arguments])
    start, note = time.monotonic(), _stop_note(stage)
    code = signals.run(python_command(arguments, processes=stage.processes), stage.folder / LOG_FILE)
    record.add_seconds(time.monotonic() - start)
    if code == 0:
        record.finish()
        _tidy(stage)
        logger.info("%s: done in %.0f s", stage.name, record.stored["seconds"])
    elif signals.asked or code == StopRequested.exit_code or _stop_note(stage) != note:
        why = describe(signals.asked) if signals.asked else "a stop was requested"
        raise StopRequested(f"{why}; {stage.name} has stopped. Rerun the same command to resume")
    else:
        raise StageError(
            f"{stage.name} ended with exit code {code}; its output is above and in"
            f" {stage.folder / LOG_FILE}\nfix the error above and rerun the same command to resume",
            exit_code=code,
        )


def _stop_note(stage: Stage) -> int:
    """When the run last noted that it was asked to stop; needed under torchrun, which hides exit codes."""
    file = stage.folder / RUN_FILE
    is_noted = (
        stage.is_training and stage.processes > 1 and file.is_file() and "stopped_at_step" in read_json(file)
    )
    return file.stat().st_mtime_ns if is_noted else 0
