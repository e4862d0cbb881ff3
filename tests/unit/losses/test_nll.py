"""The loss by pencil and paper."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpr.core.records import WHOLE_DOCUMENT
from dpr.losses.candidates import MASKED_SCORE, find_candidates, score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import LossResult, Pool
from tests.helpers.pools import make_pool


def pool(
    scores: list[list[float]], ids: list[int], valid: list[bool] | None = None, positives: tuple[int, int] = (0, 2), **options: Any
) -> Pool:
    """Questions are to be unit vectors, so that context vectors are columns of the score matrix."""
    matrix = torch.tensor(scores, dtype=torch.float64)
    marks = torch.tensor(valid if valid is not None else [True] * len(ids))
    identities = torch.tensor([[number, 0] for number in ids])
    return make_pool(matrix.T, torch.tensor(positives), ids=identities, valid=marks, **options)


def loss_of(pool: Pool) -> LossResult:
    return BiEncoderNllLoss()(torch.eye(2, dtype=torch.float64), pool)


def nll(row: list[float], target: int) -> float:
    return math.log(sum(math.exp(score) for score in row)) - row[target]


def test_plain_softmax_over_all_contexts() -> None:
    for rule in ("distinct", "dpr"):
        result = loss_of(pool([[1, 2, 0], [0, 1, 3]], [1, 2, 3], rule=rule))
        assert float(result.loss) == pytest.approx(nll([1, 2, 0], 0) + nll([0, 1, 3], 2), abs=1e-12)
        assert int(result.num_correct) == 1


def test_invalid_slots_take_no_part() -> None:
    for rule in ("distinct", "dpr"):
        result = loss_of(pool([[1, 9, 0], [0, 9, 3]], [1, 0, 3], [True, False, True], rule=rule))
        assert float(result.loss) == pytest.approx(nll([1, 0], 0) + nll([0, 3], 1), abs=1e-12)


def test_a_passage_listed_twice_counts_once_or_by_slot() -> None:
    scores = [[1.0, 2, 1, 0], [0, 2, 0, 3]]
    distinct = loss_of(pool(scores, [7, 8, 7, 9], positives=(2, 3)))
    assert float(distinct.loss) == pytest.approx(nll([1, 2, 0], 0) + nll([0, 2, 3], 2), abs=1e-12)
    dpr = loss_of(pool(scores, [7, 8, 7, 9], positives=(2, 3), rule="dpr"))
    assert float(dpr.loss) == pytest.approx(nll([1, 2, 1, 0], 2) + nll([0, 2, 0, 3], 3), abs=1e-12)


def test_another_known_positive_is_masked_for_its_question_only() -> None:
    known = torch.tensor([[[1, 0], [2, 0], [99, 0]], [[3, 0], [0, 0], [0, 0]]])
    known_valid = torch.tensor([[True, True, True], [True, False, False]])
    result = loss_of(pool([[1, 2, 0], [0, 1, 3]], [1, 2, 3], known=(known, known_valid)))
    assert float(result.loss) == pytest.approx(nll([1, 0], 0) + nll([0, 1, 3], 2), abs=1e-12)
    assert int(result.num_correct) == 2
    unmasked = loss_of(pool([[1, 2, 0], [0, 1, 3]], [1, 2, 3], known=(known, known_valid), rule="dpr"))
    assert float(unmasked.loss) > float(result.loss)


def test_padding_of_the_known_table_never_masks_a_passage() -> None:
    """The filler (0, 0) may be some passage's identity only by chance; invalid entries must not count even then."""
    ids = torch.tensor([[0, 0], [1, 0]])
    known = torch.zeros(1, 3, 2, dtype=torch.int64)
    absent = torch.zeros(1, 3, dtype=torch.bool)
    candidates = find_candidates("distinct", torch.tensor([1]), torch.tensor([True, True]), ids, known, absent)
    assert not (candidates.mask_(torch.zeros(1, 2)) == MASKED_SCORE).any()


def test_no_passage_of_a_known_document_competes() -> None:
    """Passages of document 5 are in slots 0, 2 and 3; the third repeats the first. The second question knows one passage beside."""
    ids = torch.tensor([[5, 1], [6, 1], [5, 2], [5, 1], [7, 1]])
    known = torch.tensor([[[5, WHOLE_DOCUMENT], [0, 0]], [[7, 1], [6, WHOLE_DOCUMENT]]])
    valid = torch.tensor([[True, False], [True, True]])
    scores = torch.tensor([[3, 1, 2, 3, 5], [1, 4, 2, 3, 7]])
    candidates = find_candidates("distinct", torch.tensor([2, 1]), torch.ones(5, dtype=torch.bool), ids, known, valid)
    assert (candidates.mask_(scores.double()) == MASKED_SCORE).tolist() == [[True, False, False, True, False], [False] * 3 + [True] * 2]
    for seed in range(20):  # as comparing one by one
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 4, (9, 2), generator=generator)
        positives = torch.randperm(9, generator=generator)[:5]
        known = torch.stack([ids[positives, 0], torch.where(torch.arange(5) % 2 > 0, WHOLE_DOCUMENT, ids[positives, 1])], dim=1)[:, None]
        found = find_candidates("distinct", positives, torch.ones(9, dtype=torch.bool), ids, known, torch.ones(5, 1, dtype=torch.bool))
        left_out = found.mask_(torch.zeros(5, 9)) == MASKED_SCORE
        for row, positive in enumerate(positives.tolist()):
            for column in range(9):
                is_first = not any(torch.equal(ids[column], other) for other in ids[:column])
                is_target = torch.equal(ids[column], ids[positive]) and is_first
                is_known = bool(ids[column, 0] == ids[positive, 0]) if row % 2 else torch.equal(ids[column], ids[positive])
                assert bool(left_out[row, column]) == (not is_first or (is_known and not is_target)), (seed, row, column)


def test_masked_candidates_get_no_gradient() -> None:
    still = pool([[1, 2, 0], [0, 1, 3]], [1, 2, 3], [True, False, True])
    vectors = still.contexts.clone().requires_grad_()
    loss_of(replace(still, contexts=vectors)).loss.backward()
    assert vectors.grad is not None
    assert vectors.grad[1].abs().sum() == 0
    assert vectors.grad[0].abs().sum() > 0


def test_temperature_divides_scores_and_learns() -> None:
    log_temperature = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)
    result = loss_of(pool([[1, 2, 0], [0, 1, 3]], [1, 2, 3], temperature=log_temperature.exp()))
    assert float(result.loss.detach()) == pytest.approx(nll([2, 4, 0], 0) + nll([0, 2, 6], 2), abs=1e-12)
    result.loss.backward()
    assert log_temperature.grad is not None
    assert float(log_temperature.grad) != 0


def test_scores_are_single_precision_under_autocast() -> None:
    generator = torch.Generator().manual_seed(0)
    questions, contexts = torch.randn(3, 64, generator=generator), torch.randn(5, 64, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score_matrix(questions, contexts)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, questions @ contexts.T)
    assert score_matrix(questions.bfloat16(), contexts.bfloat16()).dtype == torch.float32
    assert score_matrix(questions.double(), contexts.double()).dtype == torch.float64


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'distinct' or 'dpr'"):
        BiEncoderNllLoss(candidates="some")
