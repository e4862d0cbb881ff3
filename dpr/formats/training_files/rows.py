"""What every reader gives: one item per row of a file, good or bad, and never a row less."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError, InputError
from dpr.core.records import Passage, TrainingSample
from dpr.formats.json_records import iter_json_records
from dpr.formats.training_files.unread_keys import KnownKeys, UnreadKeys

Note = Mapping[str, Any] | None
"""What a written file was made of, for the checksum beside it."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a file does not say of itself."""

    corpus: Path | None = None
    """Passages that rows name by id."""
    queries: Path | None = None
    """Questions that rows name by id."""
    split: str = ""
    """Which part of a folder; empty = train, or the only one."""
    min_grade: float | None = None
    """Judgements, labels and scores from this one on are positives; None is 1, and only whole grades. Those of 0 or below are hard
    negatives, those between are left out."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column names by role: question, positive, negative, title, answers, label. ``a.b`` is key b of column a, of each item in a list."""
    cache_dir: Path | None = None
    """Where a corpus that is looked into is kept in a form that can be."""
    unread: UnreadKeys = field(default_factory=UnreadKeys, compare=False)
    """Collects what is worth telling about keys that are not read."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row, or rows that follow each other and ask the same: ``sample``, or ``error`` and the hash of the text that is wrong."""

    file: Path
    line: int
    sample: TrainingSample | None
    error: InputError | None = None
    sha256: str = ""
    num_rows: int = 1


def good_row(file: Path, line: int, parse: Callable[[], TrainingSample], source: Callable[[], str]) -> SourceRow:
    """The row that ``parse`` makes; its ValueError makes a bad one. ``source()`` is the text that a bad row is found again by."""
    try:
        return SourceRow(file, line, parse())
    except InputError as error:
        return SourceRow(file, line, None, error, text_hash(source()))
    except ValueError as error:
        return SourceRow(file, line, None, InputError(str(error), file=file, line=line), text_hash(source()))


def json_rows(path: Path, parse: Callable[[dict[str, Any]], TrainingSample], options: ReadOptions, known: KnownKeys) -> Iterator[SourceRow]:
    """One row per record of a JSON array or of JSON lines; ``known`` are the keys that ``parse`` reads.

    Raises:
        InputError: what cannot be skipped (see ``iter_json_records``).
    """
    for record in iter_json_records(path):
        if record.error is not None:
            yield SourceRow(path, record.line, None, record.error, record.sha256())
            continue
        options.unread.look(record.value, known, file=path, line=record.line)
        row = good_row(path, record.line, lambda value=record.value: parse(value), str)  # type: ignore[misc]
        yield replace(row, sha256=record.sha256()) if row.error is not None else row


def joined(rows: Iterable[SourceRow]) -> Iterator[SourceRow]:
    """Joins rows that follow each other and have the same question: their passages become one sample's, each once."""
    group: list[SourceRow] = []
    for row in rows:
        if row.sample is None:
            yield row
            continue
        if group and group[0].sample is not None and group[0].sample.question != row.sample.question:
            yield _merged(group)
            group = []
        group.append(row)
    if group:
        yield _merged(group)


def chosen_split(names: Sequence[str], split: str, path: Path) -> str:
    """The part of a folder to read: ``split``, else train, else the only one, which a test set must be asked for.

    Raises:
        InputError: the folder has no such split.
        ConfigError: the choice is open.
    """
    shown = ", ".join(names)[:300]
    if split and split not in names:
        raise InputError(f"no split {split!r}", file=path, expected=f"one of {shown}")
    if split or "train" in names or (len(names) == 1 and names[0] != "test"):
        return split or ("train" if "train" in names else names[0])
    only = "has only the split test, which is kept to measure by" if len(names) == 1 else f"has the splits {shown}"
    raise ConfigError(f"{path} {only}; choose with split=NAME, or name the file of a split")


def text_hash(text: str) -> str:
    """SHA-256 of a text, half characters included."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def value_hash_text(value: Any) -> str:
    """A value of a file that is no text, as a text to hash."""
    return json.dumps(value, sort_keys=True, default=str)


def content_id(passage: Passage) -> str:
    """The id of a passage, or one made of its title and text where it has none."""
    return passage.id if passage.id is not None else text_hash(f"{passage.title}\0{passage.text}")[:20]


def _merged(group: list[SourceRow]) -> SourceRow:
    if len(group) == 1:
        return group[0]
    samples = [row.sample for row in group if row.sample is not None]

    def distinct(name: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(getattr(sample, name) for sample in samples)))

    sample = TrainingSample(
        samples[0].question,
        positives=distinct("positives"),
        hard_negatives=distinct("hard_negatives"),
        other_negatives=distinct("other_negatives"),
        answers=distinct("answers"),
    )
    return replace(group[0], sample=sample, num_rows=sum(row.num_rows for row in group))
