"""What weights of tokens begin with."""

from __future__ import annotations

from pathlib import Path

import torch

from dpr.core.logs import get_logger
from dpr.formats.token_frequencies import TOKEN_FREQUENCIES_FILE, TokenFrequencies
from dpr.models.pooling import IdfPooling, Pooling, RootIdfPooling

logger = get_logger(__name__)


@torch.no_grad()
def begin_with_idf(pooling: Pooling, folder: Path) -> None:
    """Sets the weights of ``IdfPooling`` to the inverse document frequencies in the corpus that ``folder``
    was made for, divided by their mean, so that weights are of the size of 1, as rates of learning expect it.

    Without frequencies the weights stay 1, with a warning.

    Raises:
        InputError: the frequencies are damaged or those of another vocabulary.
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
    pooling.token_weights.copy_(start / start.mean())
