"""A corpus as a training set: pairs cut from its passages, drawn anew in each lap. Memory does not grow with
the corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.hashes import text_hash, text_sha256
from dpr.core.paths import user_path
from dpr.core.records import CutPassage, KnownDocument, Passage, TrainingSample
from dpr.core.seeding import generator_for
from dpr.core.user_classes import create_object
from dpr.data.order import PAIRS
from dpr.data.pairs import KINDS, NEIGHBOURS, Cut, Words, choose, kinds_of, shortened, words_of
from dpr.data.training_data import known_document
from dpr.data.words import WORDS_VERSION, joined, written_spans
from dpr.formats.corpora import DEFAULT_COLUMNS
from dpr.formats.corpus_store import open_store
from dpr.storage.checksums import content_sha256

_LOOKED_AT = 1000
_LARGEST = (0.5, 0.1)
"""Share of the passages that may be of one file, and that may have one title, for these to tell documents
apart."""
_ROWS_PER_BLOCK = 5000
_MOST_HELD = 1000


class PairMaker(Protocol):
    """A kind of pairs of the user's own."""

    def pair(self, passage: Passage, generator: np.random.Generator) -> tuple[str, Passage] | None:
        """A question and the passage that answers it; None where this passage gives none. All that is random
        comes from ``generator``."""
        ...


class Row(Protocol):
    """A passage that pairs are cut from: its text, or its tokens in a store."""

    words: Words
    document: int
    """64 bits that stand for the document it is of."""

    def sample(self, cut: Cut, cut_from: Any, identity: tuple[int, int]) -> Any:
        """The question that a cut takes of this row, and the passage that it takes of the row
        ``cut_from``."""
        ...


class TextRow:
    """A passage as text."""

    def __init__(self, passage: Passage, document: int) -> None:
        self.passage, self.document = passage, document
        self._title, self._text = written_spans(passage.title), written_spans(passage.text)
        title = [passage.title[start:end] for start, end in self._title]
        self.words = words_of(title, [passage.text[start:end] for start, end in self._text])

    def sample(self, cut: Cut, cut_from: TextRow, identity: tuple[int, int]) -> TrainingSample:
        asked = joined(self.passage.title, [self._title[word] for word in cut.title])
        asked = asked or joined(self.passage.text, [self._text[word] for word in cut.question])
        spans, whole = cut_from._text, cut_from.passage
        parts = [whole.text[spans[start][0] : spans[end - 1][1]] for start, end in cut.passage if start < end]
        part = CutPassage(
            " ".join(parts), whole.title if cut.keeps_title else "", whole.id, identity=identity
        )
        return TrainingSample(asked, (part,))


class PseudoPairs:
    """The passages of a corpus, each of which gives a pair, another one in each lap.

    Args:
        file: the corpus, in any format that ``dpr embed`` reads; ``columns`` of id, text and title are those
        of a TSV.
        kinds: what pairs are cut, as ``kinds_of`` takes it.
        drop_words: probability with which a word of a question is dropped; of every five questions, two stay
        whole.
        held_back: share of the documents that are held back.
        held_only: pairs of the documents held back, always the same ones, in place of those of all others.

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
        self.name, self.file, self.drop_words = name, user_path(file), drop_words
        self.kinds = kinds_of(kinds, setting=setting)
        self._held_back, self._held_only = held_back, held_only
        self._settings = {
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
        self.corpus_fingerprint = text_sha256(json.dumps(read))
        facts = {"kind": "pseudo-pairs 1", "corpus": self.corpus_fingerprint, **self._settings}
        self.fingerprint = text_sha256(json.dumps(facts, sort_keys=True))
        """Changes with the corpus, and with what is cut from it."""
        rows = (index for index, row in enumerate(self.passages(0, self.num_passages)) if self.is_usable(row))
        self._held_rows = list(islice(rows, _MOST_HELD if held_only else 1))
        if not self._held_rows:
            of_few = (
                f" among the documents held back ({held_back:g} of those of {self.num_passages:,} passages);"
                " it takes some dozen"
            )
            raise InputError(
                "has no passage with words" + of_few * (held_only and self.num_passages > 0), file=self.file
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopened, (self.file, {"name": self.name, **self._settings}))

    def __len__(self) -> int:
        return len(self._held_rows) if self._held_only else self._store.num_passages

    def __getitem__(self, row: int) -> TrainingSample:
        """The pair of a row where nothing may be random, as in validation."""
        return self.drawn(row, generator_for(PAIRS, 0, 0, 0, row))

    def known_positives(self, row: int) -> tuple[KnownDocument, ...]:
        """All passages of the row's document."""
        return (known_document(self[row]),)

    def drawn(self, row: int, generator: np.random.Generator) -> TrainingSample:
        """A pair of a passage, or where it is empty or held back, of another one, drawn.

        Raises:
            ConfigError: a maker of the user's returned what is no pair.
        """
        sample: TrainingSample = draw(self, self.row, row, generator)
        return sample

    def row(self, number: int) -> TextRow:
        """A passage of the corpus."""
        passage = next(self._store.passages(number, number + 1))
        return TextRow(passage, self._document_of(passage))

    def corpus_row(self, row: int) -> int:
        """The number of a row's passage in the corpus."""
        return self._held_rows[row] if self._held_only else row

    def is_usable(self, row: Row) -> bool:
        """Whether the passage has words, and is on the side of the corpus that was asked for."""
        is_held = (row.document >> 20) % 10_000 < 10_000 * self._held_back
        return row.words.text > 0 and is_held == self._held_only

    def passages(self, start: int, stop: int) -> Iterator[TextRow]:
        """Passages of the corpus, in order."""
        return (TextRow(passage, self._document_of(passage)) for passage in self._store.passages(start, stop))

    @property
    def num_passages(self) -> int:
        return self._store.num_passages

    def block_ends(self) -> list[int]:
        """Where the corpus may be divided for several processes, in rows."""
        return [*range(_ROWS_PER_BLOCK, self.num_passages, _ROWS_PER_BLOCK), self.num_passages]

    def _document_of(self, passage: Passage) -> int:
        """That of its file or address; else that of its title; else its own."""
        key = next(
            (
                key
                for key, tells in zip(_documents(passage), self._tells_documents, strict=True)
                if key and tells
            ),
            "",
        )
        return text_hash(f"document {key}" if key else f"passage {passage.id}") - (1 << 63)

    @cached_property
    def _tells_documents(self) -> list[bool]:
        """Of files and of titles: not where so many share one that hardly any would be a negative. Judged by
        a sample."""
        rows = (
            np.unique(np.linspace(0, self.num_passages - 1, _LOOKED_AT).astype(int)).tolist()
            if self.num_passages
            else []
        )
        documents = zip(*(_documents(next(self._store.passages(row, row + 1))) for row in rows), strict=True)
        counts = [Counter(filter(None, keys)) for keys in documents] or [Counter(), Counter()]
        return [
            max(count.values(), default=0) <= max(share * len(rows), 1)
            for count, share in zip(counts, _LARGEST, strict=True)
        ]


def _documents(passage: Passage) -> tuple[str, str]:
    return (passage.origin.url or passage.origin.file) if passage.origin else "", passage.title


def _reopened(file: Path, settings: Mapping[str, Any]) -> PseudoPairs:
    return PseudoPairs(file, **settings)


def draw(pairs: PseudoPairs, row_of: Callable[[int], Any], row: int, generator: np.random.Generator) -> Any:
    """The pair of a row, from its text or its tokens, whichever ``row_of`` gives; the same numbers are drawn
    for both."""
    number = pairs.corpus_row(row)
    while not pairs.is_usable(passage := row_of(number)):
        number = int(generator.integers(pairs.num_passages))
    identity = passage.document, int(generator.integers(1 << 62))
    kind = choose(pairs.kinds, passage.words, generator)
    if kind in pairs.makers:
        return _of_maker(pairs.makers[kind], kind, pairs.row(number), identity, generator)
    cut, cut_from = KINDS[kind][0](passage.words, generator), passage
    if kind == NEIGHBOURS:
        beside = [other for other in (number - 1, number + 1) if 0 <= other < pairs.num_passages]
        rows = [
            other for other in map(row_of, beside) if other.document == passage.document and other.words.text
        ]
        if rows:
            cut_from = rows[int(generator.integers(len(rows)))]
            cut = cut._replace(passage=KINDS[kind][0](cut_from.words, generator).passage)
    cut = cut._replace(question=shortened(cut.question, pairs.drop_words, generator))
    return passage.sample(cut, cut_from, identity)


def _of_maker(
    maker: PairMaker, kind: str, row: TextRow, identity: tuple[int, int], generator: np.random.Generator
) -> TrainingSample:
    made = maker.pair(row.passage, generator)
    if made is None:
        return row.sample(KINDS["crops"][0](row.words, generator), row, identity)
    if not (
        isinstance(made, tuple)
        and len(made) == 2
        and isinstance(made[0], str)
        and isinstance(made[1], Passage)
    ):
        raise ConfigError(f"{kind} returned {made!r:.80}, expected a question and a dpr.Passage, or None")
    question, passage = made
    return TrainingSample(question, (CutPassage(passage.text, passage.title, identity=identity),))
