"""Global batches of given vectors and identities, for tests of losses."""

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, Temperature, TokenBatch
from dpr.losses.candidates import find_candidates
from dpr.losses.protocol import GlobalBatch


def make_global_batch(
    contexts: Tensor,
    positive_idx: Tensor,
    *,
    rule: str = "distinct",
    ids: Tensor | None = None,
    valid: Tensor | None = None,
    known: tuple[Tensor, Tensor] | None = None,
    temperature: Tensor | float = 1.0,
) -> GlobalBatch:
    """The global batch of one rank; all contexts are different and valid, and nothing is known, unless stated."""
    size = len(contexts)
    ids = torch.arange(size)[:, None].expand(size, 2) if ids is None else ids
    valid = torch.ones(size, dtype=torch.bool) if valid is None else valid
    nothing = (
        torch.zeros(len(positive_idx), 0, 2, dtype=torch.int64),
        torch.zeros(len(positive_idx), 0, dtype=torch.bool),
    )
    candidates = find_candidates(rule, positive_idx, valid, ids, *(known or nothing))
    everything = slice(0, size), slice(0, len(positive_idx))
    return GlobalBatch(
        contexts,
        candidates,
        Temperature(temperature),
        contexts.new_zeros(len(positive_idx), contexts.shape[1]),
        *everything,
        ids,
    )


def batch_of(num_questions: int, width: int) -> BiEncoderBatch:
    """Questions with one known positive each, the first of ``width`` slots."""
    size = num_questions * width
    tokens, ids = TokenBatch.from_lists([[1]]), torch.arange(size)[:, None].repeat(1, 2)
    positives = torch.arange(num_questions) * width
    known = ids[positives][:, None], torch.ones(num_questions, 1, dtype=torch.bool)
    questions = TokenBatch.from_lists([[1]] * num_questions)
    valid, weights = torch.ones(size, dtype=torch.bool), torch.ones(num_questions, dtype=torch.float64)
    return BiEncoderBatch(
        questions, tokens, torch.zeros(size, dtype=torch.int64), valid, ids, positives, *known, weights
    )
