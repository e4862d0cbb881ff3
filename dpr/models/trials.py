"""Trials of a backbone: properties that only running it shows, on a few random tokens, once when a tower is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.logs import get_logger

logger = get_logger(__name__)

LENGTHS = (11, 7, 4)
# Errors of model classes that are called in a way that they do not support.
FAILURES = (
    TypeError,
    ValueError,
    RuntimeError,
    IndexError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    KeyError,
)
TOLERANCE = 1e-3


@contextmanager
def trial(backbone: Any) -> Iterator[None]:
    """Runs the block in evaluation mode without gradients, with small weights scaled up so that every layer
    shows in the output; restores everything at the end.

    Freshly initialised weights are so small that a deep backbone does little more than pass its input on, and
    errors would go unseen. Factors are powers of two, so that the weights are restored bit for bit.
    """
    scaled: list[tuple[Tensor, float]] = []
    training = backbone.training
    with torch.no_grad():
        try:
            backbone.eval()
            for weight, factor in _small_weights(backbone):
                weight.mul_(factor)
                scaled.append((weight, factor))
            yield
        finally:
            for weight, factor in scaled:
                weight.div_(factor)
            backbone.train(training)


def _small_weights(backbone: Any) -> Iterator[tuple[Tensor, float]]:
    """Yields each matrix that makes its input smaller, with a power of two that prevents it. Embedding tables
    are judged by their values."""
    words = backbone.get_input_embeddings().weight
    for module in backbone.modules():
        for weight in module.parameters(recurse=False):
            if weight.dim() != 2 or weight is words:
                continue
            # A sample of its values; a prime stride covers every column.
            size = float(weight.flatten()[:: 97 if weight.numel() > 1 << 16 else 1].square().mean().sqrt())
            gain = size * (1.0 if isinstance(module, nn.Embedding) else weight.shape[1] ** 0.5)
            if 0 < gain < 1:
                yield weight, 2.0 ** float(torch.tensor(1 / gain).log2().ceil())


def sample_batch(backbone: Any, lengths: Sequence[int] = LENGTHS) -> TokenBatch:
    """Draws random tokens, none of them padding, on the backbone's device."""
    config = backbone.config
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(config.vocab_size), (sum(lengths),), generator=generator)
    pad = pad_id(config)
    tokens[tokens == pad] = pad + 1 if pad + 1 < int(config.vocab_size) else pad - 1
    return TokenBatch(tokens, torch.tensor(lengths), torch.zeros(len(lengths), dtype=torch.int64)).to(
        backbone.device
    )


def pad_id(config: Any) -> int:
    """Returns the padding token, or 0 if a model names none, since nothing reads it."""
    return int(config.pad_token_id or 0)


def padded_states(backbone: Any, batch: TokenBatch, **options: Any) -> Tensor:
    """Returns the last hidden states of a padded forward without those of padding: (T, D)."""
    input_ids, mask = batch.padded(pad_id(backbone.config))
    states: Tensor = backbone(
        input_ids=input_ids, attention_mask=mask.to(torch.int64), **options
    ).last_hidden_state[mask]
    return states


def agree(found: Tensor, expected: Tensor) -> bool:
    """True if states (T, D) are the same up to rounding, relative to how much they vary from token to token."""
    if found.shape != expected.shape:
        return False
    spread = (expected - expected.mean(0)).square().mean().sqrt()
    return bool((found - expected).abs().max() <= TOLERANCE * spread)


def first_position(backbone: Any) -> int | None:
    """Returns the number of the first position if a padded forward is given explicit positions; None if the
    backbone does not support that."""
    batch = sample_batch(backbone, LENGTHS[:1])
    with suppress(*FAILURES), trial(backbone):
        expected = padded_states(backbone, batch)
        for first in (0, pad_id(backbone.config) + 1):
            if agree(padded_states(backbone, batch, position_ids=batch.positions()[None] + first), expected):
                return first
    return None


def longest_sequence(backbone: Any, length: int) -> int:
    """Returns the most tokens, up to ``length``, for which the backbone has positions, and at which the
    vector of a text does not depend on the longest text beside it.

    Rotary positions continue beyond those that the config names. With some kinds of them (dynamic, longrope),
    the vectors of all texts in a batch change once one text is longer than the model's original length.
    """
    positions = getattr(backbone.config, "max_position_embeddings", None) or length
    rotary = getattr(backbone.config, "rope_parameters", None) or {}
    # some families number positions from the padding token's + 1 or + 2
    if not rotary and 0 < positions < length + pad_id(backbone.config) + 3:
        length = min(length, positions - (first_position(backbone) or 0))
    for part in (rotary, *rotary.values()):  # each kind of layer may have its own
        kind = str(part.get("rope_type")) if isinstance(part, dict) else ""
        if "dynamic" in kind:
            length = min(length, positions)
        elif kind == "longrope":
            length = min(length, part["original_max_position_embeddings"])
    return length


def is_static(backbone: Any) -> bool:
    """True if a token's state is its row of a table (``dpr.models.static``)."""
    return bool(backbone.config.model_type == "static")


def layers_of(backbone: nn.Module) -> list[nn.Module]:
    """Returns the repeated layers: the members of the backbone's longest list of modules."""
    return list(
        max(
            (module for module in backbone.modules() if isinstance(module, nn.ModuleList)),
            key=len,
            default=[],
        )
    )


def mention_bf16(backbone: Any, device: torch.device, precision: str, *, key: str) -> None:
    """Logs a hint if layers run in fp32 on a processor with instructions for bf16; ``key`` is the setting."""
    if device.type != "cpu" or precision != "fp32" or is_static(backbone):
        return
    if torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported():
        logger.info("this processor multiplies bf16 faster than fp32; %s=bf16 makes use of it", key)
