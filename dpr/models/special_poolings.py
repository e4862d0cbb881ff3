"""Poolings that models of sentence-transformers come with, loaded where one of them is used."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from dpr.core.errors import ConfigError
from dpr.data.tensorizer import Tensorizer
from dpr.models.encoder import Encoder
from dpr.models.pooling import MeanPooling, Pooling


class RootMeanPooling(MeanPooling):
    """The sum over all tokens, divided by the root of their number."""

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return (
            super().padded(hidden, tokens, mask, position) * mask.sum(1, keepdim=True).to(hidden.dtype).sqrt()
        )

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        mean = super().packed(hidden, tokens, lengths, position)
        return mean * lengths[:, None].to(mean.dtype).sqrt()


class JoinedPooling(MeanPooling):
    """Several poolings of the same states, their vectors end to end."""

    def __init__(self, parts: Sequence[Pooling]) -> None:
        self._parts = parts

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        return torch.cat([part.padded(hidden, tokens, mask, position) for part in self._parts], dim=1)

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        return torch.cat([part.packed(hidden, tokens, lengths, position) for part in self._parts], dim=1)


class PromptlessPooling(MeanPooling):
    """A pooling of what stands behind the first ``left_out`` tokens; of a shorter text, of its last token.

    ``pooling`` is one that reads no token by its place, since masks then begin with False.
    """

    def __init__(self, pooling: Pooling, left_out: int) -> None:
        self._pooling, self._left_out = pooling, left_out

    def padded(self, hidden: Tensor, tokens: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        places = torch.arange(mask.shape[1], device=mask.device)[None]
        return self._pooling.padded(
            hidden, tokens, mask & (places >= self._first(mask.sum(1))[:, None]), position
        )

    def packed(self, hidden: Tensor, tokens: Tensor, lengths: Tensor, position: Tensor) -> Tensor:
        # Each sequence as two of which the second counts: their sizes stay on the device.
        first = self._first(lengths)
        both = torch.stack([first, lengths - first], dim=1).flatten()
        return self._pooling.packed(hidden, tokens, both, position.repeat_interleave(2))[1::2]

    def _first(self, lengths: Tensor) -> Tensor:
        return (lengths - 1).clamp(max=self._left_out)


def leave_prompts_out(question: Encoder, ctx: Encoder, tensorizer: Tensorizer) -> tuple[Encoder, Encoder]:
    """The towers with poolings that leave the prompt of their side out, over the same weights.

    Raises:
        ConfigError: questions may have other prompts.
    """
    text = tensorizer.text
    if text.prompts:
        found = "this model leaves the tokens of a prompt out of the vector, and has one for all questions"
        raise ConfigError(f"encoder.prompts: {found}; give it as encoder.query_prompt")
    towers = copy.copy(question), copy.copy(ctx)
    for tower, prompt in zip(towers, (text.query_prompt, text.passage_prompt), strict=True):
        tower.pooling = PromptlessPooling(tower.pooling, prompt_length(tensorizer, prompt))
    return (towers[1], towers[1]) if question is ctx and text.query_prompt == text.passage_prompt else towers


def prompt_length(tensorizer: Tensorizer, prompt: str) -> int:
    """Tokens of a prompt before a text, with the special ones before it; 0 of no prompt. As the library
    counts: those of the prompt alone, without a special token at the end."""
    tokens = tensorizer.tokenizer(prompt, verbose=False)["input_ids"] if prompt else []
    return len(tokens) - bool(tokens and tokens[-1] in tensorizer.tokenizer.all_special_ids)
