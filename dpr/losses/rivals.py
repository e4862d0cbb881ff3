"""Which scores a question's softmax is taken over, and how much each weighs: candidates, guards against false negatives, hardness.

All of it is a function of a part of the score matrix, so that it works in blocks. docs/numerics.md, section 1, has the formulas.

Letters: B questions of this rank, M columns, G dimensions of guide vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpr.losses.candidates import EVERYTHING, MASKED_SCORE, Candidates


@dataclass(frozen=True, slots=True)
class GuideVectors:
    """Another model's vectors of length 1 (zeros where it has none): of each question's positive (B, G), of the columns (M, G).

    A passage whose cosine with a question's positive exceeds ``threshold`` is taken for an unlabelled positive.
    """

    positives: Tensor
    columns: Tensor
    threshold: float


@dataclass(frozen=True, slots=True)
class Rivals:
    """What a question's positive is compared with.

    Scores above ``ceiling`` (B,) are masked, and so are columns that ``guide`` takes for positives; the target never is. With ``hardness``
    b a rival weighs exp(b x) times as much in the denominator, x being its score times the temperature.
    """

    candidates: Candidates
    ceiling: Tensor | None = None
    guide: GuideVectors | None = None
    hardness: float = 0.0

    @property
    def target(self) -> Tensor:
        return self.candidates.target

    def mask_(self, scores: Tensor, rows: slice = EVERYTHING, columns: slice = EVERYTHING) -> Tensor:
        """Writes ``MASKED_SCORE``, in place, over what does not count in the given part of the score matrix."""
        scores = self.candidates.mask_(scores, rows, columns)
        suspects = []
        if self.ceiling is not None:
            suspects.append(scores.detach() > self.ceiling[rows, None])
        if self.guide is not None:
            suspects.append(self.guide.positives[rows] @ self.guide.columns[columns].T > self.guide.threshold)
        for suspect in suspects:
            scores = scores.masked_fill_(self._without_target(suspect, rows, columns), MASKED_SCORE)
        return scores

    def weighed(self, scores: Tensor, temperature: Tensor | float, rows: slice = EVERYTHING, columns: slice = EVERYTHING) -> Tensor:
        """The scores with the logarithm of each rival's weight added, which is a constant to the gradient, as ``temperature`` must be."""
        if not self.hardness:
            return scores
        return scores + self.hardness * temperature * self._without_target(scores.detach(), rows, columns)

    def _without_target(self, values: Tensor, rows: slice, columns: slice) -> Tensor:
        """``values`` with 0, or False, at each question's target."""
        column, is_inside = columns_in(self.target[rows], columns.start or 0, values.shape[1])
        kept = values.gather(1, column)
        return values.scatter(1, column, kept.where(~is_inside[:, None], torch.zeros_like(kept)))


def columns_in(columns: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Where ``columns`` (B',) are among ``width`` columns from ``start`` on, (B', 1), and whether they are, (B',).

    Where they are not, the place means nothing. Selecting the rows that are inside would make the host wait for the device to count them.
    """
    place = columns - start
    return place.clamp(0, width - 1)[:, None], (place >= 0) & (place < width)
