"""Distillation by pencil and paper, and the messages for scores that cannot be learned from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpr.core.errors import ConfigError
from dpr.losses.distillation import kl_divergence, margin_mse
from dpr.losses.nll import BiEncoderNllLoss
from dpr.losses.objective import Objective
from dpr.losses.settings import ObjectiveSettings
from dpr.training.loss import make_loss
from dpr.training.settings import LossSettings
from tests.helpers.global_batches import batch_of, make_global_batch

NAN = math.nan


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_of(teacher: torch.Tensor | None, **settings: Any) -> torch.Tensor:
    questions = torch.eye(2, dtype=torch.float64)
    contexts = torch.arange(12, dtype=torch.float64).view(6, 2) / 10
    return Objective(ObjectiveSettings(**settings))(
        questions,
        make_global_batch(contexts, torch.tensor([0, 3])),
        replace(batch_of(2, 3), teacher_scores=teacher),
    ).losses


def test_the_divergence_of_two_distributions() -> None:
    student, teacher = rows([0.0, math.log(3)]), rows([math.log(3), 0.0])
    expected = 0.75 * math.log(3) + 0.25 * math.log(1 / 3)
    assert float(kl_divergence(student, teacher, torch.ones(1, 2, dtype=torch.bool))) == pytest.approx(
        expected, abs=1e-15
    )


def test_slots_without_a_score_take_no_part_and_get_no_gradient() -> None:
    student, scored = (
        rows([0.0, 1.0, 50.0], [1.0, 2.0, 3.0]).requires_grad_(),
        torch.tensor([[True, True, False], [False] * 3]),
    )
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
    assert float(margin_mse(rows([1.0, 2.0, 3.0]), rows([NAN, 1.0, 2.0]), scored, torch.tensor([0]))) == 0


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
    global_batch = make_global_batch(
        torch.arange(12, dtype=torch.float64).view(6, 2) / 10, torch.tensor([0, 3])
    )
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
