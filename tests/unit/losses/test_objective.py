"""What an objective holds in memory, what a guide looks up, and which settings do not fit together."""

from __future__ import annotations

import doctest
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
from dpr.losses.filtered_nll import Nll
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


def test_a_guide_finds_vectors_by_passage_id_and_namespace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for shard, rows in enumerate((range(3), range(3, 5))):
        writer = VectorShardWriter(
            tmp_path / f"guide_{shard}",
            metadata={"shard_id": shard, "num_shards": 2, "model_fingerprint": "m"},
            dimension=3,
        )
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
        term(
            torch.randn(2, 4),
            make_global_batch(torch.randn(4, 4), batch.positive_idx, ids=batch.context_ids),
            batch,
        )
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
    global_batch = replace(
        make_global_batch(vectors, batch.positive_idx, ids=batch.context_ids),
        questions=questions,
        known_positives=known,
    )
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
        (
            [f"{HERE}:Greedy"],
            "needs everything; only contexts, known_positives, own_scores, questions are gathered",
        ),
        ([{"use": f"{HERE}:Short", "force": 1}], "arguments given: force"),
        (
            [f"{HERE}:Scalar"],
            r"the term Scalar returned losses of shape \(\); expected one loss per question, \(4,\)",
        ),
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
