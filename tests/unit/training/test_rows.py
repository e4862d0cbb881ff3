"""Tables that learn by rows have AdamW's update row by row, and are clipped by the whole gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpr.training import optimizer as rows_module
from dpr.training.compute import clip_gradients, row_tables
from dpr.training.optimizer import RowAdamW

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
    torch.testing.assert_close(
        table.detach(), torch.stack([row.detach() for row in alone]), rtol=0, atol=1e-12
    )
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
