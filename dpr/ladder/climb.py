"""Goes through the stages in order: passes over what is done, refuses what does not fit, runs the rest."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import InputError, StageError, StopRequested
from dpr.core.logs import get_logger
from dpr.core.stopping import describe
from dpr.formats.checkpoints import RUN_FILE
from dpr.formats.durable import read_json, remove_folder, write_json
from dpr.formats.leftovers import remove_leftovers
from dpr.formats.outputs import require_writable
from dpr.formats.run_lock import held
from dpr.ladder.contents import Facts
from dpr.ladder.process import PassOn, python_command
from dpr.ladder.stages import Record, Stage

logger = get_logger(__name__)

LOG_FILE = "log.txt"
SETTINGS_FILE = "settings.yaml"
_STOPPED = 75


def climb(stages: Sequence[Stage], output_dir: Path, *, overwrite: bool = False) -> None:
    """Brings all stages to their end. Every one that is finished and fits is passed over.

    What does not fit to the settings or data of now is refused before anything is run, so that nothing is made of what will not stay;
    with ``overwrite`` it is removed, and made anew when its turn comes.

    Raises:
        InputError: a stage was made with other settings or data; a file is gone; another ladder is at work in ``output_dir``.
        StageError: a command has failed; its exit code is handed on.
        StopRequested: a signal asked to stop.
    """
    require_writable(output_dir, folder=True)
    output_dir.mkdir(parents=True, exist_ok=True)
    with held(output_dir):
        remove_leftovers(output_dir)
        records = {stage.name: Record(stage) for stage in stages}
        if not overwrite:
            for stage in stages:
                if reasons := misfits(stage, records):
                    _refuse_if_costly(records[stage.name], reasons)
        with PassOn() as signals:
            for stage in stages:
                _bring_to_its_end(stage, stages, records, signals, overwrite)


def misfits(stage: Stage, records: dict[str, Record]) -> list[str]:
    """Why what is there of a stage does not fit to the settings and data of now, as far as that can be told."""
    record = records[stage.name]
    if not record.is_begun:
        return []
    if changed := record.settings_changed():
        return changed
    inputs = _inputs(record, records)
    return [] if inputs is None else record.inputs_changed(inputs)


def plan_lines(stages: Sequence[Stage]) -> list[str]:
    """The stages with their commands, and how far each is."""
    records = {stage.name: Record(stage) for stage in stages}
    lines = []
    for stage in stages:
        record = records[stage.name]
        state = "done" if record.is_done else "begun" if record.is_begun else "to do"
        if reasons := misfits(stage, records):
            state = f"{state}, does not fit: {'; '.join(reasons)}"
        elif record.is_done and (lost := record.lost()):
            state = f"done, but {lost}"
        command = python_command(stage.command(), processes=stage.processes)
        lines += [f"{stage.name}: {stage.what} [{state}]", f"    {shlex.join(['python', *command[1:]])}"]
    return lines


def _inputs(record: Record, records: dict[str, Record]) -> Facts | None:
    """Facts of everything a stage reads; None while a stage before it is not done."""
    before = [records[name] for name in record.stage.after]
    if not all(other.is_done for other in before):
        return None
    return {**record.files_now(), **{f"what {other.stage.name} made": {"sha256": other.digest} for other in before}}


def _refuse_if_costly(record: Record, reasons: list[str]) -> None:
    """Unfinished mining or embedding may be started over; finished stages and trainings are removed only on request."""
    if not (record.is_done or record.stage.is_training):
        return
    shown = "; ".join(reasons[:3]) + (f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else "")
    raise InputError(
        f"was {'made' if record.is_done else 'begun'} with other settings or data: {shown}",
        file=record.stage.folder,
        hint="restore that, choose another output_dir, or set ladder.overwrite=true to make it and everything that depends on it again",
    )


def _bring_to_its_end(stage: Stage, stages: Sequence[Stage], records: dict[str, Record], signals: PassOn, overwrite: bool) -> None:
    if reasons := misfits(stage, records):
        if not overwrite:
            _refuse_if_costly(records[stage.name], reasons)
        logger.warning("%s is made anew: %s", stage.name, "; ".join(reasons))
        remove_folder(stage.folder)
        records[stage.name] = Record(stage)
    record = records[stage.name]
    if record.is_done:
        if (lost := record.lost()) is None:
            logger.info("%s: done before", stage.name)
            return
        if not _is_needed(stage, stages, records):
            logger.info("%s: done before; %s, and nobody needs it any more", stage.name, lost)
            return
        logger.warning("%s is run again: %s", stage.name, lost)
    if signals.asked:
        raise StopRequested(f"{describe(signals.asked)} before {stage.name}. Rerun the same command to resume")
    _run(record, _inputs(record, records) or {}, signals)


def _is_needed(stage: Stage, stages: Sequence[Stage], records: dict[str, Record]) -> bool:
    """Whether what is lost of a stage has to be made again: vectors and mined files may be deleted once all is made of them."""
    readers = [records[other.name] for other in stages if stage.name in other.after]
    return (
        stage.is_training
        or not readers
        or not all(other.is_done and not misfits(other.stage, records) and not other.lost() for other in readers)
    )


def _run(record: Record, inputs: Facts, signals: PassOn) -> None:
    stage = record.stage
    stage.folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(stage.folder)
    if stage.settings_file is not None:
        write_json(stage.folder / SETTINGS_FILE, stage.settings_file)
    arguments = stage.command()
    logger.info("%s: %s", stage.name, stage.what)
    record.begin(inputs, ["dpr", *arguments])
    start, note = time.monotonic(), _stop_note(stage)
    code = signals.run(python_command(arguments, processes=stage.processes), stage.folder / LOG_FILE)
    record.add_seconds(time.monotonic() - start)
    if code == 0:
        record.finish()
        logger.info("%s: done in %.0f s", stage.name, record.stored["seconds"])
    elif signals.asked or code == _STOPPED or _stop_note(stage) != note:
        why = describe(signals.asked) if signals.asked else "it was asked to"
        raise StopRequested(f"{why}; {stage.name} has stopped. Rerun the same command to resume")
    else:
        raise StageError(
            f"{stage.name} ended with exit code {code}; its output is above and in {stage.folder / LOG_FILE}\n"
            "fix the error above and rerun the same command to resume",
            exit_code=code,
        )


def _stop_note(stage: Stage) -> int:
    """Under torchrun, which hides exit codes: when the run last noted that it was asked to stop."""
    file = stage.folder / RUN_FILE
    is_noted = stage.is_training and stage.processes > 1 and file.is_file() and "stopped_at_step" in read_json(file)
    return file.stat().st_mtime_ns if is_noted else 0
