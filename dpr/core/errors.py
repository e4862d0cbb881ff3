"""Errors meant for the user, each with the exit code of the command line.

0 done, 2 usage or configuration, 3 data or checkpoint refused, 4 training diverged, 5 a rank was lost,
75 asked to stop and saved (rerun the same command to resume), 130/143 ended by a signal without saving.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

_LONGEST_FOUND = 400


def first_line(error: BaseException) -> str:
    """Returns the message of an exception on one line, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class DprError(Exception):
    """Base of every error that is shown without a traceback. ``exit_code`` defaults to that of the class."""

    exit_code = 1

    def __init__(self, message: str = "", *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = type(self).exit_code if exit_code is None else exit_code


class ConfigError(DprError, ValueError):
    """A setting is unknown, of the wrong type, out of range, or conflicts with another. The message names the
    override that fixes it."""

    exit_code = 2


class FileError(DprError):
    """Something is wrong with a file.

    The message reads ``file:line: what was found, expected ...; hint``; parts that are unknown are left out.
    """

    exit_code = 3

    def __init__(
        self,
        found: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        if len(found) > _LONGEST_FOUND:  # a message may quote what was found, however long it is
            found = f"{found[: _LONGEST_FOUND - 60]} ... {found[-50:]}"
        self.found = found
        self.file = file
        self.line = line
        self.expected = expected
        self.hint = hint
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(
            where + found + (f", expected {expected}" if expected else "") + (f"; {hint}" if hint else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Loader workers send exceptions between processes; keyword-only arguments need this.
        return partial(type(self), file=self.file, line=self.line, expected=self.expected, hint=self.hint), (
            self.found,
        )


class InputError(FileError, ValueError):
    """A file cannot be used as it is."""


class OutputError(FileError, OSError):
    """An output cannot be written: the disk is full, access is denied, ... ``reason`` is the operating
    system's message. Not an InputError, since bad files and full disks are handled differently."""

    def __init__(self, file: str | Path, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"cannot be written ({reason})", file=file, hint=hint)
        self.reason = self.strerror = reason  # OSError has cleared it

    def __str__(self) -> str:  # OSError's would begin with its number
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(OutputError, hint=self.hint), (self.file, self.reason)


class CheckpointError(InputError):
    """A checkpoint is damaged, or belongs to a different run or model."""


class DivergedError(DprError):
    """The loss or the gradient was NaN or infinite for too many steps in a row."""

    exit_code = 4


class LostRankError(DprError):
    """Another process of the group, or a data-loader worker, died or stopped answering."""

    exit_code = 5


class StopRequested(DprError):
    """A signal asked the run to stop; a checkpoint was written first. Rerunning the same command resumes.

    If no checkpoint could be written, ``exit_code`` is that of a process ended by the signal.
    """

    exit_code = 75


class StageError(DprError):
    """A command that was run as a stage has failed; ``exit_code`` is that of the command."""
