"""Bad rows: the first one ends the reading, or they are set aside up to a limit and listed in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.formats.durable import durable_file
from dpr.formats.training_files.rows import SourceRow


class BadRows:
    """Counts bad rows. ``limit`` None refuses the first; ``share`` allows more of them in long files, as a part of the rows read so far."""

    def __init__(self, limit: int | None, *, file: Path, share: float = 0.0) -> None:
        self._limit, self._share, self._file = limit, share, file
        self._rejects: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rejects)

    def add(self, row: SourceRow, num_read: int) -> None:
        """Sets a row aside.

        Raises:
            InputError: bad rows are not allowed, or this one is too many; those so far are then listed in the file.
        """
        error = row.error or InputError("bad row")
        if self._limit is None:
            hint = error.hint or "on_bad_row=skip leaves such rows out and lists them"
            raise InputError(error.found, file=row.file, line=row.line, expected=error.expected, hint=hint)
        reason = error.found + (f", expected {error.expected}" if error.expected else "")
        self._rejects.append({"file": str(row.file), "line": row.line, "reason": reason, "sha256": row.sha256})
        if len(self._rejects) > max(self._limit, self._share * num_read):
            allowed = f"max_bad_rows={self._limit}" if not self._share else f"max_bad_rows={self._limit} or {self._share:.1%} of all"
            raise InputError(
                f"more than {allowed} bad rows, this one: {error.found}",
                file=row.file,
                line=row.line,
                hint=f"all so far are listed in {self.write(self._file)}; is this the right file? max_bad_rows=N allows more",
            )

    def write(self, file: Path | None = None) -> Path:
        """Lists file, line, reason and hash of the text, one JSON object a line."""
        target = file or self._file
        with durable_file(target) as out:
            for reject in self._rejects:
                out.write(json.dumps(reject) + "\n")
        return target
