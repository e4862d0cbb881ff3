"""The passages that negatives are mined from: a BM25 index, texts by id, and ids by text, all on disk and mapped."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.likeness import plain, text_hash
from dpr.formats.durable import durable_file, durable_folder
from dpr.formats.training_files.lookup import lookup_entries, open_lookup
from dpr.formats.training_sets import TrainingSet
from dpr.indexer.bm25 import Bm25Index

logger = get_logger(__name__)

OWN_CORPUS = "corpus.jsonl"
_BY_TEXT = "by_text"
_MADE = "text:"


class MiningCorpus:
    """Opens what ``build`` left in a work folder."""

    def __init__(self, corpus: Path, work: Path) -> None:
        self._index = Bm25Index.load(work / "index")
        self._texts = open_lookup(corpus, work)
        self._hashes, self._rows = np.load(work / _BY_TEXT / "by_text.npy", mmap_mode="r", allow_pickle=False)

    @property
    def num_passages(self) -> int:
        return self._index.num_passages

    def search(self, question: str, depth: int, positives: tuple[Passage, ...]) -> tuple[list[tuple[Passage, float]], float | None]:
        """The best passages with their scores, and the highest score of a positive that is in the corpus (None: none is)."""
        names = [key for passage in positives if (key := self._id_by_text(passage)) is not None]
        hits, own = self._index.search_beside(question, depth, names)
        known = [score for score in own if score is not None]
        return [(self.passage(key), score) for key, score in hits], max(known, default=None)

    def passage(self, key: str) -> Passage:
        """A passage of the corpus; one that had no id keeps having none, so that it is still told by its text."""
        passage = self._texts.passage(key)
        return replace(passage, id=None) if key.startswith(_MADE) else passage

    def named(self, passage: Passage) -> Passage:
        """A passage of the training data under its id in the corpus. Else the same text would be two passages: a question's positive, and
        another's negative that training does not know to be that positive."""
        key = self._id_by_text(passage)
        return passage if key is None or key.startswith(_MADE) else replace(passage, id=key)

    def _id_by_text(self, passage: Passage) -> str | None:
        wanted = np.uint64(text_hash(plain(passage.text)))
        place = int(np.searchsorted(self._hashes, wanted))
        if place == len(self._hashes) or self._hashes[place] != wanted:
            return None
        return self._index.id_at(int(self._rows[place]))

    @staticmethod
    def build(corpus: Path, work: Path, *, k1: float, b: float) -> None:
        """Indexes a corpus into the work folder; what is there already stays.

        Memory: the index is made in memory (its postings, and 8 bytes a word); texts are read as a stream.
        """
        if not (work / "index").is_dir():
            logger.info("indexing %s", corpus)
            ids = [entry[0] for _, entry in lookup_entries(corpus)]
            texts = (f"{entry[2]} {entry[1]}" for _, entry in lookup_entries(corpus))
            Bm25Index.build(ids, texts, k1=k1, b=b).save(work / "index", overwrite=True)
        if not (work / _BY_TEXT).is_dir():
            hashes = np.frombuffer(array("Q", (text_hash(plain(entry[1])) for _, entry in lookup_entries(corpus))), dtype=np.uint64)
            order = np.argsort(hashes, kind="stable").astype(np.uint64)
            with durable_folder(work / _BY_TEXT) as folder:
                np.save(folder / "by_text.npy", np.stack([hashes[order.astype(np.int64)], order]), allow_pickle=False)
        open_lookup(corpus, work)


def write_own_passages(train: TrainingSet, file: Path) -> int:
    """Writes the distinct passages of a training set as a corpus and returns how many. Holds two hashes per distinct passage."""
    count = 0
    with durable_file(file) as out:
        for key, passage in _distinct(train):
            out.write(json.dumps({"_id": key, "title": passage.title, "text": passage.text}, ensure_ascii=False) + "\n")
            count += 1
    return count


def _distinct(train: TrainingSet) -> Iterator[tuple[str, Passage]]:
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
            is_free = passage.id is not None and bool(passage.id) and text_hash(passage.id) not in names and "\0" not in passage.id
            key = str(passage.id) if is_free else f"{_MADE}{content:016x}"
            names.add(text_hash(key))
            yield key, passage
