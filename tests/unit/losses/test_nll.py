"""The loss by pencil and paper, and in blocks of any size."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.records import WHOLE_DOCUMENT, Passage
from dpr.data.collator import passage_identity
from dpr.losses.candidates import MASKED_SCORE, find_candidates, score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.objective import Objective
from dpr.losses.protocol import GlobalBatch, LossResult, own_scores
from dpr.losses.settings import ObjectiveSettings
from tests.helpers.global_batches import make_global_batch


def global_batch(
    scores: list[list[float]],
    ids: list[int],
    valid: list[bool] | None = None,
    positives: tuple[int, int] = (0, 2),
    **options: Any,
) -> GlobalBatch:
    """Questions are to be unit vectors, so that context vectors are columns of the score matrix."""
    matrix = torch.tensor(scores, dtype=torch.float64)
    marks = torch.tensor(valid if valid is not None else [True] * len(ids))
    identities = torch.tensor([[number, 0] for number in ids])
    return make_global_batch(matrix.T, torch.tensor(positives), ids=identities, valid=marks, **options)


def loss_of(global_batch: GlobalBatch) -> LossResult:
    return BiEncoderNllLoss()(torch.eye(2, dtype=torch.float64), global_batch)


def nll(row: list[float], target: int) -> float:
    return math.log(sum(math.exp(score) for score in row)) - row[target]


def test_plain_softmax_over_all_contexts() -> None:
    for rule in ("distinct", "dpr"):
        result = loss_of(global_batch([[1, 2, 0], [0, 1, 3]], [1, 2, 3], rule=rule))
        assert float(result.loss) == pytest.approx(nll([1, 2, 0], 0) + nll([0, 1, 3], 2), abs=1e-12)
        assert int(result.num_correct) == 1


def test_invalid_slots_take_no_part() -> None:
    for rule in ("distinct", "dpr"):
        result = loss_of(global_batch([[1, 9, 0], [0, 9, 3]], [1, 0, 3], [True, False, True], rule=rule))
        assert float(result.loss) == pytest.approx(nll([1, 0], 0) + nll([0, 3], 1), abs=1e-12)


def test_a_passage_listed_twice_counts_once_or_by_slot() -> None:
    scores = [[1.0, 2, 1, 0], [0, 2, 0, 3]]
    distinct = loss_of(global_batch(scores, [7, 8, 7, 9], positives=(2, 3)))
    assert float(distinct.loss) == pytest.approx(nll([1, 2, 0], 0) + nll([0, 2, 3], 2), abs=1e-12)
    dpr = loss_of(global_batch(scores, [7, 8, 7, 9], positives=(2, 3), rule="dpr"))
    assert float(dpr.loss) == pytest.approx(nll([1, 2, 1, 0], 2) + nll([0, 2, 0, 3], 3), abs=1e-12)


def test_another_known_positive_is_masked_for_its_question_only() -> None:
    known = torch.tensor([[[1, 0], [2, 0], [99, 0]], [[3, 0], [0, 0], [0, 0]]])
    known_valid = torch.tensor([[True, True, True], [True, False, False]])
    result = loss_of(global_batch([[1, 2, 0], [0, 1, 3]], [1, 2, 3], known=(known, known_valid)))
    assert float(result.loss) == pytest.approx(nll([1, 0], 0) + nll([0, 1, 3], 2), abs=1e-12)
    assert int(result.num_correct) == 2
    plain = loss_of(global_batch([[1, 2, 0], [0, 1, 3]], [1, 2, 3], known=(known, known_valid), rule="dpr"))
    assert float(plain.loss) > float(result.loss)


def test_padding_of_the_known_table_never_masks_a_passage() -> None:
    """The filler (0, 0) may be a passage's identity by chance."""
    ids = torch.tensor([[0, 0], [1, 0]])
    known = torch.zeros(1, 3, 2, dtype=torch.int64)
    absent = torch.zeros(1, 3, dtype=torch.bool)
    facts = torch.tensor([1]), torch.tensor([True, True])
    candidates = find_candidates("distinct", *facts, ids, known, absent)
    assert not (candidates.mask_(torch.zeros(1, 2)) == MASKED_SCORE).any()


def test_no_passage_of_a_known_document_competes() -> None:
    for seed in range(20):  # as comparing one by one
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 4, (9, 2), generator=generator)
        positives = torch.randperm(9, generator=generator)[:5]
        whole = torch.where(torch.arange(5) % 2 > 0, WHOLE_DOCUMENT, ids[positives, 1])
        known = torch.stack([ids[positives, 0], whole], dim=1)[:, None]
        valid = torch.ones(9, dtype=torch.bool), torch.ones(5, 1, dtype=torch.bool)
        found = find_candidates("distinct", positives, valid[0], ids, known, valid[1])
        left_out = found.mask_(torch.zeros(5, 9)) == MASKED_SCORE
        for row, positive in enumerate(positives.tolist()):
            for column in range(9):
                is_first = not any(torch.equal(ids[column], other) for other in ids[:column])
                is_target = torch.equal(ids[column], ids[positive]) and is_first
                is_known = torch.equal(ids[column], ids[positive])
                if row % 2:
                    is_known = bool(ids[column, 0] == ids[positive, 0])
                assert bool(left_out[row, column]) == (not is_first or (is_known and not is_target))


def passages_of(slots: list[tuple[str | None, str]]) -> list[int]:
    """The first slot of each slot's passage: slots are joined by ids and by texts."""
    first = list(range(len(slots)))
    for _ in slots:
        for slot, (key, text) in enumerate(slots):
            same = [other for other, its in enumerate(slots) if is_same((key, text), its)]
            first[slot] = min(first[other] for other in same)
    return first


@pytest.mark.parametrize("seed", range(3))
def test_equal_texts_under_different_ids_are_one_passage_on_every_rank(seed: int) -> None:
    rng = random.Random(seed)

    def drawn() -> tuple[str | None, str]:
        return rng.choice([None, *"abcdefgh"]), rng.choice("stuvwxyz")

    def identities(listed: list[tuple[str | None, str]]) -> torch.Tensor:
        return torch.tensor([passage_identity(Passage(text, id=key), "set") for key, text in listed])

    slots = [drawn() for _ in range(12)]
    known = [[slots[3 * question], *(drawn() for _ in range(rng.randint(0, 2)))] for question in range(4)]
    ids, valid = identities(slots), torch.ones(12, dtype=torch.bool)
    first = passages_of(slots)
    for question, listed in enumerate(
        known
    ):  # as a rank that has no other question, so that it sees no other known positive
        one = identities(listed)[None], torch.ones(1, len(listed), dtype=torch.bool)
        found = find_candidates("distinct", torch.tensor([3 * question]), valid, ids, *one)
        masked = [first[slot] for slot, its in enumerate(slots) if any(is_same(its, one) for one in listed)]
        expected = [
            first[slot] == slot and (slot not in masked or slot == first[3 * question]) for slot in range(12)
        ]
        assert found.target.tolist() == [first[3 * question]]
        assert (found.mask_(torch.zeros(1, 12)) != MASKED_SCORE).tolist() == [expected]
        columns = [column for column in found.masked[0].tolist() if column < 12]
        assert len(set(columns)) == len(columns), "masked twice, it would be a positive twice"


def is_same(one: tuple[str | None, str], other: tuple[str | None, str]) -> bool:
    return one[1] == other[1] or (one[0] is not None and one[0] == other[0])


@pytest.mark.parametrize("settings", [{}, {"symmetric_weight": 1.0, "nll_weight": 0.0}])
def test_ids_make_no_difference_where_texts_are_equal(settings: dict[str, Any]) -> None:
    """Each of two texts is the positive of two questions and a hard negative of another."""
    rows = [("ba", "x", "y"), ("be", "x", "z"), ("bi", "y", "x"), ("bo", "y", "y")]
    found = []
    for has_ids in (True, False):
        numbers = iter("abcdefgh" if has_ids else [None] * 8)
        passages = [Passage(text, id=next(numbers)) for row in rows for text in row[1:]]
        ids = torch.tensor([passage_identity(passage, "set") for passage in passages])
        known, valid = ids[::2][:, None], torch.ones(4, 1, dtype=torch.bool)
        token, positives = TokenBatch.from_lists([[1]]), torch.arange(0, 8, 2)
        listed = torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.bool)
        weights = torch.ones(4, dtype=torch.float64)
        batch = BiEncoderBatch(
            TokenBatch.from_lists([[1]] * 4), token, *listed, ids, positives, known, valid, weights
        )
        generator = torch.Generator().manual_seed(0)
        questions, vectors = torch.randn(4, 5, generator=generator), torch.randn(3, 5, generator=generator)
        slots = vectors[["xyz".index(passage.text) for passage in passages]]
        global_batch = make_global_batch(slots, positives, ids=ids, known=(known, valid))
        sent = torch.cat([known, torch.ones(4, 1, 1, dtype=torch.int64)], dim=2)
        global_batch = replace(global_batch, questions=questions, known_positives=sent)
        global_batch = replace(global_batch, own_scores=own_scores(questions, global_batch))
        found.append(Objective(ObjectiveSettings(**settings))(questions, global_batch, batch).loss)
    assert torch.equal(*found)


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


NUM_QUESTIONS, NUM_CONTEXTS, WIDTH = 11, 29, 5


def results(candidates: str, max_scores: int) -> list[torch.Tensor]:
    """Loss, number correct, and the gradients of questions, contexts and temperature."""
    generator = torch.Generator().manual_seed(3)

    def identities(most: int, *shape: int) -> torch.Tensor:
        first = torch.randint(0, most, shape, generator=generator)
        return torch.stack([first, torch.zeros_like(first)], dim=-1)

    questions, vectors = (
        torch.randn(size, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
        for size in (NUM_QUESTIONS, NUM_CONTEXTS)
    )
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    ids = identities(20, NUM_CONTEXTS)
    positive_idx = torch.randperm(NUM_CONTEXTS, generator=generator)[:NUM_QUESTIONS]
    valid = torch.rand(NUM_CONTEXTS, generator=generator) < 0.8
    valid[positive_idx] = True
    known = torch.cat([ids[positive_idx][:, None], identities(25, NUM_QUESTIONS, 3)], dim=1)
    known_valid = torch.rand(NUM_QUESTIONS, 4, generator=generator) < 0.7
    facts = {"ids": ids, "valid": valid, "known": (known, known_valid), "temperature": temperature}
    global_batch = make_global_batch(vectors, positive_idx, rule=candidates, **facts)
    result = BiEncoderNllLoss(max_scores=max_scores)(questions, global_batch)
    gradients = torch.autograd.grad(0.37 * result.loss, (questions, vectors, temperature))
    return [result.loss, result.num_correct, *gradients]


@pytest.mark.parametrize("candidates", ["distinct", "dpr"])
@pytest.mark.parametrize("max_scores", [1, 7, NUM_QUESTIONS * NUM_CONTEXTS - 1])
def test_blocks_of_any_size_give_the_loss_and_its_gradients(candidates: str, max_scores: int) -> None:
    whole = results(candidates, NUM_QUESTIONS * NUM_CONTEXTS)
    for part, expected in zip(results(candidates, max_scores), whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-11, atol=1e-12)
    assert 0 < int(whole[1]) < NUM_QUESTIONS


def test_the_first_of_equal_scores_is_the_answer_in_blocks_too() -> None:
    questions, vectors = torch.ones(2, 1), torch.ones(4, 1)
    for max_scores in (1, 3, 100):
        global_batch = make_global_batch(vectors, torch.tensor([0, 2]), rule="dpr")
        assert int(BiEncoderNllLoss(max_scores=max_scores)(questions, global_batch).num_correct) == 1


@pytest.mark.parametrize("max_scores", [50, 1 << 20])
def test_of_slots_with_one_passage_the_first_is_the_answer_despite_rounding(max_scores: int) -> None:
    """The original's rule, enumerated: the first of the highest scores, which are equal for equal vectors."""
    torch.manual_seed(0)
    num_first = 0
    for _ in range(40):
        ids = torch.randint(0, 25, (37,))
        vectors, target = torch.randn(25, 33)[ids], torch.randint(0, 37, (12,))
        questions = vectors[target] + 0.3 * torch.randn(12, 33)
        found = BiEncoderNllLoss(max_scores=max_scores)(
            questions, make_global_batch(vectors, target, rule="dpr", ids=torch.stack([ids, ids], dim=1))
        )
        for question, column, correct in zip(questions, target.tolist(), found.correct.tolist(), strict=True):
            scores = [float((question * vector).sum()) for vector in vectors]
            assert correct == (scores.index(max(scores)) == column)
            num_first += correct
    assert 0 < num_first < 480
