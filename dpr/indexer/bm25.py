"""BM25 over words, by the bm25s package: the lexical baseline, the other half of a hybrid, and the miner of
hard negatives.

Words are runs of letters, digits and marks, lower-cased; 33 English stop words are dropped, then a final "s"
is stripped. In scripts without spaces, words are pairs of characters (``dpr.data.words``). There, passages
are also indexed by each single character, so that a question of one finds them. A word counts once per query.
Only passages that share a word with the query are hits, so lists can be shorter than requested.
"""

from __future__ import annotations

import copy
import math
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import regex

from dpr.core.errors import InputError
from dpr.core.logs import counted, get_logger
from dpr.data.words import WORDS_VERSION, split_words, word_spans
from dpr.formats.arrays import map_array
from dpr.formats.id_hashes import first_duplicate
from dpr.formats.packed_ids import PackedIds
from dpr.indexer.ranking import RunningTopK, SearchResult, is_among, packed_ids, to_rankings
from dpr.indexer.registry import Index, IndexTexts
from dpr.indexer.settings import Bm25Settings
from dpr.storage.durable import durable_file
from dpr.storage.untrusted import describe

if TYPE_CHECKING:
    import torch

logger = get_logger(__name__)

_MANY = 200_000
"""Number of passages above which an index may take longer than ten seconds."""
_FREQUENCIES = ("counts.npy", "lengths.npy")
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these"
    " they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Stop words of Lucene's English list."""

# the second is faster, and the same in ASCII
_WORD = regex.compile(r"[\p{L}\p{N}\p{M}]+")
_ASCII_WORD = re.compile("[a-z0-9]+")


def lexical_tokens(text: str, *, is_passage: bool = False) -> list[str]:
    """Returns the words of a question, or the words that a passage is indexed by."""
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
    else:
        words = split_words(unicodedata.normalize("NFKC", text).lower(), _WORD, characters=is_passage)
    return [
        word[:-1] if len(word) > 1 and word[-1] == "s" else word for word in words if word not in STOP_WORDS
    ]


def lexical_spans(text: str, *, is_passage: bool = False) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and word of each of the words of a text."""
    for start, end in word_spans(text, _WORD, characters=is_passage):
        for word in lexical_tokens(text[start:end]):
            yield start, end, word


Frequencies = tuple[np.ndarray, np.ndarray]


class _Words:
    """The words of texts by their numbers, 4 bytes each, and the vocabulary, in the form that the package
    takes. It goes through them three times."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.vocab: dict[str, int] = {}
        self._numbers, self._ends = array("i"), array("q", [0])
        for text in texts:
            self._numbers.extend(
                self.vocab.setdefault(word, len(self.vocab)) for word in lexical_tokens(text, is_passage=True)
            )
            self._ends.append(len(self._numbers))

    @property
    def ids(self) -> _Words:
        return self

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self._numbers[start:end].tolist() for start, end in pairwise(self._ends))

    def frequencies(self, starts: np.ndarray) -> Frequencies:
        """Returns how often a word is in a passage, in the order of an index whose lists of passages begin at
        ``starts``, and the number of words of each passage."""
        places = starts.astype(np.int64)
        found = np.zeros(places[-1], dtype=np.int32)
        for numbers in self:
            words, counts = np.unique(np.array(numbers, dtype=np.int64), return_counts=True)
            found[places[words]] = counts
            places[words] += 1
        return found.astype(np.min_scalar_type(found.max(initial=0))), np.diff(self._ends)


class Bm25Index(Index):
    """A BM25 index in memory, or memory-mapped if it was opened. A search takes about 5 bytes a passage, for
    the scores of one question."""

    reads = "texts"
    can_filter = True
    Settings = Bm25Settings
    made_by: ClassVar[Mapping[str, Any]] = {"words": WORDS_VERSION}

    def __init__(self, engine: Any, ids: PackedIds) -> None:
        self._engine = engine
        self._ids = ids
        self._is_chosen: np.ndarray | None = None
        self.frequencies: Frequencies | None = None
        """How often a word is in a passage, in the order of the engine's lists, and the number of words of each
        passage. ``LivingWords`` needs them; an index that an earlier version has saved has none."""

    @property
    def settings(self) -> Bm25Settings:
        return Bm25Settings(self._engine.k1, self._engine.b)

    @property
    def num_passages(self) -> int:
        return len(self._ids)

    @classmethod
    def build(
        cls, corpus: IndexTexts, settings: Bm25Settings | None = None, *, device: torch.device | str = "cpu"
    ) -> Bm25Index:
        """Indexes texts, one per id; they are read once and not kept.

        Raises:
            InputError: there are no texts, no text contains a word, or an id occurs twice.
        """
        import bm25s

        (ids, texts), settings = corpus, settings or Bm25Settings()
        packed = packed_ids(ids)
        words = _Words(counted(texts, "splitting passages into words", len(packed)))
        if len(words) != len(packed):
            raise ValueError(f"{len(packed)} ids for {len(words)} texts")
        if not words.vocab:
            raise InputError(
                "no passages to index" if not len(words) else "no passage holds a word that can be searched"
            )
        if (repeated := first_duplicate([packed.chunks])) is not None:
            raise InputError(f"passage id {repeated!r} occurs more than once")
        if len(words) > _MANY:
            logger.info("building the index of %s passages", f"{len(words):,}")
        engine = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene")
        engine.index(words, create_empty_token=False, show_progress=False)
        index = cls(engine, packed)
        index.frequencies = words.frequencies(engine.scores["indptr"])
        return index

    def search(self, questions: Sequence[str], k: int) -> SearchResult:
        """Returns the ``k`` passages with the highest score for each question, without those of score 0; none
        if no passage has a word of the question."""
        best = RunningTopK(len(questions), max(1, min(k, self.num_passages)))
        for row, question in enumerate(counted(questions, "searching by words", unit="questions")):
            self._offer(best, row, self._scores(question))
        return best.result()

    def among(self, ids: np.ndarray) -> Bm25Index:
        """Returns an index of some passages, in which words count as in the whole corpus."""
        view = copy.copy(self)
        view._is_chosen = np.concatenate([is_among(some, ids) for some in self._ids.chunks()])
        return view

    def search_beside(
        self, question: str, k: int, rows: Sequence[int]
    ) -> tuple[list[tuple[str, float]], list[float]]:
        """Returns the ``k`` best passages of one question with their scores, and the scores of the passages
        that were the ``rows``-th to be indexed."""
        scores = self._scores(question)
        best = RunningTopK(1, min(k, self.num_passages))
        self._offer(best, 0, scores)
        return to_rankings(best.result())[0], [float(scores[row]) for row in rows]

    def share(self, question: str, score: float) -> float:
        """Returns a score as a share of the highest possible one, that of a text which repeats every word of
        the question without end. Words that no passage has count, too. Returns 1 if the question has no word."""
        highest = 0.0
        for word in set(lexical_tokens(question)):
            holders = self._num_holders(word)
            highest += math.log1p((self.num_passages - holders + 0.5) / (holders + 0.5))
        return score / highest if highest else 1.0

    def _holders(self, word: str) -> slice:
        """Returns the part of the engine's arrays that lists the passages with this word."""
        number = self._engine.vocab_dict.get(word)
        starts = self._engine.scores["indptr"]
        return slice(0, 0) if number is None else slice(int(starts[number]), int(starts[number + 1]))

    def _num_holders(self, word: str) -> int:
        holders = self._holders(word)
        return int(holders.stop - holders.start)

    def _scores(self, question: str) -> np.ndarray:
        words = self._engine.get_tokens_ids(list(dict.fromkeys(lexical_tokens(question))))
        scores = (
            np.asarray(self._engine.get_scores_from_ids(words))
            if words
            else np.zeros(len(self._ids), dtype=np.float32)
        )
        return scores if self._is_chosen is None else np.where(self._is_chosen, scores, 0)

    def _offer(self, best: RunningTopK, row: int, scores: np.ndarray) -> None:
        """Offers the passages that have a score above 0."""
        places = np.flatnonzero(scores > 0)
        if len(places) > best.k:  # before their ids are looked up
            places = places[scores[places] >= np.partition(scores[places], -best.k)[-best.k]]
        best.add(np.full(len(places), row), scores[places], self._ids[places])

    def save(self, folder: Path) -> None:
        self._engine.save(folder, show_progress=False)
        with durable_file(folder / "ids.npy", "wb") as out:
            np.lib.format.write_array(out, self._ids.array, allow_pickle=False)
        for name, numbers in zip(_FREQUENCIES, self.frequencies or (), strict=False):
            with durable_file(folder / name, "wb") as out:
                np.lib.format.write_array(out, numbers, allow_pickle=False)

    @classmethod
    def open(cls, folder: Path, settings: Bm25Settings) -> Bm25Index:
        """Opens a saved index, with its arrays memory-mapped."""
        import bm25s

        engine = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        ids = PackedIds.mapped(folder / "ids.npy")
        defaults = vars(bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene"))
        for name in ("method", "idf_method", "k1", "b", "delta", "dtype", "int_dtype"):
            if (stored := getattr(engine, name)) != defaults[name]:
                raise InputError(
                    f"{name} is {describe(stored)}",
                    file=folder / "params.index.json",
                    expected=repr(defaults[name]),
                )
        if engine.scores["num_docs"] != len(ids):
            raise InputError(f"{len(ids)} ids for {engine.scores['num_docs']} passages", file=folder)
        starts = engine.scores["indptr"]
        rows = engine.scores["indices"]
        words = engine.vocab_dict
        if (
            len(starts) != len(words) + 1
            or len(rows) != len(engine.scores["data"])
            or starts[0] != 0
            or starts[-1] != len(rows)
        ):
            raise InputError(
                f"{len(starts)} lists of {len(rows)} passages for {len(words)} words", file=folder
            )
        if not all(type(number) is int and 0 <= number < len(words) for number in words.values()):
            raise InputError("a word has no number", file=folder / "vocab.index.json")
        index = cls(engine, ids)
        if (folder / _FREQUENCIES[0]).is_file():
            counts, lengths = (map_array(folder / name) for name in _FREQUENCIES)
            index.frequencies = counts, lengths
        return index
