"""What every reader yields, one item per row of a file, good or bad; warnings about keys that none reads; and which
rows are used."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.records import Passage, TrainingSample, text_sha256
from dpr.formats.json_records import JsonRecord
from dpr.storage.durable import durable_file

logger = get_logger(__name__)

_SCORES = re.compile(r"(.*_)?(scores?|labels?|similarity|relevance|margin)")
_INSTRUCTION = re.compile(r"((query|question|passage|document|corpus)_)?(prompt|instruction)s?")
Note = Mapping[str, Any] | None
"""What a written file was made of, for the checksum beside it."""


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """What a format reads: keys by name, and others by a pattern."""

    names: tuple[str, ...]
    others: re.Pattern[str] = re.compile("(?!)")


class UnreadKeys:
    """Collects warnings about keys that a reader does not know, each key once."""

    def __init__(self) -> None:
        self.warnings: dict[str, str] = {}
        """One sentence per key."""
        self._seen: set[str] = set()

    def look(self, keys: Iterable[str], known: KnownKeys, *, file: Path, line: int) -> None:
        """Compares the keys of one record with those that its format reads."""
        for key in {*keys} - self._seen:
            self._seen.add(key)
            if key in known.names or known.others.fullmatch(key):
                continue
            why = ""
            if near := _near(key.lower(), known.names):
                why = f"did you mean {near}?"
            elif _SCORES.fullmatch(key.lower()):
                why = "each passage has its own teacher's score (docs/training_data.md)"
            elif _INSTRUCTION.fullmatch(key.lower()):
                why = "write it into the texts, or train with encoder.query_prompt"
            if why:
                self.warn(key, why, file=file, line=line)

    def warn(self, key: str, why: str, *, file: Path, line: int | None = None) -> None:
        """Adds a warning about a key, if there is none yet."""
        self.warnings.setdefault(
            key, f"{file}{'' if line is None else f':{line}'}: the key {key!a} is not read; {why}"
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the content of a file does not show."""

    corpus: Path | None = None
    """Passages that rows name by id."""
    queries: Path | None = None
    """Questions that rows name by id."""
    split: str = ""
    """Which part of a folder; empty = train, or the only one."""
    min_grade: float | None = None
    """Judgements, labels and scores from this one on are positives; None is 1, and only whole grades. Those
    of 0 or below are hard negatives, those between are left out."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column names by role: question, positive, negative, title, answers, label. ``a.b`` is key b of column
    a, of each item in a list."""
    cache_dir: Path | None = None
    """Where a corpus is stored for looking up its passages."""
    unread: UnreadKeys = field(default_factory=UnreadKeys, compare=False)
    """Collects warnings about keys that are not read."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row, or consecutive rows with the same question: ``sample``, or ``error`` and the hash of the faulty
    text."""

    file: Path
    line: int
    sample: TrainingSample | None
    error: InputError | None = None
    sha256: str = ""
    num_rows: int = 1


def parsed_row(file: Path, line: int, parse: Callable[[Any], TrainingSample], value: Any) -> SourceRow:
    """The row that ``parse`` makes of ``value``: a text, the fields of a table, a record. Its ValueError
    makes a bad row."""
    try:
        return SourceRow(file, line, parse(value))
    except ValueError as error:
        problem = error if isinstance(error, InputError) else InputError(str(error), file=file, line=line)
        return SourceRow(file, line, None, problem, _source_hash(value))


def joined(rows: Iterable[SourceRow]) -> Iterator[SourceRow]:
    """Joins consecutive rows with the same question: their passages become one sample's, each once."""
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


def chosen_split(names: Sequence[str], split: str, path: Path) -> str:
    """The part of a folder to read: ``split``, else train, else the only one; a test set must be named.

    Raises:
        InputError: the folder has no such split.
        ConfigError: several splits without ``train``, or only a test set, and none is named.
    """
    shown = ", ".join(names)[:300]
    if split and split not in names:
        raise InputError(f"no split {split!r}", file=path, expected=f"one of {shown}")
    if split or "train" in names or (len(names) == 1 and names[0] != "test"):
        return split or ("train" if "train" in names else names[0])
    only = (
        "has only the split test, which is kept to measure by"
        if len(names) == 1
        else f"has the splits {shown}"
    )
    raise ConfigError(
        f"{path} {only}; choose with split=NAME ({preparing('split=NAME')}), or name the file of a split"
    )


def preparing(options: str) -> str:
    """The command that reads a file with ``options``, which other commands do not have."""
    return f"dpr prepare FILE {options} out=train.jsonl"


def content_id(passage: Passage) -> str:
    """The id of a passage, or one made of its title and text where it has none."""
    return passage.id if passage.id is not None else text_sha256(f"{passage.title}\0{passage.text}")[:20]


def _source_hash(value: Any) -> str:
    if isinstance(value, JsonRecord):
        return value.sha256()
    if isinstance(value, list):
        value = "\t".join(value)
    return text_sha256(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))


def _merged(group: list[tuple[SourceRow, TrainingSample]]) -> SourceRow:
    first, sample = group[0]
    if len(group) == 1:
        return first
    parts: dict[str, Any] = {
        name: tuple(dict.fromkeys(item for _, sample in group for item in getattr(sample, name)))
        for name in ("positives", "hard_negatives", "other_negatives", "answers")
    }
    return replace(
        first, sample=TrainingSample(sample.question, **parts), num_rows=sum(row.num_rows for row, _ in group)
    )


def _near(key: str, known: Sequence[str]) -> str:
    """The known name that a key resembles, or "". ``question_id`` is a name in its own right, not a misspelt
    ``question``."""
    (near,) = difflib.get_close_matches(key, known, n=1, cutoff=0.7) or [""]
    return "" if _SCORES.fullmatch(key) or key.endswith(("id", "ids")) or key.startswith(f"{near}_") else near


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
        if counts.kept:
            return
        found = "no rows"
        if counts.read:
            found = (
                f"none of the {counts.read} rows can be used: {counts.dropped} have no positive passage,"
                f" {counts.rejected} are bad"
            )
        raise InputError(found, file=shown(files), expected="at least one training record")

    def list_rejected(self, file: Path | None = None) -> None:
        """Lists bad rows, if there are any: file, line, reason and hash of the text, one JSON object a
        line."""
        if self._rejects:
            target = self._write(file or self._file)
            logger.warning("%d bad rows were skipped; reasons are in %s", len(self._rejects), target)

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
            listed = self._write(self._file)
            raise InputError(
                f"more than {allowed} bad rows, this one: {error.found}",
                file=row.file,
                line=row.line,
                hint=f"all so far are listed in {listed}; is this the right file? max_bad_rows=N allows more",
            )


def shown(files: Sequence[Path]) -> str:
    """The first files, as messages name them."""
    return ", ".join(map(str, files[:3]))
