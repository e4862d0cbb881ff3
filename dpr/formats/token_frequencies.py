"""In how many passages of a corpus each token occurs: ``token_frequencies.json`` of an encoder folder, where
``idf`` pooling starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import InputError
from dpr.storage.durable import read_json, write_json
from dpr.storage.untrusted import describe

TOKEN_FREQUENCIES_FILE = "token_frequencies.json"


@dataclass(frozen=True, slots=True)
class TokenFrequencies:
    """``passages``: how many were counted; ``passages_with`` (V,) int64: how many of them hold each token, by
    token id; ``mean_length`` of a passage in tokens, 0 where it was not counted."""

    passages: int
    passages_with: np.ndarray
    mean_length: float = 0.0

    def idf(self) -> np.ndarray:
        """BM25's inverse document frequency of every token, (V,) float64: log(1 + (N - n + 1/2) / (n + 1/2)).

        It is positive, next to 0 for what stands in every passage, such as [CLS], and greatest for tokens
        that were never seen.
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
        """Those of a folder; None where it has none.

        Raises:
            InputError: the file is damaged, or counts another vocabulary than one of ``vocab_size`` tokens.
        """
        file = folder / TOKEN_FREQUENCIES_FILE
        if not file.is_file():
            return None
        stored: Any = read_json(file)
        passages, counts = (
            (stored.get("passages"), stored.get("passages_with"))
            if isinstance(stored, dict)
            else (None, None)
        )
        if type(passages) is not int or not isinstance(counts, list):
            raise InputError(f"is {describe(stored)}", file=file, expected="passages and passages_with")
        if len(counts) != vocab_size:
            raise InputError(
                f"{len(counts)} tokens are counted", file=file, expected=f"the {vocab_size} of the vocabulary"
            )
        if not all(type(count) is int and 0 <= count <= passages for count in counts):
            raise InputError(
                "a token is counted below 0 or more often than there are passages",
                file=file,
                expected=f"0 to {passages}",
            )
        length = stored.get("mean_length", 0)
        if type(length) not in (int, float) or not 0 <= length < math.inf:
            raise InputError(
                f"mean_length is {describe(length)}",
                file=file,
                expected="the mean length of a passage in tokens",
            )
        return cls(passages, np.array(counts, dtype=np.int64), length)
