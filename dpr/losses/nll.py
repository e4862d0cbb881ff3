"""The bi-encoder objective: negative log-likelihood of each question's positive among the candidates of the
global batch. Mathematics only.

Letters: B questions of this rank, M context slots of the global batch, D dimensions. docs/numerics.md derives
the scaling and the candidate rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import BiEncoderBatch, Temperature
from dpr.losses.candidates import CANDIDATE_RULES, Candidates, FalseNegativeFilter, columns_in, score_matrix
from dpr.losses.protocol import GlobalBatch, Loss, LossResult

# A block of this size stays in the cache of a CPU.
CPU_MAX_SCORES = 1 << 18
MAX_SCORES = 1 << 22


class BiEncoderNllLoss(Loss):
    """The InfoNCE loss with in-batch negatives across ranks: -log softmax(positive) of each of this rank's
    questions, among the candidates of the global batch.

    The default loss of ``dpr train``: use it where the data have no teacher scores. ``Objective`` with
    default settings computes the same. From "Dense Passage Retrieval for Open-Domain Question Answering"
    (Karpukhin et al., 2020), whose ``BiEncoderNllLoss`` computed the whole global batch on every rank and
    obtained 1 / W of the gradient.

    A score matrix of more than ``max_scores`` entries (on a CPU ``CPU_MAX_SCORES``, if that is less) is
    computed in blocks, and again in backward.

        >>> x, row, both = torch.eye(2), torch.arange(2), slice(0, 2)
        >>> found = Candidates(target=row, counts=row >= 0, masked=row.new_empty(2, 0), first=row)
        >>> global_batch = GlobalBatch(x, found, Temperature(0.5), x, both, both, ids=torch.stack([row, row], dim=1))
        >>> BiEncoderNllLoss()(x, global_batch).losses
        tensor([0.1269, 0.1269])

    Relatives: ``Symmetric`` ranks questions for a passage; ``Distillation`` learns a teacher's scores.
    """

    def __init__(self, *, candidates: str = "distinct", max_scores: int = MAX_SCORES) -> None:
        if candidates not in CANDIDATE_RULES:
            raise ValueError(f"candidates={candidates!r} is not known, expected 'distinct' or 'dpr'")
        self.candidates = candidates
        self.max_scores = max_scores

    def __call__(
        self, questions: Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch | None = None
    ) -> LossResult:
        """Returns the losses of this rank's questions (B, D) against the contexts (M, D) of the global
        batch."""
        return nll_of_columns(
            questions,
            global_batch.contexts,
            global_batch.candidates,
            global_batch.temperature,
            max_scores=self.max_scores,
        )


def nll_of_columns(
    questions: Tensor,
    columns: Tensor,
    candidates: Candidates,
    temperature: Temperature,
    *,
    false_negatives: FalseNegativeFilter | None = None,
    max_scores: int,
) -> LossResult:
    """Returns -log softmax of each question's target, (B,), among the vectors (M, D) that compete with it:
    the ``candidates``, without those that ``false_negatives`` marks as positives."""
    if questions.device.type == "cpu":
        max_scores = min(max_scores, CPU_MAX_SCORES)
    if len(questions) * len(columns) > max_scores:
        return _blockwise_nll(questions, columns, candidates, temperature, false_negatives, max_scores)
    scores = candidates.mask_(score_matrix(questions, columns, temperature))
    # by the model's own scores, before the false-negative filter masks any
    correct = candidates.are_first(scores.argmax(dim=1))
    if false_negatives is not None:
        scores = false_negatives.mask_(scores, candidates.target)
    return LossResult(torch.nn.functional.cross_entropy(scores, candidates.target, reduction="none"), correct)


class _Block(NamedTuple):
    rows: slice
    columns: slice


def _blocks(num_rows: int, num_columns: int, max_scores: int) -> Iterator[_Block]:
    """Yields nearly square blocks of at most ``max_scores`` scores. All columns of some rows come before the
    next rows."""
    height = min(num_rows, max(1, int(max_scores**0.5)))
    width = max(1, max_scores // height)
    for row in range(0, num_rows, height):
        for column in range(0, num_columns, width):
            yield _Block(
                slice(row, min(row + height, num_rows)), slice(column, min(column + width, num_columns))
            )


class _BlockwiseNll(torch.autograd.Function):
    """Softmax over a large global batch without its score matrix. Memory is that of one block, and backward
    computes each block again."""

    @staticmethod
    def forward(
        ctx: Any,
        questions: Tensor,
        contexts: Tensor,
        temperature: Tensor,
        candidates: Candidates,
        false_negatives: FalseNegativeFilter | None,
        max_scores: int,
    ) -> tuple[Tensor, Tensor]:
        size = len(questions), len(contexts)
        log_sum = questions.new_full((size[0],), -torch.inf)
        best = log_sum.clone()
        best_column = torch.zeros(size[0], dtype=torch.int64, device=questions.device)
        target_score = torch.zeros_like(log_sum)
        for block in _blocks(*size, max_scores):
            scores = _scores(questions, contexts, temperature, candidates, block)
            highest, column = scores.max(dim=1)
            is_better = highest > best[block.rows]
            best[block.rows] = torch.where(is_better, highest, best[block.rows])
            best_column[block.rows] = torch.where(
                is_better, column + block.columns.start, best_column[block.rows]
            )
            if false_negatives is not None:
                scores = false_negatives.mask_(scores, candidates.target, *block)
            column, is_inside = _targets(candidates, block)
            found = scores.gather(1, column)[:, 0]
            target_score[block.rows] = torch.where(is_inside, found, target_score[block.rows])
            log_sum[block.rows] = torch.logaddexp(log_sum[block.rows], scores.logsumexp(dim=1))
        ctx.save_for_backward(questions, contexts, temperature, log_sum)
        ctx.candidates = candidates
        ctx.false_negatives = false_negatives
        ctx.max_scores = max_scores
        correct = candidates.are_first(best_column)
        ctx.mark_non_differentiable(correct)
        return log_sum - target_score, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        questions, contexts, temperature, log_sum = ctx.saved_tensors
        grad_questions, grad_contexts, grad_temperature = (
            torch.zeros_like(part) for part in (questions, contexts, temperature)
        )
        for block in _blocks(len(questions), len(contexts), ctx.max_scores):
            scores = _scores(questions, contexts, temperature, ctx.candidates, block)
            if ctx.false_negatives is not None:
                scores = ctx.false_negatives.mask_(scores, ctx.candidates.target, *block)
            share = (scores - log_sum[block.rows, None]).exp_()
            column, is_inside = _targets(ctx.candidates, block)
            share.scatter_(1, column, share.gather(1, column) - is_inside[:, None].to(share.dtype))
            share *= grads[0][block.rows, None]
            grad_questions[block.rows].addmm_(share, contexts[block.columns])
            grad_contexts[block.columns].addmm_(share.T, questions[block.rows])
            grad_temperature -= (share * scores).sum()
        for grad in (grad_questions, grad_contexts, grad_temperature):
            grad.div_(temperature)  # in place: vectors and gradients of the global batch are in memory now
        return grad_questions, grad_contexts, grad_temperature, None, None, None


def _scores(
    questions: Tensor, contexts: Tensor, temperature: Tensor, candidates: Candidates, block: _Block
) -> Tensor:
    scores = (questions[block.rows] @ contexts[block.columns].T).div_(temperature)
    return candidates.mask_(scores, block.rows, block.columns)


def _targets(candidates: Candidates, block: _Block) -> tuple[Tensor, Tensor]:
    return columns_in(
        candidates.target[block.rows], block.columns.start, block.columns.stop - block.columns.start
    )


def _blockwise_nll(
    questions: Tensor,
    contexts: Tensor,
    candidates: Candidates,
    temperature: Temperature,
    false_negatives: FalseNegativeFilter | None,
    max_scores: int,
) -> LossResult:
    """Computes what ``nll_of_columns`` does, block by block. Differentiable in both vectors and in the
    temperature; in fp32 at least, under any autocast."""
    with torch.autocast(questions.device.type, enabled=False):
        dtype = torch.promote_types(questions.dtype, torch.float32)
        questions = questions.to(dtype)
        losses, correct = _BlockwiseNll.apply(
            questions,
            contexts.to(dtype),
            temperature.like(questions),
            candidates,
            false_negatives,
            max_scores,
        )
    return LossResult(losses, correct)
