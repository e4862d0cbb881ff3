"""The loss in blocks of any size equals the loss, in value, number correct and gradients."""

import pytest
import torch

from dpr.losses.nll import BiEncoderNllLoss
from tests.helpers.global_batches import make_global_batch

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


def test_the_rules_differ_here() -> None:
    assert float(results("dpr", 9)[0].detach()) > float(results("distinct", 9)[0].detach()) + 1


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
