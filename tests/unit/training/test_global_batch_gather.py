"""The global batch is gathered beside the towers' work, in one order on all ranks, and then freed."""

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpr.core import distributed
from dpr.core.distributed import current_ranks, start_gather
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.training import grad_cache
from dpr.training.grad_cache import CachedStep
from dpr.training.step import DirectStep, Step
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import encoder_folder, tiny_model
from tests.helpers.training import batch_for

CPU = torch.device("cpu")
METADATA, VECTORS = torch.int64, torch.float64


class _Handle:
    """A collective's handle that notes when it is waited for."""

    def __init__(self, work: dist.Work, done: Callable[[], None]) -> None:
        self._work, self._done = work, done

    def wait(self) -> None:
        self._done()
        self._work.wait()


def note_collectives(events: list[str]) -> None:
    """From now on ``events`` gets "start NAME" and "wait NAME" of each gather of this process."""
    for name in ("_all_gather_single", "_reduce_scatter_single"):
        real = getattr(distributed, name)

        def noted(
            target: torch.Tensor, source: torch.Tensor, *, real: Any = real, name: str = name, **options: Any
        ) -> _Handle:
            tensor = "vectors" if "gather" in name else "gradient"
            label = "facts" if source.dtype == METADATA else tensor
            events.append(f"start {label}")
            return _Handle(real(target, source, **options), lambda: events.append(f"wait {label}"))

        setattr(distributed, name, noted)


def note_towers(model: BiEncoder, events: list[str]) -> None:
    """``events`` also gets each tower's forward, and its backward when the last of its gradients is there."""
    towers = {model.ctx_model: "ctx", model.question_model: "question"}  # one where they are shared
    for tower, name in towers.items():
        tower.register_forward_hook(lambda *_, name=name: events.append(f"{name} forward"))
        parameter = tower.backbone.get_input_embeddings().weight
        if parameter.requires_grad:
            parameter.register_hook(lambda _, name=name: events.append(f"{name} backward"))


def events_of_a_step(folder: Path, case: dict[str, Any]) -> list[str]:
    options = TowerOptions(**case.get("options", {}))
    model = tiny_model(folder, options=options, **case.get("settings", {})).train()
    events: list[str] = []
    note_towers(model, events)
    ranks = current_ranks()
    step: Step
    if cached := case.get("grad_cache_tokens"):
        grad_cache.MIN_CHUNK_TOKENS = 1
        step = CachedStep(model, BiEncoderNllLoss(), max_tokens=cached, ranks=ranks, device=CPU)
    else:
        step = DirectStep(DistributedDataParallel(model), BiEncoderNllLoss(), ranks=ranks, device=CPU)
    note_collectives(events)
    step(batch_for(model, 4), num_batches=1, is_last=True)
    return events


BEGIN = "start facts, ctx forward, start vectors, question forward, wait facts, wait vectors"
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "two towers": ({}, f"{BEGIN}, start gradient, question backward, wait gradient, ctx backward"),
    "frozen context tower": ({"options": {"fix_ctx_encoder": True}}, f"{BEGIN}, question backward"),
    "shared tower": (
        {"settings": {"shared": True}},
        "start facts, question forward, start vectors, wait facts, wait vectors, start gradient, wait gradient,"
        " question backward",
    ),
}


def events_of_every_case(folder: Path) -> dict[str, list[str]]:
    real = distributed._all_gather_single, distributed._reduce_scatter_single
    events = {}
    for name, case in [
        *((name, case) for name, (case, _) in CASES.items()),
        ("cached", {"grad_cache_tokens": 60}),
    ]:
        events[name] = events_of_a_step(folder, case)
        distributed._all_gather_single, distributed._reduce_scatter_single = real
    return events


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """What each of two ranks did, in order, by case."""
    return run_on_ranks(events_of_every_case, 2, encoder_folder(tmp_path_factory.mktemp("model") / "encoder"))


@pytest.mark.parametrize("name", CASES)
def test_collectives_run_beside_questions_in_one_order(events: list[dict[str, list[str]]], name: str) -> None:
    """Equal lists on both ranks keep them from waiting for each other."""
    assert events[0][name] == events[1][name] == CASES[name][1].split(", ")


def test_with_caching_vectors_travel_while_questions_are_encoded(events: list[dict[str, list[str]]]) -> None:
    for of_rank in events:
        seen = [event for event in of_rank["cached"] if event.startswith(("start", "wait"))]
        order = "start facts, start vectors, wait facts, wait vectors, start gradient, wait gradient"
        assert ", ".join(seen) == order
        moments = ("start facts", "start vectors", "wait vectors")
        first, before, after = (of_rank["cached"].index(event) for event in moments)
        assert set(of_rank["cached"][first + 1 : before]) == {"ctx forward"}
        assert "question forward" in of_rank["cached"][before:after]


def rows_left_after_a_step() -> int:
    """Tensors of ten steps that are still in memory, without the garbage collector."""
    gc.disable()
    references = []
    for _ in range(10):
        local = torch.randn(4, 8, requires_grad=True)
        pending = start_gather(local * 2)
        rows = pending()
        kept = rows.untyped_storage(), rows.grad_fn, pending.args[0]
        references += [weakref.ref(each) for each in kept]
        del kept
        rows.square().sum().backward()
        assert local.grad is not None and bool(local.grad.any())
        del rows, pending, local
    deadline = time.monotonic() + 10
    while (left := sum(reference() is not None for reference in references)) and time.monotonic() < deadline:
        time.sleep(0.01)  # gloo's threads release the tensors of a step a moment after it
    return left


def test_gathered_vectors_are_freed_with_their_step() -> None:
    assert run_on_ranks(rows_left_after_a_step, 2) == [0, 0]
