"""The choice of rows to use: bad ones are refused, or set aside up to a limit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.formats.stored_training_set import Counts
from dpr.formats.training_files.rows import SourceRow
from dpr.storage.durable import durable_file

logger = get_logger(__name__)


class UsableRows:
    """Counts rows and yields the samples of usable rows.

    ``limit`` is the number of bad rows that are set aside; None refuses the first. ``file`` lists them if
    there are too many.
    """

    def __init__(self, limit: int | None, *, file: Path) -> None:
        self._limit = limit
        self._file = file
        self._rejects: list[dict[str, Any]] = []
        self.counts = Counts()

    def samples(self, rows: Iterable[SourceRow]) -> Iterator[TrainingSample]:
        """Yields the samples with a positive.

        Raises:
            InputError: bad rows are not allowed, or there are too many; those so far are then listed in the
            file.
        """
        for row in rows:
            self.counts.read += row.num_rows
            if row.sample is not None:
                if row.sample.positives:
                    self.counts.kept += row.num_rows
                    yield row.sample
                else:
                    self.counts.dropped += row.num_rows
                continue
            error = row.error or InputError("bad row")
            if self._limit is None:
                hint = error.hint or "on_bad_row=skip leaves such rows out and lists them"
                found = error.found
                raise InputError(found, file=row.file, line=row.line, expected=error.expected, hint=hint)
            self.counts.rejected += 1
            reason = error.found + (f", expected {error.expected}" if error.expected else "")
            self._rejects.append({"file": str(row.file), "line": row.line, "reason": reason})
            if len(self._rejects) > self._limit:
                self.list_rejected()
                raise InputError(
                    f"more than max_bad_rows={self._limit} bad rows, this one: {error.found}",
                    file=row.file,
                    line=row.line,
                    hint=f"all so far are listed in {self._file}; is this the right file? max_bad_rows=N allows more",
                )

    def require_some(self, files: Sequence[Path]) -> None:
        """Raises InputError if no row can be used."""
        counts = self.counts
        if counts.kept:
            return
        found = "holds no rows"
        if counts.read:
            bad = f"{counts.dropped} have no positive passage and {counts.rejected} are bad"
            found = f"no rows can be used: of {counts.read}, {bad}"
        raise InputError(found, file=shown(files), expected="at least one training record")

    def list_rejected(self, file: Path | None = None) -> None:
        """Lists bad rows, if there are any: file, line and reason, one JSON object a line."""
        if self._rejects:
            target = file or self._file
            with durable_file(target) as out:
                out.writelines(json.dumps(reject) + "\n" for reject in self._rejects)
            logger.warning("%d bad rows were skipped; reasons are in %s", len(self._rejects), target)


def shown(files: Sequence[Path]) -> str:
    """Returns the first files, as messages name them."""
    return ", ".join(map(str, files[:3]))
