"""The passages that negatives are mined from: by id, by row and by text, all memory-mapped from disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpr.core.errors import InputError
from dpr.core.records import Passage, text_hash
from dpr.data.text import plain
from dpr.embedding.source import PassageSource
from dpr.formats.arrays import HashIndex
from dpr.formats.corpora import write_passages
from dpr.formats.text_store import TextStore, open_store
from dpr.formats.training_sets import TrainingSet
from dpr.storage.durable import durable_folder

TRAINING_PASSAGES = "corpus.jsonl"
_BY_TEXT = "rows_by_text"
_MADE = "text:"


class MiningCorpus:
    """A corpus file with its indexes in the work folder, which the first opening writes.

    Raises:
        InputError: the file is missing, empty or has a bad row, or an id occurs twice.
    """

    def __init__(self, file: Path, work: Path) -> None:
        self.file = file
        self.work = work
        self._texts = open_store(file, cache_dir=work)
        if not len(self._texts):
            raise InputError("no passages", file=file, expected="at least one")
        if not (work / _BY_TEXT).is_dir():
            hashes = np.fromiter(
                (text_hash(plain(passage.text)) for passage in self._texts.passages()), dtype=np.uint64
            )
            with durable_folder(work / _BY_TEXT) as folder:
                HashIndex.write(folder / "rows.npy", hashes)
        self._by_text = HashIndex(work / _BY_TEXT / "rows.npy")

    @property
    def num_passages(self) -> int:
        return len(self._texts)

    def passages(self) -> Iterator[Passage]:
        """All passages in the order of the file, with the ids that ``passage`` accepts."""
        return self._texts.passages()

    def ids(self) -> Iterator[str]:
        return self._texts.ids()

    def id_at(self, row: int) -> str:
        """The id, as searches give it, of a row of the corpus."""
        return self._texts.id_at(row)

    def passage(self, key: str) -> Passage:
        """A passage of the corpus; one without an id stays without, so that it is recognised by its text."""
        passage = self._texts.passage(key)
        return replace(passage, id=None) if key.startswith(_MADE) else passage

    def row_of(self, passage: Passage) -> int | None:
        """The row of the (first) passage with this text."""
        return next(self._by_text.rows(text_hash(plain(passage.text))), None)

    def named(self, passage: Passage) -> Passage:
        """A passage of the training data with its id in the corpus.

        Otherwise one text would be two passages: a question's positive, and a negative that training does not
        recognise as that positive.
        """
        row = self.row_of(passage)
        key = _MADE if row is None else self._texts.id_at(row)
        return passage if key.startswith(_MADE) else replace(passage, id=key)

    def source(self) -> PassageSource:
        """The passages as an embedding job reads them, whatever the format of the file."""
        return _StoredPassages(self.file, name=self.file.name, texts=self._texts)


@dataclass(frozen=True, slots=True)
class _StoredPassages(PassageSource):
    texts: TextStore | None = None

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Passage]:
        assert self.texts is not None
        return self.texts.passages(start, stop)

    def count_unique(self) -> int:
        assert self.texts is not None
        return len(self.texts)  # ids were found to be unique when they were stored


def write_training_passages(train: TrainingSet, file: Path) -> int:
    """Writes the distinct passages of a training set as a corpus and returns how many. Holds two hashes of
    each in memory."""
    return write_passages(file, _distinct(train))


def _distinct(train: TrainingSet) -> Iterator[Passage]:
    contents: set[int] = set()
    names: set[int] = set()
    for row in range(len(train)):
        sample = train[row]
        for passage in sample.positives + sample.hard_negatives + sample.other_negatives:
            content = text_hash(plain(passage.text))
            if content in contents:
                continue
            contents.add(content)
            # An id that stands for two texts in the file names the first one only.
            key = passage.id or ""
            if not key or "\0" in key or text_hash(key) in names:
                key = f"{_MADE}{content:016x}"
            names.add(text_hash(key))
            yield replace(passage, id=key)
