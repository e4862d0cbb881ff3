"""The steps of ``dpr reproduce`` as stages of a ladder, and the figures that they leave behind."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.core.lazy import version_of
from dpr.core.machine import usable_cores
from dpr.core.version import __version__
from dpr.formats.checkpoints import RUN_FILE
from dpr.formats.original.vectors import PickledVectors
from dpr.formats.reproductions import DATA, INPUTS, OUT, Number, Row, Step, reads
from dpr.formats.vector_shards import open_shards
from dpr.formats.yaml_files import with_values
from dpr.jobs.doctor import CORE, machine
from dpr.jobs.ladder.climb import LOG_FILE
from dpr.jobs.ladder.stages import RECORD, Stage
from dpr.jobs.ladder.training import trained_files
from dpr.storage.checksums import signed
from dpr.storage.durable import CHECKSUM, MANIFEST, durable_file, read_json, write_json

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


def value_of(number: Number, out: Path) -> float | None:
    """The figure in the files of a run; None where it is not there yet.

    Raises:
        InputError: the file is damaged, or has no such key.
    """
    if number.difference:
        own, others = (pattern.replace(OUT, str(out)) for pattern in number.difference)
        return largest_difference(own, others) if glob.glob(own) and glob.glob(others) else None
    name, _, key = number.read.partition(":")
    file = out / name
    if not file.is_file():
        return None
    if file.suffix == ".jsonl":
        found = next((line[key] for line in _lines(file) if line.get("step", -1) >= number.step and line.get(key) is not None), None)
    else:
        try:
            found = float(reduce(lambda value, part: value[part], key.split("."), read_json(file)))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"has no number {key}", file=file) from None
    return None if found is None else number.times * float(found)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):  # the last line may be half written
            if isinstance(entry := json.loads(line), dict):
                yield entry


def largest_difference(own: str, others: str) -> float:
    """The largest difference between a number of one's own vectors and the same number of the vectors of the same passage among others,
    which are shards or embedding files of the original. What stands before the colon of an id (wiki:1) does not count.

    Raises:
        InputError: a passage is not among the others, or the vectors are of another width.
    """
    parts = [part for shard in open_shards([own], allow_missing=True) for part in shard.chunks()]
    ids, vectors = _bare(np.concatenate([part[0] for part in parts])), np.concatenate([part[1] for part in parts])
    order, largest, found = np.argsort(ids), 0.0, 0
    files = [Path(name) for name in glob.glob(others)]
    for shard in (
        [PickledVectors(file) for file in files] if all(file.is_file() for file in files) else open_shards([others], allow_missing=True)
    ):
        for names, values in ((_bare(names), values) for names, values in shard.chunks()):
            place = order[np.minimum(np.searchsorted(ids, names, sorter=order), len(ids) - 1)]
            same = ids[place] == names
            found += int(same.sum())
            if values.shape[1] != vectors.shape[1]:
                raise InputError(f"vectors of {values.shape[1]} numbers", file=others, expected=f"{vectors.shape[1]}, as in {own}")
            if same.any():
                largest = max(largest, float(np.abs(values[same] - vectors[place[same]]).max()))
    if found < len(ids):
        raise InputError(f"{len(ids) - found} of {len(ids)} passages are not there", file=others, expected=f"all of {own}")
    return largest


def _bare(ids: np.ndarray) -> np.ndarray:
    return np.array([name.rpartition(b":")[2] for name in ids.tolist()])


def missed(numbers: Sequence[Number], out: Path) -> Number | None:
    """The first of these numbers that is there and FAILs."""
    return next((number for number in numbers if (value := value_of(number, out)) is not None and number.outcome(value) == "FAIL"), None)


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


def write_record(row: Row, asked: dict[str, Any], found: Sequence[tuple[Number, float | None]], file: Path) -> None:
    """Writes what was run, on what, and what came of it, signed with the SHA-256 of its content."""
    stages: dict[str, Any] = {}
    for step in row.steps:
        if (record := file.parent / step.name / RECORD).is_file():
            entry = read_json(record)
            stages[step.name] = {key: entry.get(key) for key in ("command", "inputs", "outputs", "seconds")}
    names = sorted({name for step in row.steps for name in reads(step, row.inputs) if step.name in stages})
    numbers = [
        {
            "stage": number.stage,
            "name": number.name,
            "expected": number.wanted,
            "source": number.source,
            "found": value,
            "outcome": "not reached" if value is None else number.outcome(value),
        }
        for number, value in found
    ]
    content = {
        "row": row.name,
        "title": row.title,
        **asked,
        "date": _today(),
        "numbers": numbers,
        "inputs": {name: {key: row.inputs[name].get(key) for key in ("file", "url", "bytes", "sha256")} for name in names},
        "stages": stages,
        "versions": {"dpr": __version__, "python": platform.python_version(), **{name: version_of(name) for name in CORE}},
        "machine": machine(),
        "commit": _commit(),
    }
    write_json(file, signed(content))


def update_status(row: Row, reached: Sequence[Number]) -> None:
    """Writes into the YAML of the row that these numbers were reached; its comments stay."""
    text = row.file.read_text(encoding="utf-8")
    gpus = [line.removeprefix("GPU: ") for line in machine() if line.startswith("GPU: ") and "no NVIDIA" not in line]
    hardware = f"{len(gpus)} x {gpus[0]}" if gpus else f"{usable_cores()} CPU cores"
    status = f"verified on {_today()}, {hardware}, {__version__}"
    with durable_file(row.file) as out:
        out.write(with_values(text, {number.place: status for number in reached}))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _commit() -> str | None:
    """The commit of the checkout that runs, with + where files differ from it; None outside of one."""
    place = Path(__file__).resolve().parents[3]
    try:
        run = partial(subprocess.run, cwd=place, capture_output=True, text=True, timeout=30, check=True)
        return run(["git", "rev-parse", "HEAD"]).stdout.strip() + ("+" if run(["git", "status", "--porcelain", "-uno"]).stdout else "")
    except (OSError, subprocess.SubprocessError):
        return None
