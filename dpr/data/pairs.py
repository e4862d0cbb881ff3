"""A corpus as a training set: pairs cut from its passages, drawn again in each pass over it. Memory does not
grow with the corpus.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.paths import user_path
from dpr.core.records import CutPassage, KnownDocument, Passage, TrainingSample, json_sha256, text_hash
from dpr.core.seeding import generator_for
from dpr.core.user_classes import create_object
from dpr.data.cuts import KINDS, Cut, choose, kinds_of, shortened, words_of
from dpr.data.order import PAIRS
from dpr.data.training_data import known_document, spread_rows
from dpr.data.words import WORDS_VERSION, joined, written_spans
from dpr.formats.corpora import DEFAULT_COLUMNS
from dpr.formats.text_store import open_store
from dpr.storage.checksums import content_sha256

_LOOKED_AT = 1000
_LARGEST = (0.5, 0.1)
"""Largest shares of the passages that may come from one file, and that may have one title, for files and
titles to tell documents apart."""
_ROWS_PER_BLOCK = 5000
_MOST_HELD = 1000


class PairMaker(Protocol):
    """A user-defined kind of pairs."""

    def pair(self, passage: Passage, generator: np.random.Generator) -> tuple[str, Passage] | None:
        """Returns a question and the passage that answers it, or None if the passage yields none. All random
        draws must come from ``generator``."""
        ...


class TextRow:
    """A passage that pairs are cut from, as text. ``document`` is a 64-bit number of the document that it
    belongs to."""

    def __init__(self, passage: Passage, document: int) -> None:
        self.passage = passage
        self.document = document
        self._title = written_spans(passage.title)
        self._text = written_spans(passage.text)
        title = [passage.title[start:end] for start, end in self._title]
        self.words = words_of(title, [passage.text[start:end] for start, end in self._text])

    def sample(self, cut: Cut, identity: tuple[int, int]) -> TrainingSample:
        """Returns the question and the passage that a cut takes from this row."""
        whole = self.passage
        spans = self._text
        asked = joined(whole.title, [self._title[word] for word in cut.title])
        asked = asked or joined(whole.text, [spans[word] for word in cut.question])
        parts = [whole.text[spans[start][0] : spans[end - 1][1]] for start, end in cut.passage if start < end]
        part = CutPassage(" ".join(parts), "" if cut.title else whole.title, whole.id, identity=identity)
        return TrainingSample(asked, (part,))


class DrawnPairs(ABC):
    """Pairs of a corpus whose passages are texts (``PseudoPairs``) or tokens. The same numbers are drawn for
    both."""

    text: PseudoPairs
    """The corpus as text, with the settings of its pairs."""

    @abstractmethod
    def row(self, number: int) -> Any:
        """Returns a passage of the corpus."""

    def __getitem__(self, row: int) -> Any:
        """Returns the pair of a row without randomness, as in validation."""
        return self.drawn(row, generator_for(PAIRS, 0, 0, 0, row))

    def known_positives(self, row: int) -> tuple[KnownDocument, ...]:
        """Returns all passages of the row's document."""
        return (known_document(self[row]),)

    def drawn(self, row: int, generator: np.random.Generator) -> Any:
        """Returns a pair of a passage or, if the passage is empty or held back, of another one, drawn at
        random.

        Raises:
            ConfigError: a user-defined maker returned something other than a pair.
        """
        pairs = self.text
        number = pairs.corpus_row(row)
        while not pairs.is_usable(passage := self.row(number)):
            number = int(generator.integers(pairs.num_passages))
        identity = passage.document, int(generator.integers(1 << 62))
        kind = choose(pairs.kinds, passage.words, generator)
        if kind not in pairs.makers:
            cut = KINDS[kind][0](passage.words, generator)
            cut = cut._replace(question=shortened(cut.question, pairs.drop_words, generator))
            return passage.sample(cut, identity)

        whole = pairs.row(number)
        match pairs.makers[kind].pair(whole.passage, generator):
            case None:
                return whole.sample(KINDS["crops"][0](whole.words, generator), identity)
            case (str(question), Passage() as made):
                return TrainingSample(question, (CutPassage(made.text, made.title, identity=identity),))
            case other:
                raise ConfigError(
                    f"{kind} returned {other!r:.80}, expected a question and a dpr.Passage, or None"
                )


class PseudoPairs(DrawnPairs):
    """The passages of a corpus as training pairs: each passage gives one pair, a different one in each pass
    over the corpus.

    Args:
        file: the corpus, in any format that ``dpr embed`` reads; ``columns`` of id, text and title are those
        of a TSV.
        kinds: kinds of pairs to cut, as ``kinds_of`` takes them.
        drop_words: probability with which a word of a question is dropped; two in five questions stay whole.
        held_back: share of the documents that are held back.
        held_only: gives pairs of the documents held back, always the same ones, instead of pairs of all
        others.

    Raises:
        InputError: the corpus is missing, has a bad row, or has no passage with words.
        ConfigError: a kind is not known.
    """

    def __init__(
        self,
        file: str | Path,
        *,
        name: str = "corpus",
        kinds: Any = "mixed",
        drop_words: float = 0.4,
        held_back: float = 0.0,
        held_only: bool = False,
        columns: tuple[int, int, int] = DEFAULT_COLUMNS,
    ) -> None:
        setting = f"datasets.{name}.pairs"
        self.text = self
        self.name = name
        self.file = user_path(file)
        self.drop_words = drop_words
        self.kinds = kinds_of(kinds, setting=setting)
        self._held_back = held_back
        self._held_only = held_only
        self._settings: dict[str, Any] = {
            "kinds": self.kinds,
            "drop_words": drop_words,
            "held_back": held_back,
            "held_only": held_only,
            "columns": columns,
        }
        self.makers: dict[str, PairMaker] = {
            kind: create_object(kind, PairMaker, setting=setting) for kind in self.kinds if kind not in KINDS
        }
        self._store = open_store(self.file, columns)
        read = [
            content_sha256(self.file),
            columns,
            f"words {WORDS_VERSION}",
            *["one file"] * (not self._tells_documents[0]),
        ]
        self.corpus_fingerprint = json_sha256(read)
        metadata = {"kind": "pseudo-pairs 1", "corpus": self.corpus_fingerprint, **self._settings}
        self.fingerprint = json_sha256(metadata)
        """Hash that changes with the corpus and with the settings of its pairs."""
        rows = (index for index, row in enumerate(self.passages(0, self.num_passages)) if self.is_usable(row))
        self._held_rows = list(islice(rows, _MOST_HELD if held_only else 1))
        if not self._held_rows:
            found = "has no passage whose text has words"
            if held_only and self.num_passages:
                found += (
                    f" among the documents held back ({held_back:g} of the documents of {self.num_passages:,}"
                    " passages); the corpus needs some dozen documents"
                )
            raise InputError(found, file=self.file)

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(PseudoPairs, self.file, name=self.name, **self._settings), ())

    def __len__(self) -> int:
        return len(self._held_rows) if self._held_only else len(self._store)

    def row(self, number: int) -> TextRow:
        """Returns a passage of the corpus."""
        return next(self.passages(number, number + 1))

    def corpus_row(self, row: int) -> int:
        """Returns the number, in the corpus, of a row's passage."""
        return self._held_rows[row] if self._held_only else row

    def is_usable(self, row: TextRow) -> bool:
        """True if the passage, as text or as tokens, has words and is on the requested side of the corpus."""
        is_held = (row.document >> 20) % 10_000 < 10_000 * self._held_back
        return row.words.text > 0 and is_held == self._held_only

    def passages(self, start: int, stop: int) -> Iterator[TextRow]:
        """Yields passages of the corpus, in order."""
        return (TextRow(passage, self._document_of(passage)) for passage in self._store.passages(start, stop))

    @property
    def num_passages(self) -> int:
        return len(self._store)

    def block_ends(self) -> list[int]:
        """Returns the rows at which the corpus may be divided among several processes."""
        return [*range(_ROWS_PER_BLOCK, self.num_passages, _ROWS_PER_BLOCK), self.num_passages]

    def _document_of(self, passage: Passage) -> int:
        """Returns the number of the passage's document: that of its file or address, else of its title, else
        its own."""
        name = f"passage {passage.id}"
        for key, tells in zip(_documents(passage), self._tells_documents, strict=True):
            if key and tells:
                name = f"document {key}"
                break
        return text_hash(name) - (1 << 63)

    @cached_property
    def _tells_documents(self) -> list[bool]:
        """Returns two booleans: whether files, and whether titles, tell documents apart. They do not if so
        many passages share one that hardly any other passage would be a negative. A sample is examined."""
        counts = Counter[str](), Counter[str]()
        rows = spread_rows(self.num_passages, _LOOKED_AT)
        for row in rows:
            for count, key in zip(counts, _documents(next(self._store.passages(row, row + 1))), strict=True):
                if key:
                    count[key] += 1
        return [
            max(count.values(), default=0) <= max(share * len(rows), 1)
            for count, share in zip(counts, _LARGEST, strict=True)
        ]


def _documents(passage: Passage) -> tuple[str, str]:
    return (passage.origin.url or passage.origin.file) if passage.origin else "", passage.title
