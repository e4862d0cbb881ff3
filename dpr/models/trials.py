"""What only running a backbone tells: asked once, on a few random tokens, when a tower is made."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.models.pooling import Pooling

logger = get_logger(__name__)

LENGTHS = (11, 7, 4)
# What model classes raise where they are called in a way that they do not know.
FAILURES = (TypeError, ValueError, RuntimeError, IndexError, AttributeError, AssertionError, NotImplementedError, KeyError)
_TOLERANCE = 1e-3


@contextmanager
def trial(backbone: Any) -> Iterator[None]:
    """Evaluation mode and no gradients, with small weights scaled up so that every layer shows in the output; then all is as before.

    Freshly initialised weights are so small that a deep backbone hardly does more than to pass its input on: what it computes wrongly
    would go unseen. Factors are powers of two, so that the weights come back bit for bit.
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
    """Each matrix that makes its input smaller, with the power of two that ends this; tables are taken as they are added: by size."""
    words = backbone.get_input_embeddings().weight
    for module in backbone.modules():
        for weight in module.parameters(recurse=False):
            if weight.dim() != 2 or weight is words:
                continue
            # A sample of its values; a prime stride meets every column.
            size = float(weight.flatten()[:: 97 if weight.numel() > 1 << 16 else 1].square().mean().sqrt())
            gain = size * (1.0 if isinstance(module, nn.Embedding) else weight.shape[1] ** 0.5)
            if 0 < gain < 1:
                yield weight, 2.0 ** float(torch.tensor(1 / gain).log2().ceil())


def sample_batch(backbone: Any, lengths: Sequence[int] = LENGTHS) -> TokenBatch:
    """Random tokens, none of them padding, on the backbone's device."""
    config, generator = backbone.config, torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(config.vocab_size), (sum(lengths),), generator=generator)
    pad = pad_id(config)
    tokens[tokens == pad] = pad + 1 if pad + 1 < int(config.vocab_size) else pad - 1
    return TokenBatch(tokens, torch.tensor(lengths), torch.zeros(len(lengths), dtype=torch.int64)).to(backbone.device)


def pad_id(config: Any) -> int:
    """The token that fills batches up; 0 where a model names none, since nothing reads it."""
    return int(config.pad_token_id or 0)


def padded_states(backbone: Any, batch: TokenBatch, **options: Any) -> Tensor:
    """Last hidden states of a padded forward, those of padding left out: (T, D)."""
    input_ids, mask = batch.padded(pad_id(backbone.config))
    states: Tensor = backbone(input_ids=input_ids, attention_mask=mask.to(torch.int64), **options).last_hidden_state[mask]
    return states


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether states (T, D) are the same but for rounding, which is measured by how much they differ from token to token."""
    if found.shape != expected.shape:
        return False
    spread = (expected - expected.mean(0)).square().mean().sqrt()
    return bool((found - expected).abs().max() <= _TOLERANCE * spread)


def first_position(backbone: Any) -> int | None:
    """Number of the first position of a padded forward that is told positions; None where that computes something else."""
    batch = sample_batch(backbone, LENGTHS[:1])
    try:
        with trial(backbone):
            expected = padded_states(backbone, batch)
            for first in (0, pad_id(backbone.config) + 1):
                if agree(padded_states(backbone, batch, position_ids=batch.positions()[None] + first), expected):
                    return first
    except FAILURES:
        pass
    return None


def check_vectors(backbone: Any, pooling: Pooling, name: str, *, warn_of_padding: bool) -> None:
    """Encodes a few texts the padded way and judges the vectors.

    Raises:
        ConfigError: there are none, or two texts have the same vector because they begin with the same token.
    """
    kind, batch = type(backbone).__name__, sample_batch(backbone, (*LENGTHS, LENGTHS[1]))
    first, second = LENGTHS[0], sum(LENGTHS)
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
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"encoder.pretrained_model_cfg: a {kind} cannot be a tower, since it does not encode short texts ({reason})"
        ) from error
    spread = (vectors - vectors.mean(0)).square().mean().sqrt()
    if (vectors[1] - vectors[3]).abs().max() < 1e-5 * spread:
        raise ConfigError(
            f"encoder.pooling={name}: vectors of a {kind} would not depend on a text after its first token, since its attention is causal; "
            "set encoder.pooling=last or mean"
        )
    if (vectors[2] - alone).abs().max() > _TOLERANCE * spread:
        logger.warning(
            "%s lets padding change a text's vector: it depends on the texts that are encoded beside it, and so do all results", kind
        )


class _Begun(Exception):
    """The first layer was reached."""


def longest_sequence(backbone: Any, length: int) -> int:
    """The most tokens, up to ``length``, that the backbone has positions for; found by running what comes before its first layer."""
    limit, layers = getattr(backbone.config, "max_position_embeddings", None), layers_of(backbone)
    margin = pad_id(backbone.config) + 3  # some families number their first position so
    if limit is None or length <= limit - margin or not layers or backbone.device.type != "cpu":
        return length

    def stop(*_: Any) -> None:
        raise _Begun

    def fits(tokens: int) -> bool:
        try:
            backbone(input_ids=sample_batch(backbone, [tokens]).tokens[None])
        except _Begun:
            return True
        except FAILURES:
            return False
        return True

    hook = layers[0].register_forward_pre_hook(stop)
    try:
        with trial(backbone):
            if fits(length):
                return length
            return bisect_left(range(length), True, key=lambda tokens: not fits(tokens + 1))
    finally:
        hook.remove()


def layers_of(backbone: nn.Module) -> list[nn.Module]:
    """The repeated layers: members of the backbone's longest list of modules."""
    return list(max((module for module in backbone.modules() if isinstance(module, nn.ModuleList)), key=len, default=[]))
