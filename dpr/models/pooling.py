"""Poolings, which turn the hidden states of a sequence into its vector: their contract, those of the toolkit,
and user-defined ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError, first_line
from dpr.core.logs import get_logger
from dpr.core.user_classes import create_object
from dpr.formats.token_frequencies import TOKEN_FREQUENCIES_FILE, TokenFrequencies
from dpr.models.properties import FAILURES, LENGTHS, TOLERANCE, pad_id, sample_batch, trial
from dpr.models.settings import POOLINGS as POOLINGS

logger = get_logger(__name__)

_SETTING = "encoder.pooling"


class Pooling(Protocol):
    """Turns the last hidden states of N sequences into N vectors; made with the width D of the states and the
    size of the vocabulary.

    ``padded`` and ``packed`` return the same vectors (N, V), V the same for any N, with gradients. The vector
    of a sequence depends on that sequence alone. ``tokens`` are the ids of the tokens that the states belong
    to. ``lengths`` (N,) and ``position`` (N,) are on the device of the states; reading their values on the
    host would make it wait. ``position`` is where a token selector points in each sequence, 0 without one.
    The weights of an ``nn.Module`` are trained and stored with the tower's.
    """

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        """Returns the place (N,) of the only token of each sequence that is read; None if several are.

        A packed tower may then leave the other tokens out of its last layer, and passes sequences of one
        token to ``packed``.
        """

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        """Pools (N, L, D) with ``tokens`` (N, L), ``mask`` (N, L) True at real tokens, which come first."""

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        """Pools sequences laid end to end, (T, D) with ``tokens`` (T,)."""


class ClsPooling:
    """The state of the token at ``position``: the first, or the one that a selector names."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        pass

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return position

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), position]

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        return hidden[torch.cumsum(lengths, 0) - lengths + position]


class LastPooling(ClsPooling):
    """The state of the last token, the only one that sees the whole text under causal attention."""

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return lengths - 1

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return super().padded(hidden, tokens, mask, mask.sum(1) - 1)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        return super().packed(hidden, tokens, lengths, lengths - 1)


class MeanPooling:
    """The mean over all tokens."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        pass

    def token_read(self, lengths: Tensor, position: Tensor) -> Tensor | None:
        return None

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return _padded_mean(hidden, mask.to(hidden.dtype))

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        return _means(hidden, lengths)


class WeightedMeanPooling(MeanPooling):
    """The mean in which token i of a sequence, counted from 1, has the weight i, because later tokens see
    more under causal attention."""

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return _padded_mean(hidden, (mask.cumsum(1) * mask).to(hidden.dtype))

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        starts = (torch.cumsum(lengths, 0) - lengths)[owners(lengths, len(hidden))]
        weights = torch.arange(1, len(hidden) + 1, device=hidden.device) - starts
        # The weights of a sequence sum to n (n + 1) / 2, and the mean divides by n. Half precision cannot
        # hold them.
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        return _means(hidden * weights.to(dtype)[:, None], lengths) * (2 / (lengths + 1).to(dtype))[:, None]


class IdfPooling(MeanPooling, nn.Module):
    """The mean over all tokens of their states times a learned weight of the token: the sum of w_t h_t over
    the number of tokens.

    The weights (V,) start from ``TokenFrequencies.idf`` if the corpus was counted, else from 1, the mean.
    """

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        nn.Module.__init__(self)
        self.token_weights = nn.Parameter(torch.ones(vocab_size))

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return super().padded(hidden * self.token_weights[tokens][:, :, None], tokens, mask, position)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        return super().packed(hidden * self.token_weights[tokens][:, None], tokens, lengths, position)


class RootIdfPooling(IdfPooling):
    """``IdfPooling`` in which n repeats of a token count sqrt(n) times: each has the weight w_t / sqrt(n).

    Each further repeat of a word adds less, as in BM25; in the plain mean a repeated word drowns the others.
    The weights start from the root of ``TokenFrequencies.idf``: the vectors of both sides contain the weight
    of a token, so that their product contains its idf once.
    """

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        same = (tokens[:, :, None] == tokens[:, None, :]) & mask[:, None, :]
        counts = same.sum(2).clamp_min(1).to(hidden.dtype)
        return super().padded(hidden * (counts.sqrt() / counts)[:, :, None], tokens, mask, position)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        _, inverse, repeated = repeats(tokens, lengths, len(self.token_weights))
        counts = repeated.to(hidden.dtype)
        return super().packed(hidden * (counts.sqrt() / counts)[inverse][:, None], tokens, lengths, position)


_CLASSES: dict[str, Any] = {
    "cls": ClsPooling,
    "mean": MeanPooling,
    "last": LastPooling,
    "weighted_mean": WeightedMeanPooling,
    "idf": IdfPooling,
    "idf_sqrt": RootIdfPooling,
}


def repeats(tokens: Tensor, lengths: Tensor, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the distinct tokens of each of N sequences laid end to end, ``tokens`` (T,): D in all.

    Returns:
        The tokens (D,), as the number of the sequence times ``vocab_size`` plus the token, ascending; the
        place among them of each of the T tokens; and how often each of the D occurs in its sequence.
    """
    return torch.unique(
        owners(lengths, len(tokens)) * vocab_size + tokens, return_inverse=True, return_counts=True
    )


def owners(lengths: Tensor, num_tokens: int) -> Tensor:
    """Returns the number of the sequence that each of T tokens belongs to, (T,)."""
    return torch.repeat_interleave(
        torch.arange(len(lengths), device=lengths.device), lengths, output_size=num_tokens
    )


def _padded_mean(hidden: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("nld,nl->nd", hidden, weights) / weights.sum(1, keepdim=True)


def _means(hidden: Tensor, lengths: Tensor) -> Tensor:
    # unsafe: it would wait for the device to check that the lengths sum to T.
    return torch.segment_reduce(
        hidden.to(torch.promote_types(hidden.dtype, torch.float32)), "mean", lengths=lengths, unsafe=True
    )


def begin_with_idf(pooling: Pooling, folder: Path) -> None:
    """Sets the weights of ``IdfPooling`` to the inverse document frequencies in the corpus that ``folder``
    was made for, divided by their mean. So weights are of the order of 1, as learning rates expect.

    Without frequencies the weights stay 1, with a warning.

    Raises:
        InputError: the frequencies are damaged or those of another vocabulary.
    """
    if not isinstance(pooling, IdfPooling):
        return
    frequencies = TokenFrequencies.read(folder, vocab_size=len(pooling.token_weights))
    if frequencies is None:
        message = "%s has no %s, so all token weights of encoder.pooling=idf begin with 1"
        logger.warning(message, folder, TOKEN_FREQUENCIES_FILE)
        return
    set_idf(pooling, frequencies)


@torch.no_grad()
def set_idf(pooling: IdfPooling, frequencies: TokenFrequencies) -> None:
    """Sets the weights to the inverse document frequencies, divided by their mean."""
    idf = torch.from_numpy(frequencies.idf())
    start = idf.sqrt() if isinstance(pooling, RootIdfPooling) else idf
    pooling.token_weights.copy_(start / start.mean())


def is_user_defined(name: str) -> bool:
    """True if a name is an import path. Such a path must come from configuration, never from a file of
    unknown origin."""
    return ":" in name


def make_pooling(name: str, hidden_size: int, vocab_size: int) -> tuple[Pooling, int]:
    """Makes the pooling of a name or an import path ``module:Class``; returns it and the width of its
    vectors.

    Raises:
        ConfigError: the name is not known, or a user-defined pooling violates the contract of ``Pooling``.
    """
    if built_in := _CLASSES.get(name):
        return built_in(hidden_size, vocab_size), hidden_size
    if not is_user_defined(name):
        raise ConfigError(
            f"{_SETTING}={name} is not one of {', '.join(POOLINGS)}, or a user-defined module:Class"
        )
    pooling: Pooling = create_object(name, Pooling, setting=_SETTING, values=(hidden_size, vocab_size))
    # ``padded`` and ``packed`` must agree on three random sequences.
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 4, hidden_size, generator=generator)
    tokens = torch.randint(0, vocab_size, (3, 4), generator=generator)
    lengths = torch.tensor([3, 1, 4])
    position = torch.zeros(3, dtype=torch.int64)
    mask = torch.arange(4)[None] < lengths[:, None]
    rows = torch.arange(3)
    try:
        with torch.no_grad():
            read = pooling.token_read(lengths, position)
            padded = pooling.padded(hidden, tokens, mask, position)
            packed = pooling.packed(hidden[mask], tokens[mask], lengths, position)
            if padded.dim() != 2 or len(padded) != 3:
                raise ValueError(f"its vectors of 3 sequences are of shape {tuple(padded.shape)}")
            if packed.shape != padded.shape or not torch.allclose(packed, padded, rtol=1e-4, atol=1e-5):
                raise ValueError("packed and padded give different vectors")
            if read is not None:
                ones = torch.ones_like(lengths)
                one_each = pooling.packed(hidden[rows, read], tokens[rows, read], ones, position)
                if not torch.allclose(one_each, padded, rtol=1e-4, atol=1e-5):
                    raise ValueError("it reads other tokens than token_read states")
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        raise ConfigError(
            f"{_SETTING}={name} violates the contract of dpr.models.pooling.Pooling ({first_line(error)})"
        ) from error
    return pooling, int(padded.shape[1])


def check_vectors(backbone: Any, pooling: Pooling, name: str, *, warn_of_padding: bool) -> None:
    """Checks the vectors of a few texts in a padded forward.

    Raises:
        ConfigError: there are no vectors, or two texts have the same one because they start with the same
        token.
    """
    kind = type(backbone).__name__
    batch = sample_batch(backbone, (*LENGTHS, LENGTHS[1]))
    first = LENGTHS[0]
    second = sum(LENGTHS)
    batch.tokens[second] = batch.tokens[first]

    def vectors_of(part: TokenBatch) -> Tensor:
        input_ids, mask = part.padded(pad_id(backbone.config))
        hidden = backbone(input_ids=input_ids, attention_mask=mask.to(torch.int64)).last_hidden_state
        return pooling.padded(hidden, input_ids, mask, part.position)

    try:
        with trial(backbone):
            vectors = vectors_of(batch)
            alone = vectors_of(batch.select(torch.tensor([2])))[0] if warn_of_padding else vectors[2]
    except FAILURES as error:
        raise ConfigError(
            f"encoder.pretrained_model_cfg: a {kind} cannot be a tower, since it does not encode short texts"
            f" ({first_line(error)})"
        ) from error
    spread = (vectors - vectors.mean(0)).square().mean().sqrt()
    if (vectors[1] - vectors[3]).abs().max() < 1e-5 * spread:
        raise ConfigError(
            f"encoder.pooling={name}: vectors of a {kind} would not depend on a text after its first token,"
            " since its attention is causal; set encoder.pooling=last or mean"
        )
    if (vectors[2] - alone).abs().max() > TOLERANCE * spread:
        logger.warning(
            "%s gives a text another vector if it is padded, so results depend on the texts of the same"
            " batch",
            kind,
        )
