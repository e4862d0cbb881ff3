"""Counting in how many passages of a corpus each token occurs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.formats.token_frequencies import TokenFrequencies

_PASSAGES_AT_ONCE = 1000
_WHOLE = 1 << 24  # tokens; passages are counted uncut


def count_tokens(tokenizer: Any, passages: Iterable[Passage], *, vocab_size: int) -> TokenFrequencies:
    """Frequencies of the ``vocab_size`` tokens of a fast tokenizer in passages as towers see them: titles and special tokens too."""
    tensorizer = Tensorizer(tokenizer, sequence_length=_WHOLE)
    counts, total = np.zeros(vocab_size, dtype=np.int64), 0
    remaining = iter(passages)
    while part := list(islice(remaining, _PASSAGES_AT_ONCE)):
        for tokens in tensorizer.passage_tokens(part):
            counts[np.unique(tokens)] += 1
        total += len(part)
    return TokenFrequencies(total, counts)
