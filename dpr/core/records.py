"""Records of data files, in the field's words: question, passage, training sample. Samples and passages also
exist as tokens of a store. Hashes tell which texts are the same.

Hashes are the same in every process. Half a character (lone surrogate) of a JSON file is hashed like any
other character.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

MAX_ID_BYTES = 1024
"""Longest id of a passage in UTF-8, prefix included. Indexes and vector files keep ids in arrays as wide as
the longest id."""

_UNITS = {"pdf": "page", "csv": "row", "tsv": "row", "xlsx": "row"}


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a passage, as its record states it. Do not trust its texts as paths, markup or commands."""

    file: str = ""
    heading: str = ""
    """The headings above the passage."""
    line: int | None = None
    """Line in ``file``; the page of a PDF, the row of a table."""
    url: str = ""
    """An http or https address, or empty."""

    @property
    def place(self) -> str:
        """Returns file and line as a text: ``guide.md:12``, ``guide.pdf, page 3``; empty if no file is
        known."""
        if not self.line or not self.file:
            return self.file
        unit = _UNITS.get(self.file.lower().rpartition(".")[2])
        return f"{self.file}, {unit} {self.line}" if unit else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Passage:
    """One text record of a corpus or a training file. ``title`` is empty if there is none."""

    text: str
    title: str = ""
    id: str | None = None
    has_score: bool = False
    """True if the training file has a ``score`` key for it; DPR's ``exclude_gold`` drops positives without
    one."""
    teacher_score: float | None = field(default=None, compare=False, repr=False)
    """A teacher's relevance score for the question that lists the passage. It belongs to the pair: the same
    passage may have another score beside another question, and scores do not tell passages apart."""
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Source of the passage, if its corpus states it."""
    metadata: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Fields of its record besides id, title and text."""


@dataclass(frozen=True, slots=True)
class CutPassage(Passage):
    """A part cut from a passage, as the answer to a question cut from the same passage."""

    identity: tuple[int, int] = (0, 0)
    """Identity of the document, and a number that no other cut has."""


WHOLE_DOCUMENT = -(1 << 63)
"""Second number of an identity that stands for every passage of the document; the first number names the
document."""


class KnownDocument(NamedTuple):
    """Stand-in for a known positive: every passage of a document."""

    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Question:
    """One question of an evaluation set. ``answers`` is empty if relevance comes from judgements."""

    text: str
    id: str
    answers: tuple[str, ...] = ()
    line: int = field(default=0, compare=False, repr=False)
    """Line in its file, counted from 1; 0 for a question without a file."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A question, the passages that answer it, and two lists of passages that do not.

    ``hard_negatives`` look relevant (mined), ``other_negatives`` are DPR's ``negative_ctxs``.
    """

    question: str
    positives: tuple[Passage, ...]
    hard_negatives: tuple[Passage, ...] = ()
    other_negatives: tuple[Passage, ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def passages(self) -> tuple[Passage, ...]:
        return self.positives + self.hard_negatives + self.other_negatives


StoreFacts = dict[str, str | int | bool | None]
"""Facts about the provenance of a store, which is used only if all of them are equal."""


class PassageTokens(NamedTuple):
    """A passage as it is stored; ``title`` is None if it has none."""

    title: Sequence[int] | None
    text: Sequence[int]
    identity: tuple[int, int]
    has_score: bool


class TokenReader(Protocol):
    """A part of a token store."""

    def passage(self, number: int) -> PassageTokens:
        """Returns the passage with this number. Raises InputError if the store is damaged."""


@dataclass(slots=True, eq=False)
class StoredPassage:
    """A passage of a token store, read and checked on first use, with a teacher's score for the row's
    question."""

    part: TokenReader
    number: int
    teacher_score: float | None = None
    _read: PassageTokens | None = None

    @property
    def has_score(self) -> bool:
        return self.tokens().has_score

    @property
    def identity(self) -> tuple[int, int]:
        return self.tokens().identity

    def tokens(self) -> PassageTokens:
        """Returns the checked passage. Raises InputError if the store is damaged."""
        if self._read is None:
            self._read = self.part.passage(self.number)
        return self._read


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class StoredSample:
    """A row of a token store. ``question`` holds token ids, without special tokens and not truncated."""

    question: list[int]
    positives: tuple[StoredPassage, ...]
    hard_negatives: tuple[StoredPassage, ...]
    other_negatives: tuple[StoredPassage, ...]


def composed(text: str) -> str:
    """Returns the text in the normal form NFC. The same text may come as letters with accents, or as letters
    followed by accents (NFD, in files of macOS and many PDFs)."""
    return unicodedata.normalize("NFC", text)


def plain(text: str) -> str:
    """Returns the text without differences of normal form (including ligatures and full-width letters), case
    and spacing. Texts are the same if this is equal."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def rows_of(given: Any) -> Any:
    """Returns the rows of a table of pandas, polars, pyarrow or datasets as dictionaries by column, and
    anything else as it is. Missing values of pandas become None."""
    if isinstance(given, Mapping):  # a DatasetDict has the names of a data set too
        return given
    if hasattr(given, "column_names") and hasattr(given, "with_format"):
        return iter(given.with_format(None))  # otherwise values may be tensors
    for name in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if hasattr(given, name):
            return getattr(given, name)()
    if hasattr(given, "columns") and hasattr(given, "to_dict"):
        return given.astype(object).where(given.notna(), None).to_dict("records")
    return given


def items_of(given: Any) -> list[Any] | None:
    """Returns several items, or the rows of a table, as a list; None for a single one."""
    rows = rows_of(given)
    return list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str | bytes | Mapping) else None


def json_value(value: Any) -> Any:
    """Returns a value of a field as JSON has it: arrays, tuples and numbers of numpy as lists and numbers, NaN and
    infinity as None, dates and other objects as text. Half a character, which no file can hold, becomes ``?``."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, int | None):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(listed, list | tuple):
        return [json_value(item) for item in listed]
    if type(listed) is not type(value):
        return json_value(listed)
    return None if str(value) in ("NaT", "<NA>") else str(value)  # of pandas


def text_hash(text: str) -> int:
    """Returns a 64-bit hash of a text."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little"
    )


def passage_hash(passage: Passage) -> int:
    """Returns a 64-bit hash that is equal for equal title and text (``plain``), whatever the ids."""
    return text_hash(plain(f"{passage.title}\n{passage.text}"))


def text_sha256(text: str) -> str:
    """Returns the SHA-256 of a text in UTF-8, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def json_sha256(value: Any) -> str:
    """Returns the SHA-256 of a value as JSON, whatever the order of its keys."""
    return text_sha256(json.dumps(value, sort_keys=True))
