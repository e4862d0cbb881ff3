"""Rows that every reader yields, one item per row of a file, good or bad; warnings about keys that no reader
reads; and the choice of rows to use: bad ones are refused, or set aside up to a limit."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, TrainingSample, text_sha256
from dpr.formats.arrow_files import arrow_rows, is_arrow
from dpr.formats.record_files import JsonRecord, iter_json_records
from dpr.formats.text_input import located
from dpr.storage.durable import durable_file

_MATTERS = re.compile(
    r"(.*_)?(scores?|labels?|similarity|relevance|margin)|"
    r"((query|question|passage|document|corpus)_)?(prompt|instruction)s?"
)
logger = get_logger(__name__)


def unnumbered(key: str) -> str:
    """Returns the name of a column without a number after it: ``negative`` of ``negative_1``."""
    return re.sub(r"[_-]?\d+$", "", key)


class UnreadKeys:
    """Collects warnings about keys that a reader does not read, each key once."""

    def __init__(self) -> None:
        self.warnings: dict[str, str] = {}
        """Warnings by key, one sentence each."""
        self._seen: set[str] = set()

    def look(self, keys: Iterable[str], known: Sequence[str], *, file: Path, line: int) -> None:
        """Compares the keys of one record with those that its format reads."""
        for key in {*keys} - self._seen:
            self._seen.add(key)
            name = key.lower()
            if key in known or unnumbered(key) in known:
                continue
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            if _MATTERS.fullmatch(name):
                self.warn(key, "docs/training_data.md says where scores and prompts are read", file, line)
            # question_id is a name in its own right, not a misspelt question
            elif near and not name.endswith(("id", "ids")) and not name.startswith(f"{near[0]}_"):
                self.warn(key, f"did you mean {near[0]}?", file, line)

    def warn(self, key: str, why: str, file: Path, line: int | None = None) -> None:
        """Adds a warning about a key, if there is none yet."""
        place = file if line is None else f"{file}:{line}"
        self.warnings.setdefault(key, f"{place}: the key {key!a} is not read; {why}")


class ById(Protocol):
    """Passages or questions of a file, found by their ids. A ValueError says that there is none."""

    def passage(self, key: str) -> Passage: ...

    def question(self, key: str) -> tuple[str, tuple[str, ...]]: ...


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings for facts that the content of a file does not show."""

    open_store: Callable[[Path], ById]
    """Function that opens a file of passages or questions which rows name by id."""
    corpus: Path | None = None
    """Passages that rows name by id."""
    queries: Path | None = None
    """Questions that rows name by id."""
    split: str = ""
    """Part of a folder to read; empty = train, or the only one."""
    min_grade: float | None = None
    """Minimum judgement, label or score of a positive; None is 1, and whole grades only. Values of 0 or below
    are hard negatives; those between are left out."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column names by role: question, positive, negative, title, answers, label. ``a.b`` is key b of column
    a, of each item in a list."""
    unread: UnreadKeys = field(default_factory=UnreadKeys, compare=False)
    """Collects warnings about keys that are not read."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row, or consecutive rows with the same question: ``sample``, or ``error``."""

    file: Path
    line: int
    sample: TrainingSample | None
    error: InputError | None = None
    num_rows: int = 1


def parsed_row(file: Path, line: int, parse: Callable[[Any], TrainingSample], value: Any) -> SourceRow:
    """Returns the row that ``parse`` makes from ``value``: the fields of a table, or a record. A ValueError
    of ``parse`` gives a bad row."""
    try:
        with located(file, line):
            return SourceRow(file, line, parse(value))
    except InputError as error:
        return SourceRow(file, line, None, error)


def record_rows(
    path: Path, parse: Callable[[dict[str, Any]], TrainingSample], options: ReadOptions, known: Sequence[str]
) -> Iterator[SourceRow]:
    """Yields one row per record of a JSON, Parquet or Arrow file, or of a folder of these. ``known`` are the
    keys that ``parse`` reads.

    Raises:
        InputError: an error that cannot be skipped (see ``iter_json_records``, ``arrow_rows``).
    """

    def parse_record(record: JsonRecord) -> TrainingSample:
        if record.error is not None:
            raise record.error
        options.unread.look(record.value, known, file=path, line=record.line)
        return parse(record.value)

    if is_arrow(path):
        for file, number, value in arrow_rows(path, split=options.split):
            yield parsed_row(file, number, parse_record, JsonRecord(number, value))
    else:
        for record in iter_json_records(path):
            yield parsed_row(path, record.line, parse_record, record)


def joined(rows: Iterable[SourceRow]) -> Iterator[SourceRow]:
    """Joins consecutive rows with the same question, also across bad ones. Their passages become those of one
    sample, each once."""
    group: list[tuple[SourceRow, TrainingSample]] = []
    for row in rows:
        if row.sample is None:
            yield row
            continue
        if group and group[0][1].question != row.sample.question:
            yield _merged(group)
            group = []
        group.append((row, row.sample))
    if group:
        yield _merged(group)


def _merged(group: list[tuple[SourceRow, TrainingSample]]) -> SourceRow:
    first, sample = group[0]
    if len(group) == 1:
        return first
    positives, hard_negatives, other_negatives, answers = (
        tuple(dict.fromkeys(item for _, each in group for item in getattr(each, name)))
        for name in ("positives", "hard_negatives", "other_negatives", "answers")
    )
    whole = TrainingSample(sample.question, positives, hard_negatives, other_negatives, answers)
    return replace(first, sample=whole, num_rows=sum(row.num_rows for row, _ in group))


def preparing(options: str) -> str:
    """Returns the command that reads a file with ``options`` that other commands do not have."""
    return f"dpr prepare FILE {options} out=train.jsonl"


def content_id(passage: Passage) -> str:
    """Returns the id of a passage, or one made from its title and text if it has none."""
    return passage.id if passage.id is not None else text_sha256(f"{passage.title}\0{passage.text}")[:20]


@dataclass(slots=True)
class Counts:
    """Numbers of rows of training files: ``kept``, ``dropped`` for having no positive passage, ``rejected``
    as bad; together ``read``.

    Formats that join rows of one question make fewer records than rows kept.
    """

    read: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0


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
