"""What every reader yields: one item per row of a file, good or bad, without exception; and warnings about
keys that none reads."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.hashes import text_sha256
from dpr.core.records import Passage, TrainingSample
from dpr.formats.json_records import JsonRecord

_SCORES = re.compile(r"(.*_)?(scores?|labels?|similarity|relevance|margin)")
_INSTRUCTION = re.compile(r"((query|question|passage|document|corpus)_)?(prompt|instruction)s?")
_SIDES = (
    re.compile(r"hard_?neg(ative)?s?(_|\d|$)"),
    re.compile(r"neg(ative)?s?(_|\d|$)"),
    re.compile(r"pos(itive)?s?(_|\d|$)"),
)
Note = Mapping[str, Any] | None
"""What a written file was made of, for the checksum beside it."""


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """What a format reads: keys by name, and others by a pattern."""

    names: tuple[str, ...]
    others: re.Pattern[str] = re.compile("(?!)")


class UnreadKeys:
    """Collects warnings about keys that a reader does not know, each key once, and about rows that are read
    in a way to know of."""

    def __init__(self) -> None:
        self.warnings: dict[str, str] = {}
        """One sentence per key, or per kind of rows."""
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()

    def look(self, keys: Iterable[str], known: KnownKeys, *, file: Path, line: int) -> None:
        """Compares the keys of one record with those that its format reads."""
        for key in {*keys} - self._seen:
            self._seen.add(key)
            if key in known.names or known.others.fullmatch(key):
                continue
            if near := _near(key.lower(), known.names):
                self.warn(key, f"did you mean {near}?", file=file, line=line)
            elif _SCORES.fullmatch(key.lower()):
                self.warn(
                    key,
                    "each passage has its own teacher's score (docs/training_data.md)",
                    file=file,
                    line=line,
                )
            elif _INSTRUCTION.fullmatch(key.lower()):
                self.warn(
                    key, "write it into the texts, or train with encoder.query_prompt", file=file, line=line
                )

    def warn(self, key: str, why: str, *, file: Path, line: int | None = None) -> None:
        """Adds a warning about a key, if there is none yet."""
        self.warnings.setdefault(
            key, f"{file}{'' if line is None else f':{line}'}: the key {key!a} is not read; {why}"
        )

    def count(self, what: str, *, file: Path) -> None:
        """Adds a row to those of a file of which a warning says ``what``, with their number."""
        key = f"{file}: {what}"
        self._counts[key] += 1
        self.warnings[key] = f"{key} (rows: {self._counts[key]:,})"


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
    for side in _SIDES:
        names = [name for name in known if side.match(name)]
        if names and side.match(key) and not _SCORES.fullmatch(key) and not key.endswith(("id", "ids")):
            return difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]
    (near,) = difflib.get_close_matches(key, known, n=1, cutoff=0.8) or [""]
    return "" if near and key.startswith(f"{near}_") else near
