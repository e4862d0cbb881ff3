"""Numbers of passages that hold each token, from which `idf` pooling starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.storage.durable import write_json
from dpr.storage.untrusted import read_json

TOKEN_FREQUENCIES_FILE = "token_frequencies.json"


@dataclass(frozen=True, slots=True)
class TokenFrequencies:
    """Numbers of passages that hold each token. ``passages`` is the number of passages counted;
    ``passages_with`` (V,) int64 is the number of them that hold each token, by token id. ``mean_length`` is
    the mean number of tokens of a passage, 0 if it was not counted."""

    passages: int
    passages_with: np.ndarray
    mean_length: float = 0.0

    def idf(self) -> np.ndarray:
        """Returns BM25's inverse document frequency of every token, (V,) float64.

        It is log(1 + (N - n + 1/2) / (n + 1/2)): positive, close to 0 for tokens that occur in every passage,
        such as [CLS], and greatest for tokens that never occurred.
        """
        with_it = self.passages_with
        return np.log1p((self.passages - with_it + 0.5) / (with_it + 0.5))

    def write(self, folder: Path) -> None:
        """Writes the file into an existing folder."""
        stated = {
            "passages": self.passages,
            "mean_length": self.mean_length,
            "passages_with": self.passages_with.tolist(),
        }
        write_json(folder / TOKEN_FREQUENCIES_FILE, stated)

    @classmethod
    def read(cls, folder: Path, *, vocab_size: int) -> TokenFrequencies | None:
        """Returns the frequencies of a folder, or None if it has none.

        Raises:
            InputError: the file is damaged, or counts another vocabulary than one of ``vocab_size`` tokens.
        """
        file = folder / TOKEN_FREQUENCIES_FILE
        if not file.is_file():
            return None
        try:
            stored: Any = read_json(file)
            passages = stored["passages"]
            counts = np.array(stored["passages_with"], dtype=np.int64)
            length = float(stored.get("mean_length", 0))
            is_right = counts.shape == (vocab_size,) and 0 <= counts.min() <= counts.max() <= passages
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            is_right = False
        if not is_right or not 0 <= length < math.inf:
            expected = f"how many passages have each of the {vocab_size} tokens of the vocabulary"
            raise InputError("is not a count of tokens", file=file, expected=expected)
        return cls(passages, counts, length)
