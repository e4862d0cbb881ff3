"""Contexts that a question competes with, and its scores for them. docs/numerics.md, sections 1 and 3,
derives the rules.

Candidates follow from identities alone, which are known before anything is encoded. They are found on the
host, where sorting and counting wait for nothing. Only the finished columns are copied to the device.

Letters: B questions of this rank, M context slots of the global batch, K known
positives per question, D dimensions (G of the filter's vectors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dpr.core.batch import Temperature, on_device
from dpr.core.records import WHOLE_DOCUMENT

EVERYTHING = slice(None)
CANDIDATE_RULES = ("distinct", "dpr")
ONE = Temperature()

# Low enough to vanish in a softmax, high enough that fp32 arithmetic on it stays finite.
MASKED_SCORE = -1e30
_ODD = -7046029254386353131  # mixes two numbers into one of 64 bits; distinct first numbers stay distinct


class Candidates(NamedTuple):
    """Columns that the questions of this rank compete with.

    ``target`` (B,) is the column of each question's positive. ``counts`` (M,) bool marks the columns that
    count for any question. ``masked`` (B, K) lists the columns that do not count for one question, padded
    with M. ``first`` (M,) maps each column to the first column that holds the same passage.
    """

    target: Tensor
    counts: Tensor
    masked: Tensor
    first: Tensor

    def to(self, device: torch.device) -> Candidates:
        """Returns a copy on ``device``, made without waiting. A copy from memory that is not pinned would
        wait for all work under way."""
        return Candidates(*(on_device(part, device) for part in self))

    def mask_(self, scores: Tensor, rows: slice = EVERYTHING, columns: slice = EVERYTHING) -> Tensor:
        """Writes ``MASKED_SCORE``, in place, over the columns that do not count in the given part of the
        score matrix."""
        width = scores.shape[1]
        column = self.masked[rows] - (columns.start or 0)
        # A spare column for what lies outside of this part.
        excluded = torch.cat([~self.counts[columns], self.counts.new_zeros(1)]).repeat(len(scores), 1)
        excluded.scatter_(1, torch.where((column >= 0) & (column < width), column, width), True)
        return scores.masked_fill_(excluded[:, :width], MASKED_SCORE)

    def are_first(self, best: Tensor) -> Tensor:
        """Returns whether each target ranks first, (B,), where ``best`` (B,) is the column with the highest
        score.

        All columns of one passage stand for the first of them. Their scores differ by rounding alone, which
        depends on how the global batch is divided.
        """
        return self.first[best] == self.target

    def competing(self, rows: slice, columns: Tensor) -> Tensor:
        """Returns a mask (B', n) of the ``columns`` that compete with each question's positive. All
        ``columns`` must count."""
        result = columns[None, :] != self.target[rows, None]
        for number in range(self.masked.shape[1]):
            result &= columns[None, :] != self.masked[rows, number, None]
        return result


def find_candidates(
    rule: str,
    positive_idx: Tensor,
    valid: Tensor,
    ids: Tensor,
    known_positive_ids: Tensor,
    known_positive_valid: Tensor,
) -> Candidates:
    """Returns the candidates by ``rule``.

    * ``dpr``: every slot counts as often as it appears.
    * ``distinct``: each passage, identified by its id or its text, counts once, at its first slot. Positives
      are moved there. Other known positives of a question do not count against it. A known positive whose
      second number is ``WHOLE_DOCUMENT`` stands for every passage of its document; a question has at most
      one.

    ``positive_idx`` (B,) holds columns of the global batch. The others are ``valid`` (M,), ``ids`` (M, 2),
    ``known_positive_ids`` (B, K, 2) and ``known_positive_valid`` (B, K). All are on the host.
    """
    num_slots = len(ids)
    num_known = known_positive_ids.shape[1]
    column = torch.arange(num_slots, device=ids.device)
    by_name = [
        torch.unique(torch.cat([of_slots, of_known.flatten()]), return_inverse=True)[1]
        for of_slots, of_known in zip(names_of(ids), names_of(known_positive_ids), strict=True)
    ]

    # One id may have two texts, and one of these another id as well. All of these are one passage, so repeat
    # until nothing changes.
    first = column
    is_settled = False
    while not is_settled:
        found = []
        for name in by_name:
            lowest = torch.full_like(name, num_slots).scatter_reduce(
                0, name[:num_slots][valid], first[valid], reduce="amin"
            )
            found.append(lowest[name])
        joined = torch.minimum(found[0], found[1])[:num_slots]
        is_settled = torch.equal(joined[valid], first[valid])
        first = joined

    if rule == "dpr":
        return Candidates(positive_idx, valid, positive_idx.new_empty(len(positive_idx), 0), first)
    target = first[positive_idx]
    known = torch.cat([columns[num_slots:].reshape(known_positive_valid.shape) for columns in found], dim=1)
    known = torch.where(known_positive_valid.repeat(1, 2), known, num_slots)
    # A passage known by both its id and its text is masked once, since terms count the masked columns.
    ordered, order = known.sort(dim=1, stable=True)
    is_repeated = torch.zeros_like(known, dtype=torch.bool)
    is_repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    known = known.masked_fill(torch.zeros_like(is_repeated).scatter(1, order, is_repeated), num_slots)
    if (known[:, num_known:] == num_slots).all():
        known = known[:, :num_known]
    if (known_positive_ids[:, :, 1] == WHOLE_DOCUMENT).any():
        known = torch.cat([known, _slots_of_documents(ids, known_positive_ids)], dim=1)
    masked = torch.where(known != target[:, None], known, num_slots)
    return Candidates(target, valid & (first == column), masked, first)


def names_of(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the names by id and by text, (...) each, of identities (..., 2). Passages that share a name are
    the same passage. A cut, whose second number is not negative, shares no name: another cut of its document
    is another passage.
    """
    is_text = ids[..., 1] < 0
    by_id = ids[..., 0] * _ODD + torch.where(is_text, 0, ids[..., 1])
    return by_id, torch.where(is_text, ids[..., 1], by_id)


def _slots_of_documents(ids: Tensor, known_positive_ids: Tensor) -> Tensor:
    """Returns the slots (B, n) of the document that each question has as a known positive, padded with M."""
    is_whole = known_positive_ids[:, :, 1] == WHOLE_DOCUMENT
    documents = known_positive_ids[torch.arange(len(is_whole)), is_whole.int().argmax(1), 0]
    ordered, order = torch.sort(ids[:, 0], stable=True)
    first, last = (torch.searchsorted(ordered, documents, right=right) for right in (False, True))
    last = torch.where(is_whole.any(1), last, first)
    place = first[:, None] + torch.arange(int((last - first).max()))
    return torch.where(place < last[:, None], order[place.clamp(max=len(order) - 1)], len(ids))


@dataclass(frozen=True, slots=True)
class FalseNegativeFilter:
    """Vectors of length 1 from another model, for each question's positive (B, G) and for the columns (M, G).
    Passages without a vector have zeros.

    A passage whose cosine with a question's positive exceeds ``threshold`` is treated as an unlabelled
    positive.
    """

    positives: Tensor
    columns: Tensor
    threshold: float

    def mask_(
        self, scores: Tensor, target: Tensor, rows: slice = EVERYTHING, columns: slice = EVERYTHING
    ) -> Tensor:
        """Writes ``MASKED_SCORE``, in place, over the unlabelled positives in the given part of the score
        matrix. ``target`` (B,) is never masked."""
        suspects = self.positives[rows] @ self.columns[columns].T > self.threshold
        column, is_inside = columns_in(target[rows], columns.start or 0, scores.shape[1])
        suspects.scatter_(1, column, suspects.gather(1, column) & ~is_inside[:, None])
        return scores.masked_fill_(suspects, MASKED_SCORE)


def columns_in(columns: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Returns the places (B', 1) of ``columns`` (B',) in a block that begins at ``start``, and whether each
    is inside the block's ``width`` columns, (B',).

    The place of a column outside has no meaning. Selecting the rows that are inside would make the host wait
    for the device to count them.
    """
    place = columns - start
    return place.clamp(0, width - 1)[:, None], (place >= 0) & (place < width)


def score_matrix(questions: Tensor, contexts: Tensor, temperature: Temperature = ONE) -> Tensor:
    """Returns dot products divided by the temperature, (B, M). They are computed in fp32 at least, under any
    autocast."""
    with torch.autocast(questions.device.type, enabled=False):
        dtype = torch.promote_types(questions.dtype, torch.float32)
        return questions.to(dtype) @ contexts.to(dtype).T / temperature
