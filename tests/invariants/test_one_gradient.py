"""Promise 1: one global batch, one gradient, whatever the number of processes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpr.core.batch import BiEncoderBatch
from dpr.core.distributed import current_ranks
from dpr.data.collator import Collator
from dpr.data.iterators import MultiSetDataIterator, ShardedDataIterator
from dpr.data.loader import GlobalBatchDataset, data_row
from dpr.data.settings import DataSetSettings
from dpr.losses.candidates import score_matrix
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.protocol import GlobalBatch, Loss, LossResult, Term
from dpr.models.biencoder import TowerOptions
from dpr.training.make_loss import make_loss
from dpr.training.settings import LossSettings, TrainNode
from dpr.training.trainer import make_step
from tests.helpers.adapters import randomize_adapters
from tests.helpers.processes import run_on_ranks
from tests.helpers.reference import question_losses, sample_passages, slow_vectors
from tests.helpers.tiny import ListSource, encoder_folder, make_samples, tiny_model
from tests.helpers.training import assert_near, taken

GLOBAL_BATCH, NUM_HARD, NUM_OTHER, ACCUMULATION = 12, 2, 1, 2
# Sums of float64 in another order; the gradients themselves are of order 1.
TOLERANCE = 1e-10


class Symmetric(Loss):
    """Each question among the contexts, and its positive among the questions of all ranks, times ``share``."""

    needs = frozenset({"contexts", "questions"})

    def __init__(self, share: float = 1.0) -> None:
        self.share = share

    def __call__(
        self, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> LossResult:
        first = BiEncoderNllLoss()(questions, global_batch)
        scores = score_matrix(
            global_batch.contexts[global_batch.candidates.target],
            global_batch.questions,
            global_batch.temperature,
        )
        own = torch.arange(
            global_batch.own_questions.start, global_batch.own_questions.stop, device=questions.device
        )
        back = torch.nn.functional.cross_entropy(scores, own, reduction="none")
        return LossResult(first.losses + self.share * back, first.num_correct)


class Margin(Loss):
    """Every question by itself: nothing of other ranks is asked for."""

    needs = frozenset()

    def __call__(
        self, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> LossResult:
        assert global_batch.own_contexts == slice(0, len(global_batch.contexts)) and len(
            global_batch.contexts
        ) == len(questions) * (1 + NUM_HARD + NUM_OTHER)
        of_question = global_batch.contexts.view(len(questions), -1, global_batch.contexts.shape[1])
        scores = torch.einsum("bd,bnd->bn", questions, of_question) / global_batch.temperature
        losses = ((1 - scores + scores[:, :1]).relu() * global_batch.candidates.counts.view_as(scores)).sum(1)
        return LossResult(losses, (losses == 1).sum())


class Crowd(Term):
    """Of each question the mean squared logit of the passages that count, and of its own slots."""

    needs = frozenset({"contexts", "own_scores"})

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(
        self, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> torch.Tensor:
        assert global_batch.own_scores is not None
        scores = (
            score_matrix(questions, global_batch.contexts, global_batch.temperature)
            * global_batch.candidates.counts
        )
        own = (
            global_batch.own_scores
            / global_batch.temperature
            * batch.context_valid.view_as(global_batch.own_scores)
        )
        return self.scale * scores.square().sum(1) / global_batch.candidates.counts.sum() + own.square().mean(
            1
        )


def with_a_term() -> Loss:
    term = {"use": f"{__name__}:Crowd", "weight": 0.3, "scale": 2.0}
    return make_loss(LossSettings(symmetric_weight=0.5, terms=term), candidates="distinct")


def gradient_of_a_step(folder: Path, case: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Loss, number correct and gradient of one step of ACCUMULATION global batches, as every rank sees them."""
    ranks = current_ranks()
    options = TowerOptions(**case.get("options", {}))
    model = tiny_model(folder, options=options, **case.get("settings", {})).train()
    case.get("prepare", lambda model: None)(model)
    source = ListSource(make_samples(3 * GLOBAL_BATCH))
    iterator = ShardedDataIterator(
        len(source), global_batch_size=GLOBAL_BATCH, seed=5, rank=ranks.rank, world_size=ranks.world_size
    )
    collator = Collator(model.tensorizer, num_hard=NUM_HARD, num_other=NUM_OTHER, seed=5)
    set_options = DataSetSettings(
        encoder_type=case.get("encoder_type"), loss_scale=case.get("loss_scale", 1.0)
    )
    dataset = GlobalBatchDataset([(source, set_options)], MultiSetDataIterator([iterator], seed=5), collator)
    loss_function: Loss = BiEncoderNllLoss(
        candidates=case.get("candidates", "distinct"), max_scores=case.get("max_scores", 1 << 22)
    )
    if own := case.get("loss"):
        loss_function = own()
    compute = TrainNode(
        grad_cache_tokens=case.get("grad_cache_tokens", 0), sharding=case.get("sharding", "none")
    )
    step = make_step(model, loss_function, compute, ranks=ranks, device=torch.device("cpu"))
    return taken(step, model, [dataset[1, global_batch] for global_batch in range(ACCUMULATION)])


CASES: dict[str, dict[str, Any]] = {
    "distinct": {},
    "dpr": {"candidates": "dpr"},
    "shared tower, cosine, mean pooling": {
        "settings": {"shared": True, "normalize": True, "pooling": "mean"},
        "options": {"temperature": 0.05},
    },
    "learned temperature": {
        "options": {"learn_temperature": True, "temperature": 0.5},
        "settings": {"normalize": True},
    },
    "both sides through the question tower": {"encoder_type": "question"},
    "frozen context tower, projection": {
        "options": {"fix_ctx_encoder": True},
        "settings": {"projection_dim": 6},
    },
    "loss scale": {"loss_scale": 0.25},
    "learned weights of tokens": {"settings": {"shared": True, "pooling": "idf"}},
    "a loss of all questions too": {"loss": Symmetric, "options": {"learn_temperature": True}},
    "a loss of each question by itself": {"loss": Margin},
    "a user's term": {"loss": with_a_term, "options": {"learn_temperature": True}},
    "two adapters over one backbone": {
        "settings": {"adapter": "lora", "lora_rank": 4, "projection_dim": 6},
        "prepare": randomize_adapters,
    },
}


# Gradient caching computes the same, in chunks of a few sequences (40), of one sequence (1), partly kept
# (150).
CACHED = (
    "dpr",
    "learned temperature",
    "both sides through the question tower",
    "frozen context tower, projection",
    "a user's term",
    "two adapters over one backbone",
)
CASES |= {
    f"{name}, 40 tokens cached": {**CASES[name], "grad_cache_tokens": 40, "max_scores": 50} for name in CACHED
}
CASES |= {f"distinct, {tokens} tokens cached": {"grad_cache_tokens": tokens} for tokens in (1, 150)}


def every_case(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, torch.Tensor]]:
    return {name: gradient_of_a_step(folder, case) for name, case in cases.items()}


@pytest.fixture(scope="module")
def by_world_size(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, list[dict[str, dict[str, torch.Tensor]]]]:
    """For 1 and 3 processes: what each rank computed in every case."""
    folder = encoder_folder(tmp_path_factory.mktemp("model") / "encoder")
    return {world_size: run_on_ranks(every_case, world_size, folder, CASES) for world_size in (1, 3)}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_do_not_depend_on_the_number_of_processes(
    by_world_size: dict[int, Any], name: str
) -> None:
    alone = by_world_size[1][0][name]
    norms = [float(tensor.norm()) for key, tensor in alone.items() if key not in ("loss", "correct")]
    assert len(norms) > 10 and max(norms) > 1e-4, "a zero gradient would be equal everywhere"
    for rank, results in enumerate(by_world_size[3]):
        assert_near(results[name], alone, TOLERANCE, f"on rank {rank} of 3")


@pytest.mark.parametrize("name", [name for name in CASES if "cached" in name])
def test_a_cached_gradient_is_the_direct_one(by_world_size: dict[int, Any], name: str) -> None:
    direct = by_world_size[1][0][name.rsplit(", ", 1)[0]]
    for world_size in (1, 3):
        for results in by_world_size[world_size]:
            assert_near(results[name], direct, TOLERANCE, f"of {world_size} ranks")


@pytest.mark.parametrize(("candidates", "shared"), [("distinct", False), ("dpr", True)])
def test_loss_and_gradient_equal_the_slow_truth(tmp_path: Path, candidates: str, shared: bool) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    fast = gradient_of_a_step(folder, {"candidates": candidates, "settings": {"shared": shared}})
    model = tiny_model(folder, shared=shared)
    source = ListSource(make_samples(3 * GLOBAL_BATCH))
    order = MultiSetDataIterator(
        [ShardedDataIterator(len(source), global_batch_size=GLOBAL_BATCH, seed=5)], seed=5
    )
    collator = Collator(model.tensorizer, num_hard=NUM_HARD, num_other=NUM_OTHER, seed=5)
    total = torch.zeros((), dtype=torch.float64)
    for number in range(ACCUMULATION):
        rows = [int(row) for row in order.global_batch(1, number).rows]
        selected = [collator.select(data_row(source, row, DataSetSettings(), pass_number=1)) for row in rows]
        chosen = [[each.positive, *each.other_negatives, *each.hard_negatives] for each in selected]
        found = slow_vectors(model, [source[row] for row in rows], chosen, 24)
        known = [source.known_positives(row) for row in rows]
        losses = question_losses(*found, known, distinct=candidates == "distinct")
        total = total + losses.mean() / ACCUMULATION
    total.backward()
    torch.testing.assert_close(fast["loss"], total.detach(), rtol=0, atol=TOLERANCE)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(fast[name], parameter.grad, rtol=0, atol=TOLERANCE, msg=name)


def test_the_two_candidate_rules_differ_on_this_data(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    losses = [float(gradient_of_a_step(folder, {"candidates": kind})["loss"]) for kind in ("distinct", "dpr")]
    assert abs(losses[0] - losses[1]) > 1e-3, (
        "the data must hold duplicates and known positives, or the tests above prove little"
    )


def test_file_order_selection_matches_the_plain_rule() -> None:
    collator = Collator(None, num_hard=2, num_other=1)  # type: ignore[arg-type]
    for sample in make_samples(50):
        chosen = collator.select(data_row(ListSource([sample]), 0, DataSetSettings()))
        expected = sample_passages(sample, 2, 1)
        assert [chosen.positive, *chosen.other_negatives, *chosen.hard_negatives] == expected
