"""Words by which the rows of a set are grouped, so that in-batch negatives are near the positive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from dpr.core.logs import counted
from dpr.core.records import CutPassage, StoredSample, TrainingSample, composed, text_hash
from dpr.data.order import WORDS
from dpr.data.training_data import SampleSource
from dpr.data.words import words_of

_WIDTH = WORDS["vector"].shape[0]
_PLACES = 8
_LENGTH = 4080
"""Length of a vector before its numbers are rounded, which adds 12 at most (half of the root of
``_WIDTH``)."""
_WEIGHT = 64
"""Factor by which weights of words are multiplied before they are rounded to whole numbers."""


def row_words(source: SampleSource) -> np.ndarray:
    """Returns the features by which a set's rows are grouped by words: (N,) of ``WORDS``.

    A row's vector counts the words of its question and of its first positive: rare words weigh more (the
    root of the logarithm of 1 + rows / rows with the word), and each word has a few random places and signs (a
    sparse random projection), drawn from the word itself. All sums are of whole numbers, so groups are the same
    on every machine, with any number of threads or processes.

    For stored tokens, the words are those of the text. For pairs cut from passages, they are those of one
    pair of each passage, and positives are equal if the document is. Reads every row twice; takes 1 kB of
    memory a row.
    """
    text: SampleSource = getattr(source, "text", source) if isinstance(source[0], StoredSample) else source
    counts: Counter[str] = Counter()
    for _, sides in _rows(text):
        counts.update(frozenset().union(*sides))
    numbers = {word: number for number, word in enumerate(counts)}
    weights = np.rint(_WEIGHT * np.sqrt(np.log1p(len(text) / np.array([*counts.values()], dtype=np.float64))))
    drawn = b"".join(
        blake2b(word.encode(errors="surrogatepass"), digest_size=2 * _PLACES).digest() for word in counts
    )
    draws = np.frombuffer(drawn, dtype="<u2").reshape(-1, _PLACES)
    places = draws % _WIDTH
    values = np.where(draws >> 15, 1.0, -1.0) * weights[:, None]
    features = np.zeros(len(text), dtype=WORDS)
    for row, (positive, sides) in enumerate(_rows(text)):
        found = ([numbers[word] for word in words] for words in sides)
        sums = (np.bincount(places[own].ravel(), values[own].ravel(), minlength=_WIDTH) for own in found)
        features[row] = _scaled(np.sum([_scaled(each) for each in sums], axis=0)), positive
    return features


def _rows(text: SampleSource) -> Iterator[tuple[int, tuple[frozenset[str], ...]]]:
    """Yields for each row a number that stands for its first positive, and the words of its question and of
    that positive."""
    for row in counted(range(len(text)), f"splitting {text.name} into words", unit="rows"):
        sample = text[row]
        assert isinstance(sample, TrainingSample)
        passage = sample.positives[0]
        whole = composed(f"{passage.title}\n{passage.text}")
        positive = passage.identity[0] if isinstance(passage, CutPassage) else text_hash(whole) - (1 << 63)
        yield positive, (words_of(sample.question), words_of(whole))


def _scaled(vector: np.ndarray) -> np.ndarray:
    """Returns a vector of whole numbers scaled to ``_LENGTH`` and rounded again; zeros stay."""
    length = np.sqrt(vector @ vector)
    return np.rint(_LENGTH / length * vector) if length else vector
