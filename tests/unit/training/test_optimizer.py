"""Schedules on paper, parameter groups, tables that learn by rows, and updates that are skipped."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpr.core.errors import CheckpointError, ConfigError, DivergedError
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training import optimizer as rows_module
from dpr.training.compute import clip_gradients, row_tables
from dpr.training.optimizer import (
    OptimizerSettings,
    RowAdamW,
    learning_rate_factor,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)
from dpr.training.stopping import FiniteCheck
from tests.helpers.tiny import tiny_model


@pytest.mark.parametrize(
    ("kind", "warmup", "expected"),
    [
        ("linear", 2, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", 2, [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ("constant", 4, [0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ("dpr", 2, [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 1e-7]),
    ],
)
def test_schedules(kind: str, warmup: int, expected: list[float]) -> None:
    found = [learning_rate_factor(kind, step, total_steps=6, warmup_steps=warmup) for step in range(7)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert learning_rate_factor(kind, 60, total_steps=6, warmup_steps=warmup) == pytest.approx(expected[-1])


def by_name(model: BiEncoder, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    named = {name: groups.get(id(parameter)) for name, parameter in model.named_parameters()}
    return {name: (group["weight_decay"], group["lr"]) for name, group in named.items() if group is not None}


def test_biases_and_norms_do_not_decay_and_embeddings_learn_faster(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, options=TowerOptions(learn_temperature=True))
    settings = OptimizerSettings(learning_rate=1.0, weight_decay=0.1, embedding_lr_factor=5)
    optimizer = make_optimizer(model, settings)
    set_learning_rate(optimizer, 2.0)
    groups = by_name(model, optimizer)
    assert groups["question_model.backbone.embeddings.word_embeddings.weight"] == (0.1, 10.0)
    assert groups["question_model.backbone.embeddings.position_embeddings.weight"] == (0.1, 2.0)
    assert groups["ctx_model.backbone.encoder.layer.0.output.dense.weight"] == (0.1, 2.0)
    assert groups["ctx_model.backbone.encoder.layer.0.output.dense.bias"] == (0.0, 2.0)
    assert groups["ctx_model.backbone.encoder.layer.0.output.LayerNorm.weight"] == (0.0, 2.0)
    assert groups["log_temperature"] == (0.0, 2.0)
    assert len(groups) == len(list(model.named_parameters()))


def test_a_frozen_tower_is_not_in_the_optimizer(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, options=TowerOptions(fix_ctx_encoder=True))
    trained = by_name(model, make_optimizer(model, OptimizerSettings()))
    assert not any(name.startswith("ctx_model.") for name in trained)


def test_state_that_lacks_a_parameter_is_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    optimizer = make_optimizer(model, OptimizerSettings())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    stored = optimizer_tensors(model, optimizer)
    restore_optimizer(model, optimizer, stored)
    lacking = {name: tensor for name, tensor in stored.items() if "layer.0" not in name}
    with pytest.raises(CheckpointError, match="starts with fresh optimizer state"):
        restore_optimizer(model, optimizer, lacking)


@pytest.mark.parametrize("epsilon", [0.0, 1e-50])  # float32 takes the second for 0
def test_an_epsilon_that_makes_nan_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"adam_eps=.* is out of range; it must be at least 1e-30"):
        OptimizerSettings(adam_eps=epsilon).check()


def test_the_least_epsilon_leaves_a_weight_without_gradient_finite(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, dtype=torch.float32)
    optimizer = make_optimizer(model, OptimizerSettings(adam_eps=1e-30))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def test_means_leave_out_an_update_that_is_skipped() -> None:
    values = [torch.nn.Parameter(torch.ones(5, 3, dtype=torch.float64)) for _ in range(2)]
    optimizer = RowAdamW([{"params": values}], decay=0.5, lr=0.1, fused=True)
    rows = torch.tensor([[1, 3]])
    seen = []
    for number, skips in enumerate((1, 0, 0, 1, 0)):
        gradient = torch.full((2, 3), float("nan") if skips else 1.0 + number, dtype=torch.float64)
        values[0].grad = torch.sparse_coo_tensor(rows, gradient, (5, 3), check_invariants=False).coalesce()
        values[1].grad = values[0].grad.to_dense()
        optimizer.found_inf = torch.tensor(float(skips))  # type: ignore[attr-defined]
        optimizer.step()
        seen += [] if skips else [[value.detach().clone() for value in values]]
    for first, second, third, value in zip(*seen, values, strict=True):
        mean = (first + 2 * second + 4 * third) / 7
        torch.testing.assert_close(optimizer.state[value]["twin"], mean, rtol=1e-12, atol=0)
    with optimizer.averaged():
        assert not torch.equal(values[0], seen[2][0])
    assert torch.equal(values[0], seen[2][0])


NAN_AT = (3, 5, 6)


@pytest.mark.parametrize("reads_later", [False, True])
def test_a_skipped_update_is_reported_with_its_own_step(
    reads_later: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = FiniteCheck(torch.device("cpu"), most_in_row=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    if reads_later:  # as on CUDA, where the host reads the counts of the update before
        event: Any = SimpleNamespace(synchronize=lambda: None, record=lambda stream: None)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        guard._arrived = event

    def run() -> None:
        for step in range(1, 9):
            guard.check(optimizer, torch.tensor(float("nan") if step in NAN_AT else 1.0))
            assert bool(optimizer.found_inf) == (step in NAN_AT)  # type: ignore[attr-defined]
            guard.stop_if_hopeless(step)

    with pytest.raises(DivergedError, match="in 2 updates in a row, the last at step 6"):
        run()
    assert guard.num_skipped == 3
    assert [int(text.split()[1].rstrip(":")) for text in caplog.messages] == list(NAN_AT)


@pytest.mark.parametrize("has_loss_scale", [False, True])
def test_a_finite_gradient_whose_norm_is_infinite_changes_no_weight(has_loss_scale: bool) -> None:
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weights], lr=0.1, fused=True)
    guard = FiniteCheck(torch.device("cpu"), has_loss_scale=has_loss_scale)
    scaler = torch.amp.GradScaler("cpu", enabled=has_loss_scale)
    moved = []
    for size in (1.0, 3e38, 1.0):
        before = weights.detach().clone()
        weights.grad = torch.full((3,), size)
        scaler.scale(torch.ones(()))  # a scaler begins with its first loss
        if has_loss_scale:
            weights.grad = weights.grad * scaler.get_scale()
            weights.grad = weights.grad.clamp(max=3e38)
        scaler.unscale_(optimizer)
        norm = torch.tensor(torch.inf)
        if size == 1.0:
            norm = torch.nn.utils.clip_grad_norm_([weights], float("inf"))
        guard.check(optimizer, norm)
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(weights, before))
    assert moved == [True, False, True]
    assert bool(torch.isfinite(weights).all())


ROWS, WIDTH, STEPS = 700, 3, 6
SETTINGS: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}


def by_rows(rows: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(rows[None], values, (ROWS, WIDTH), check_invariants=False).coalesce()


def gradients() -> list[tuple[Tensor, Tensor]]:
    """Rows and their gradients in each step; row 0 is read for nothing in every one."""
    generator = torch.Generator().manual_seed(0)
    steps = []
    for _ in range(STEPS):
        rows = torch.cat([torch.tensor([0]), 1 + torch.randperm(ROWS - 1, generator=generator)[:400]])
        values = torch.randn(len(rows), WIDTH, generator=generator, dtype=torch.float64)
        values[0], values[1, 0] = 0, 0  # of a row that is read, the first number may be 0, too
        steps.append((rows, values))
    return steps


def start() -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(autouse=True)
def in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_NUMBERS_AT_ONCE", 100 * WIDTH)


def test_each_row_has_an_adamw_of_its_own() -> None:
    table, alone = nn.Parameter(start()), [nn.Parameter(row) for row in start()]
    optimizer = RowAdamW([{"params": [table]}], fused=True, **SETTINGS)
    of_rows = [torch.optim.AdamW([row], **SETTINGS) for row in alone]
    for rows, values in gradients():
        table.grad = by_rows(rows, values)
        optimizer.step()
        for row, gradient in zip(rows.tolist(), values, strict=True):
            if row:
                alone[row].grad = gradient
                of_rows[row].step()
    torch.testing.assert_close(table.detach(), torch.stack([one.data for one in alone]), rtol=0, atol=1e-12)
    assert torch.equal(table[0], start()[0]), "a row that is read for nothing stays"


def test_other_parameters_are_updated_as_ever() -> None:
    results = []
    for kind in (RowAdamW, torch.optim.AdamW):
        weight, table = nn.Parameter(start()), nn.Parameter(start())
        optimizer = kind([weight, table] if kind is RowAdamW else [weight], fused=True, **SETTINGS)
        for rows, values in gradients():
            weight.grad = by_rows(rows, values).to_dense()
            table.grad = by_rows(rows, values)
            optimizer.step()
        results.append(weight.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("limit", [0.1, 1e6, float("inf")])
def test_clipping_is_that_of_the_whole_gradient(limit: float) -> None:
    weights = [nn.Parameter(start()), nn.Parameter(start()), nn.Parameter(start())]
    (rows, values), (other_rows, others), *_ = gradients()
    weights[0].grad, weights[1].grad = by_rows(rows, values), by_rows(other_rows, others).to_dense()
    plain = [nn.Parameter(start()), nn.Parameter(start())]
    plain[0].grad, plain[1].grad = by_rows(rows, values).to_dense(), by_rows(other_rows, others).to_dense()
    norm, expected = clip_gradients(weights, limit), torch.nn.utils.clip_grad_norm_(plain, limit)
    torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
    for weight, other in zip(weights, plain, strict=False):
        assert weight.grad is not None and other.grad is not None
        torch.testing.assert_close(weight.grad.to_dense(), other.grad, rtol=1e-12, atol=0)


def test_a_shared_table_is_listed_once_and_a_frozen_one_not() -> None:
    table, frozen = nn.Embedding(4, 2, sparse=True), nn.Embedding(4, 2, sparse=True)
    frozen.requires_grad_(False)
    model = nn.ModuleList([table, nn.ModuleList([table]), frozen, nn.Embedding(4, 2)])
    assert [id(found) for found in row_tables(model)] == [id(table.weight)]
