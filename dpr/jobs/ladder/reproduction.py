"""The steps of ``dpr reproduce`` as stages of a ladder, and the watch on a training among them."""

from __future__ import annotations

import glob
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.checkpoints import RUN_FILE
from dpr.formats.reproduction_figures import missed
from dpr.formats.reproductions import DATA, INPUTS, OUT, Number, Row, Step, reads
from dpr.jobs.ladder.climb import LOG_FILE
from dpr.jobs.ladder.stages import RECORD, Stage, trained_files
from dpr.storage.durable import CHECKSUM, MANIFEST

_LOOK_S = 2.0
"""Between two looks at the metrics of a training."""


def ladder_stages(row: Row, steps: Sequence[Step], out: Path, data: str | None) -> list[Stage]:
    """The steps as stages, each of which runs again where its command, its inputs or what it reads of others has changed."""
    return [_stage(row, step, out, data) for step in steps]


def _stage(row: Row, step: Step, out: Path, data: str | None) -> Stage:
    folder, arguments = out / step.name, [word.replace(OUT, str(out)).replace(DATA, str(data)) for word in step.words]
    named = {name: input_files(row, name) for name in reads(step, row.inputs)}
    local = {found[1]: [Path(str(data)) / found[1]] for word in step.words for found in re.finditer(re.escape(DATA) + r"/([\w./-]+)", word)}

    def outputs() -> list[str]:
        if step.words[0] == "download":
            fetched = [name for name, entry in row.inputs.items() if f"{INPUTS}/{entry['step']}" == step.name]
            return [str(file.resolve()) for name in fetched for file in input_files(row, name)]
        if (folder / RUN_FILE).is_file():
            return [*trained_files(folder), "metrics.jsonl"]
        return sorted(path.name for path in folder.iterdir() if path.name not in (RECORD, LOG_FILE) and _stands(path))

    return Stage(
        step.name,
        folder,
        f"{row.title}: {step.stage}",
        lambda: arguments,
        {"command": step.words, "processes": step.processes},
        outputs,
        inputs={**named, **local},
        after=step.after,
        processes=step.processes,
        is_training=step.words[0] == "train",
    )


def _stands(path: Path) -> bool:
    """Whether one file can stand for what was made: the file itself, or the manifest of a folder."""
    return not path.name.startswith(".") and path.suffix != CHECKSUM and (path.is_file() or (path / MANIFEST).is_file())


def input_files(row: Row, name: str) -> list[Path]:
    """The files of an input; the name itself where there are none yet."""
    pattern = row.inputs[name]["file"]
    return [Path(found) for found in sorted(glob.glob(pattern))] or [Path(pattern)]


@contextmanager
def watching(watched: Sequence[Number], out: Path) -> Iterator[None]:
    """A block in which a training that misses one of the numbers is asked to stop, as by SIGTERM. Needs an alarm signal (not Windows)."""
    if not watched or not hasattr(signal, "SIGALRM"):
        yield
        return

    start = time.time()

    def look(*_: Any) -> None:
        with suppress(OSError, InputError, ValueError):
            files = [(number, out / number.read.partition(":")[0]) for number in watched]
            fresh = [number for number, file in files if file.is_file() and file.stat().st_mtime >= start]
            if missed(fresh, out) is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
