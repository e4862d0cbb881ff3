"""What an objective holds in memory, what a guide looks up, and which settings do not fit together."""

import doctest
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpr.core.batch import BiEncoderBatch
from dpr.core.errors import ConfigError
from dpr.core.records import Passage
from dpr.data.collator import passage_identity
from dpr.formats.vector_shards import VectorShardWriter
from dpr.losses.distillation import kl_divergence, margin_mse
from dpr.losses.filtered_nll import Nll
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.objective import Objective
from dpr.losses.protocol import GlobalBatch, Term
from dpr.losses.settings import ObjectiveSettings
from dpr.training.make_loss import make_loss
from dpr.training.settings import LossSettings
from dpr.training.teacher import read_vectors
from tests.helpers.global_batches import batch_of, make_global_batch
from tests.helpers.tiny import tiny_model


@pytest.mark.parametrize(
    "settings", [{}, {"symmetric_weight": 1.0, "kl_weight": 1.0}, {"dimensions": [4, 2]}], ids=str
)
def test_a_large_global_batch_takes_little_memory(settings: dict[str, Any]) -> None:
    """1,024 x 2,048 and 1,024 x 1,024 scores; nothing that operations return is larger than a block."""
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            sizes.extend(part.numel() for part in tree_leaves(result) if isinstance(part, torch.Tensor))
            return result

    batch = batch_of(1024, 2)
    questions, vectors = torch.randn(1024, 4, requires_grad=True), torch.randn(2048, 4, requires_grad=True)
    global_batch = make_global_batch(vectors, batch.positive_idx, ids=batch.context_ids)
    known = torch.cat([batch.known_positive_ids, torch.ones(1024, 1, 1, dtype=torch.int64)], dim=2)
    global_batch = replace(global_batch, questions=questions, known_positives=known)
    with Sizes():
        Objective(ObjectiveSettings(**settings))(questions, global_batch, batch).loss.backward()
    assert 1 << 17 < max(sizes) <= (1 << 18) + 1024


def test_a_guide_finds_vectors_by_id_and_namespace(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for shard, rows in enumerate((range(3), range(3, 5))):
        metadata = {"shard_id": shard, "num_shards": 2, "model_fingerprint": "m"}
        writer = VectorShardWriter(tmp_path / f"guide_{shard}", metadata=metadata, dimension=3)
        writer.write_chunk(0, [f"p{row}" for row in rows], vectors[rows.start : rows.stop])
        writer.finish(1)
    files, namespaces = [str(tmp_path / "guide_*")], ["one", "other"]
    loss = make_loss(LossSettings(guide=files), candidates="distinct", namespaces=namespaces)
    guide = read_vectors(files, namespaces, setting="loss.guide")
    assert loss.content() == {"guide": guide.fingerprint}
    asked = [("other", "p4"), ("one", "p0"), ("third", "p0"), ("one", "p9"), ("one", "p2")]
    ids = torch.tensor([passage_identity(Passage("any text", id=key), namespace) for namespace, key in asked])
    is_found, found = guide.find(ids)
    assert is_found.tolist() == [True, True, False, False, True]
    assert not found[2:4].any(), "an id of another namespace, and one that the shards do not have"
    np.testing.assert_array_equal(found[[0, 1, 4]], vectors[[4, 0, 2]])
    batch = batch_of(2, 2)
    term = Nll(false_negatives=guide, threshold=0.9, max_scores=100)
    for _ in range(2):
        vectors = torch.randn(4, 4)
        global_batch = make_global_batch(vectors, batch.positive_idx, ids=batch.context_ids)
        term(torch.randn(2, 4), global_batch, batch)
    assert caplog.text.count("no passage of this batch has a vector in loss.guide") == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimensions": [8, 8]}, "names a number twice"),
        ({"dimensions": []}, "is empty"),
        ({"teacher": "x", "dimensions": [8]}, r"loss\.teacher=x and loss\.dimensions=\[8\] are mutually"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossSettings(**settings).check_together("loss.")


def squares(questions: torch.Tensor) -> torch.Tensor:
    return questions.square().sum(1)


class Short(Term):
    """Pulls question vectors towards zero."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def __call__(
        self, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> torch.Tensor:
        return squares(questions) ** self.power


class Scalar(Short):
    def __call__(
        self, questions: torch.Tensor, global_batch: GlobalBatch, batch: BiEncoderBatch
    ) -> torch.Tensor:
        return questions.sum()


class Greedy(Short):
    needs = frozenset({"everything"})


HERE = __name__


def losses_of(terms: Any = None, **settings: Any) -> torch.Tensor:
    """The losses of four questions with two slots each, in float64."""
    chosen = LossSettings(terms=terms, **settings)
    chosen.check("loss.")
    loss = make_loss(chosen, candidates="distinct")
    batch = replace(batch_of(4, 2), teacher_scores=torch.arange(8.0))
    generator = torch.Generator().manual_seed(3)
    questions, vectors = (torch.randn(size, 3, dtype=torch.float64, generator=generator) for size in (4, 8))
    known = torch.cat([batch.known_positive_ids, torch.ones(4, 1, 1, dtype=torch.int64)], dim=2)
    global_batch = make_global_batch(vectors, batch.positive_idx, ids=batch.context_ids)
    global_batch = replace(global_batch, questions=questions, known_positives=known)
    losses: torch.Tensor = loss(questions, global_batch, batch).losses
    return losses


def test_a_term_of_the_user_is_added_with_its_weight() -> None:
    generator = torch.Generator().manual_seed(3)
    expected = squares(torch.randn(4, 3, dtype=torch.float64, generator=generator)) ** 2
    term = {"use": f"{HERE}:Short", "weight": 0.25, "power": 2}
    torch.testing.assert_close(losses_of(term, nll_weight=0.0), 0.25 * expected, rtol=1e-14, atol=0)
    both = losses_of([term])
    torch.testing.assert_close(both, losses_of() + 0.25 * expected, rtol=1e-14, atol=0)


def test_a_loss_is_a_term_too() -> None:
    twice = losses_of("dpr.losses.nll:BiEncoderNllLoss")
    torch.testing.assert_close(twice, 2 * losses_of(), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (["kl"], "loss.terms=kl is not a user-defined term, module:Class; its weight is loss.kl_weight"),
        ([{"use": "a:B", "weight": 0}], "loss.terms=a:B: weight=0 is out of range; it must be above 0"),
        ([{"weight": 1}], "has no import path"),
        ([f"{HERE}:ObjectiveSettings"], "is not a subclass of dpr.losses.protocol.Term"),
        ([f"{HERE}:Greedy"], "needs everything; only contexts, known_positives, .* are gathered"),
        ([{"use": f"{HERE}:Short", "force": 1}], "arguments given: force"),
        ([f"{HERE}:Scalar"], r"Scalar returned losses of shape \(\); expected .*, \(4,\)"),
    ],
)
def test_what_is_no_term_is_refused(terms: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses_of(terms)


def test_more_dimensions_than_the_model_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss\.dimensions names 17, but .* have 16"):
        make_loss(LossSettings(dimensions=[8, 17]), candidates="distinct", model=tiny_model(tmp_path))


def test_what_is_gathered_follows_from_the_terms() -> None:
    def needs(**settings: Any) -> set[str]:
        return set(Objective(ObjectiveSettings(**settings)).needs)

    assert needs() == {"contexts"}
    assert needs(nll_weight=0.0, kl_weight=1.0) == set()
    assert needs(nll_weight=0.0, symmetric_weight=1.0) == {"questions", "known_positives"}


@pytest.mark.parametrize("name", ["distillation", "filtered_nll", "nll", "objective", "symmetric"])
def test_examples_of_losses_are_true(name: str) -> None:
    found = doctest.testmod(import_module(f"dpr.losses.{name}"))
    assert found.attempted and not found.failed


NAN = math.nan


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(teacher: torch.Tensor | None, **settings: Any) -> torch.Tensor:
    questions = torch.eye(2, dtype=torch.float64)
    contexts = torch.arange(12, dtype=torch.float64).view(6, 2) / 10
    global_batch = make_global_batch(contexts, torch.tensor([0, 3]))
    batch = replace(batch_of(2, 3), teacher_scores=teacher)
    return Objective(ObjectiveSettings(**settings))(questions, global_batch, batch).losses


def test_the_divergence_of_two_distributions() -> None:
    student, teacher = rows([0.0, math.log(3)]), rows([math.log(3), 0.0])
    expected = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)
    assert float(kl_divergence(student, teacher, torch.ones(1, 2, dtype=torch.bool))) == pytest.approx(
        expected, abs=1e-15
    )


def test_slots_without_a_score_take_no_part_and_get_no_gradient() -> None:
    student = rows([0.0, 1.0, 50.0], [1.0, 2.0, 3.0]).requires_grad_()
    scored = torch.tensor([[True, True, False], [False] * 3])
    teacher = rows([1.0, 0.0, NAN], [NAN, NAN, NAN])
    for losses in (
        kl_divergence(student, teacher, scored),
        margin_mse(student, teacher, scored, torch.tensor([0, 1])),
    ):
        assert losses[0] > 0.4 and losses[1] == 0
        (gradient,) = torch.autograd.grad(losses.sum(), student)
        assert gradient.isfinite().all() and not gradient[0, 2] and not gradient[1].any() and gradient[0, 0]
    assert float(margin_mse(student.detach(), teacher, scored, torch.tensor([0, 1]))[0]) == pytest.approx(4.0)


def test_margins_count_only_where_the_positive_has_a_score() -> None:
    scored = torch.tensor([[False, True, True]])
    assert float(margin_mse(rows([1.0, 2.0, 3.0]), rows([NAN, 1.0, 5.0]), scored, torch.tensor([0]))) == 0


def test_batches_without_scores_have_a_loss_of_zero() -> None:
    assert not loss_of(None, nll_weight=0.0, kl_weight=1.0).any()


def test_a_teacher_that_is_too_sure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    teacher = torch.tensor([0.0, 300, 10, NAN, 5, 6])
    loss_of(teacher, kl_weight=1.0, teacher_temperature=4.0)
    assert not caplog.text
    loss_of(teacher, kl_weight=1.0)
    assert "differ by 300" in caplog.text and "set loss.teacher_temperature to about 30" in caplog.text


def test_a_weight_of_the_term_multiplies_it_and_padding_has_no_score() -> None:
    teacher = torch.tensor([1.0, 2, 3, 4, 5, 6])
    alone = loss_of(teacher, nll_weight=0.0, kl_weight=1.0)
    torch.testing.assert_close(loss_of(teacher, kl_weight=3.0), loss_of(None) + 3 * alone)
    valid = torch.tensor([True, True, False, True, True, True])
    padded = replace(batch_of(2, 3), teacher_scores=teacher, context_valid=valid)
    global_batch = make_global_batch(torch.arange(12).double().view(6, 2) / 10, torch.tensor([0, 3]))
    objective = Objective(ObjectiveSettings(nll_weight=0.0, kl_weight=1.0))
    without = objective(torch.eye(2, dtype=torch.float64), global_batch, padded).losses
    torch.testing.assert_close(
        without, loss_of(torch.tensor([1.0, 2, NAN, 4, 5, 6]), nll_weight=0.0, kl_weight=1.0)
    )


def test_settings_make_the_objective_and_the_default_stays_the_nll() -> None:
    assert type(make_loss(LossSettings(), candidates="dpr")) is BiEncoderNllLoss
    made = make_loss(LossSettings(kl_weight=1.0, nll_weight=0.0), candidates="dpr")
    assert isinstance(made, Objective) and made.candidates == "dpr" and made.needs == frozenset()
    with pytest.raises(ConfigError, match=r"loss\.kl_weight=1\.0 and a user-defined loss\.name"):
        LossSettings(name="a:B", kl_weight=1.0).check_together("loss.")
    with pytest.raises(ConfigError, match="every term of the objective has weight 0"):
        LossSettings(nll_weight=0.0).check_together("loss.")
