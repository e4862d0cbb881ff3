"""What weights of tokens begin with, and the pooling ``bm25``: loaded where one of them is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.errors import InputError
from dpr.core.logs import get_logger
from dpr.formats.token_frequencies import TOKEN_FREQUENCIES_FILE, TokenFrequencies
from dpr.models.pooling import IdfPooling, Pooling, RootIdfPooling

logger = get_logger(__name__)


class Bm25QuestionPooling(RootIdfPooling):
    """Questions of ``bm25``: the plain sum of w_t h_t over all tokens."""

    def counted(self, counts: Tensor, lengths: Tensor) -> Tensor:
        return counts * lengths


class Bm25Pooling(RootIdfPooling):
    """Passages of ``bm25``: a sum in which n repeats of a token count n / (n + k1 (1 - b + b length / mean
    length)) times.

    Where the rows of different tokens are orthogonal, of length 1, the product with a question's vector is
    BM25's score over tokens.
    """

    constants: Tensor
    """k1, b and the mean length of the corpus's passages in tokens, special ones included."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__(hidden_size, vocab_size)
        self.register_buffer("constants", torch.tensor([0.9, 0.4, 100.0]))

    def counted(self, counts: Tensor, lengths: Tensor) -> Tensor:
        k1, b, mean = self.constants.to(counts.dtype)
        return counts * lengths / (counts + k1 * (1 - b + b * lengths / mean))

    def of_questions(self) -> Bm25QuestionPooling:
        """The other side, with the same token weights."""
        question = Bm25QuestionPooling(0, 0)
        question.token_weights = self.token_weights
        return question


def length_of_rows(backbone: Any) -> float:
    """How long the row of a token is: by the config of a static encoder, whose rows from a corpus are as long
    only if fully kept (``dpr.preparation.corpus_rows``); of any other, the root mean square."""
    rows = backbone.get_input_embeddings().weight
    if backbone.config.model_type == "static":
        return float(backbone.config.initializer_range * rows.shape[1] ** 0.5)
    return float(rows.detach().square().sum(1).mean().sqrt())


@torch.no_grad()
def begin_with_idf(pooling: Pooling, folder: Path, length: float, k1: float, b: float) -> None:
    """Sets the weights of ``IdfPooling`` to the inverse document frequencies in the corpus that ``folder``
    was made for, divided by their mean, so that weights are of the size of 1, as rates of learning expect it.
    Those of ``bm25`` are divided by the ``length`` of a token's row instead, so that scores begin as BM25's.

    Without frequencies the weights stay 1, with a warning.

    Raises:
        InputError: the frequencies are damaged or those of another vocabulary, or have no mean length, which
        ``bm25`` needs.
    """
    if not isinstance(pooling, IdfPooling):
        return
    frequencies = TokenFrequencies.read(folder, vocab_size=len(pooling.token_weights))
    if frequencies is None:
        logger.warning(
            "%s has no %s, so all token weights of encoder.pooling=idf begin with 1",
            folder,
            TOKEN_FREQUENCIES_FILE,
        )
        return
    idf = torch.from_numpy(frequencies.idf())
    start = idf.sqrt() if isinstance(pooling, RootIdfPooling) else idf
    is_bm25 = isinstance(pooling, Bm25Pooling | Bm25QuestionPooling)
    pooling.token_weights.copy_(start / (length if is_bm25 else start.mean()))
    if isinstance(pooling, Bm25Pooling):
        if not frequencies.mean_length:
            found, hint = (
                "states no mean_length, which encoder.pooling=bm25 needs",
                "make it again: dpr new-encoder ... overwrite=true",
            )
            raise InputError(found, file=folder / TOKEN_FREQUENCIES_FILE, hint=hint)
        pooling.constants.copy_(torch.tensor([k1, b, frequencies.mean_length]))
