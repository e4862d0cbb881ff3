"""Damaged files are read, or refused with one clear message. DPR_FUZZ_CASES says how many are tried."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpr.core.errors import ConfigError, InputError
from tests.fuzz.mutations import mutate
from tests.fuzz.subjects import SUBJECTS, Subject

CASES = int(os.environ.get("DPR_FUZZ_CASES", "600"))
FIRST = int(os.environ.get("DPR_FUZZ_SEED", "0"))
LIMIT_S = 5.0
# What has no line: a file that cannot be opened or unpacked, or has too little in it.
_WITHOUT_LINE = (
    "no Parquet or Arrow files in this folder",
    *(
        "no rows",
        "no such file",
        "none of the",
        "gzip data",
        "cannot be read",
        "bad rows",
        "not training data of a known format",
    ),
    "not text in UTF-8",
    "occurs twice",  # the id is named
)


def num_cases(subject: Subject) -> int:
    return max(1, round(CASES * subject.weight / sum(other.weight for other in SUBJECTS.values())))


def lay_out(subject: Subject, folder: Path, data: bytes | None = None) -> Path:
    """Writes the subject's files, the target with ``data``; returns the target's path."""
    for name, content in subject.files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if data is not None:
        (folder / subject.target).write_bytes(data)
        subject.beforehand(folder)
    return folder / subject.target


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault_of(subject: Subject, path: Path) -> str | None:
    """What is wrong with the way a file is read or refused; None where all is well."""
    try:
        with time_limit(LIMIT_S):
            subject.read(path)
    except (InputError, ConfigError) as error:
        return fault_of_message(subject, path, error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def fault_of_message(subject: Subject, path: Path, error: InputError | ConfigError) -> str | None:
    message = str(error)
    if len(message) > 700 + len(str(path)) or len(message.splitlines()) > 5:
        return f"a message of {len(message)} characters: {message[:200]}..."
    if isinstance(error, InputError) and (
        error.file is None or str(path.parent.parent) not in str(error.file)
    ):
        return f"a message that names another file: {message}"
    if (
        subject.has_lines
        and isinstance(error, InputError)
        and error.line is None
        and not any(part in message for part in _WITHOUT_LINE)
    ):
        return f"a message without a line: {message}"
    return None


@pytest.mark.parametrize("name", SUBJECTS)
def test_an_undamaged_file_is_read(name: str, tmp_path: Path) -> None:
    """Without it the test below could pass because every file is refused."""
    subject = SUBJECTS[name]
    path = lay_out(subject, tmp_path)
    if name == "run.json":
        (path.parent / "x.step1").mkdir()
    subject.read(path)


@pytest.mark.parametrize("name", SUBJECTS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    subject = SUBJECTS[name]
    whole = subject.files()[subject.target]
    faults = []
    for case in range(FIRST, FIRST + num_cases(subject)):
        data = mutate(whole, random.Random(f"{name} {case}"), subject.kinds)
        fault = fault_of(subject, lay_out(subject, tmp_path / str(case), data))
        if fault:
            faults.append(f"case {case}: {fault}\n    {data[:200]!r}")
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:10])
