"""A question's scores for its own passages against those of a teacher. Mathematics only; docs/numerics.md, section 1, has the formulas.

Letters: B questions, n own slots of each.
"""

from __future__ import annotations

from torch import Tensor

from dpr.losses.candidates import MASKED_SCORE


def kl_divergence(student: Tensor, teacher: Tensor, is_scored: Tensor) -> Tensor:
    """Of each question the divergence KL(teacher || student) of two softmax distributions over its scored slots, (B,).

    ``student`` and ``teacher`` (B, n) are divided by their temperatures already; ``is_scored`` (B, n) marks the slots that count. A
    question with fewer than two of them has 0.
    """
    log_student = student.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    log_teacher = teacher.masked_fill(~is_scored, MASKED_SCORE).log_softmax(1)
    return (log_teacher.exp() * (log_teacher - log_student)).masked_fill(~is_scored, 0.0).sum(1)


def margin_mse(student: Tensor, teacher: Tensor, is_scored: Tensor, positive: Tensor) -> Tensor:
    """Of each question the mean squared difference of margins over its scored slots other than the positive, (B,).

    A margin is the positive's score minus that of another slot. ``positive`` (B,) is the slot of the positive. A question whose positive
    has no score, or nothing else has one, has 0.
    """
    column = positive[:, None]
    counts = (is_scored & is_scored.gather(1, column)).scatter(1, column, False)
    teacher = teacher.masked_fill(~is_scored, 0.0)
    gap = (student.gather(1, column) - student) - (teacher.gather(1, column) - teacher)
    return gap.square().masked_fill(~counts, 0.0).sum(1) / counts.sum(1).clamp(min=1)
