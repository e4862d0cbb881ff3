"""Which rows of training files are used: those with a positive passage. Bad rows end the reading, or are set
aside and listed in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.formats.training_files.rows import SourceRow
from dpr.storage.durable import durable_file

logger = get_logger(__name__)


@dataclass(slots=True)
class Counts:
    """Rows of training files: ``kept``, ``dropped`` for having no positive passage, ``rejected`` as bad;
    together ``read``.

    Formats that join rows of one question make fewer records of the kept ones.
    """

    read: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0


class UsableRows:
    """Counts rows and gives the samples of those that are used.

    ``limit`` is the number of bad rows that are set aside, None refuses the first; ``share`` allows more of
    them in long files, as a part of the rows read so far. ``file`` lists them when they are too many.
    """

    def __init__(self, limit: int | None, *, file: Path, share: float = 0.0) -> None:
        self._limit, self._share, self._file = limit, share, file
        self._rejects: list[dict[str, Any]] = []
        self.counts = Counts()

    def samples(self, rows: Iterable[SourceRow]) -> Iterator[TrainingSample]:
        """The samples with a positive.

        Raises:
            InputError: bad rows are not allowed, or there are too many; those so far are then listed in the
            file.
        """
        for row in rows:
            self.counts.read += row.num_rows
            if row.sample is None:
                self.counts.rejected += 1
                self._set_aside(row, row.error or InputError("bad row"))
            elif row.sample.positives:
                self.counts.kept += row.num_rows
                yield row.sample
            else:
                self.counts.dropped += row.num_rows

    def require_some(self, files: Sequence[Path]) -> None:
        """Raises InputError if no row can be used."""
        counts = self.counts
        if not counts.kept:
            found = (
                f"none of the {counts.read} rows can be used: {counts.dropped} have no positive passage,"
                f" {counts.rejected} are bad"
            )
            raise InputError(
                found if counts.read else "no rows",
                file=shown(files),
                expected="at least one training record",
            )

    def list_rejected(self, file: Path | None = None) -> None:
        """Lists bad rows, if there are any: file, line, reason and hash of the text, one JSON object a
        line."""
        if self._rejects:
            logger.warning(
                "%d bad rows were skipped; reasons are in %s",
                len(self._rejects),
                self._write(file or self._file),
            )

    def _write(self, file: Path) -> Path:
        with durable_file(file) as out:
            out.writelines(json.dumps(reject) + "\n" for reject in self._rejects)
        return file

    def _set_aside(self, row: SourceRow, error: InputError) -> None:
        if self._limit is None:
            hint = error.hint or "on_bad_row=skip leaves such rows out and lists them"
            raise InputError(error.found, file=row.file, line=row.line, expected=error.expected, hint=hint)
        reason = error.found + (f", expected {error.expected}" if error.expected else "")
        self._rejects.append(
            {"file": str(row.file), "line": row.line, "reason": reason, "sha256": row.sha256}
        )
        if len(self._rejects) > max(self._limit, self._share * self.counts.read):
            allowed = f"max_bad_rows={self._limit}" + (f" or {self._share:.1%} of all" if self._share else "")
            hint = (
                f"all so far are listed in {self._write(self._file)}; is this the right file? max_bad_rows=N"
                " allows more"
            )
            raise InputError(
                f"more than {allowed} bad rows, this one: {error.found}",
                file=row.file,
                line=row.line,
                hint=hint,
            )


def shown(files: Sequence[Path]) -> str:
    """The first files, as messages name them."""
    return ", ".join(map(str, files[:3]))
