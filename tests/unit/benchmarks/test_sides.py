"""What the benchmarks compare does the same work: equal losses, step after step."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import attention, large_batch, measuring, sides
from benchmarks.workload import Texts, write_encoder
from tests.helpers.varlen import on_any_device

CPU, BATCH, LENGTH, ROUNDS = torch.device("cpu"), 4, 32, 3
needs_rival = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)


def texts() -> Texts:
    """Two batches; lengths differ, and no two passages are the same."""
    passages = [
        f"the passage number {number} tells of " + "things " * (number % 5) for number in range(4 * BATCH)
    ]
    return Texts([f"what is number {number}" for number in range(4 * BATCH)], passages, "made up")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_encoder(tmp_path / "encoder", texts(), layers=2, width=64)
    return tmp_path / "encoder"


def our_losses(folder: Path, *, grad_cache_tokens: int = 0) -> list[list[float]]:
    model = sides.our_model(folder, dropout=0.0, length=LENGTH)
    train = sides.our_training(
        model, sides.our_batches(model, texts(), batch=BATCH), CPU, grad_cache_tokens=grad_cache_tokens
    )
    return [train() for _ in range(ROUNDS)]


def assert_same(ours: list[list[float]], theirs: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)
    assert max(ours[0]) > 0.1
    assert ours[0] != ours[-1], "nothing was learned, so equal updates are not shown"


@needs_rival
@pytest.mark.parametrize("mini_batch_size", [0, 3])
def test_sentence_transformers_has_our_losses_and_updates(folder: Path, mini_batch_size: int) -> None:
    shape = {"batch": BATCH, "length": LENGTH, "dropout": 0.0}
    train = sides.st_training(folder, texts(), CPU, **shape, mini_batch_size=mini_batch_size)
    assert_same(
        our_losses(folder, grad_cache_tokens=64 if mini_batch_size else 0), [train() for _ in range(ROUNDS)]
    )


@pytest.mark.parametrize("pad_to", [0, LENGTH])
def test_plain_loop_has_our_losses_and_updates(folder: Path, pad_to: int) -> None:
    model = sides.our_model(folder, dropout=0.0, length=LENGTH)
    train = sides.plain_training(
        folder, sides.our_batches(model, texts(), batch=BATCH), CPU, dropout=0.0, pad_to=pad_to
    )
    assert_same(our_losses(folder), [train() for _ in range(ROUNDS)])


def test_micro_batches_sorted_by_length_have_our_losses_and_updates(folder: Path) -> None:
    model = sides.our_model(folder, dropout=0.0, length=LENGTH)
    shape = {"dropout": 0.0, "attention_dropout": 0.0, "micro_batch_tokens": 40}
    train = sides.sorted_training(folder, sides.our_batches(model, texts(), batch=BATCH), CPU, **shape)
    assert_same(our_losses(folder), [train() for _ in range(ROUNDS)])


def test_attention_on_a_gpu_is_measured_where_there_is_one_and_said_not_to_be_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "Not measured: the kernel is for CUDA, not for cpu" in attention.section(1, CPU).measured
    for name, value in {
        "LAYERS": 1,
        "WIDTH": 64,
        "BATCH": 2,
        "BATCHES": 1,
        "MICRO_BATCH_TOKENS": 300,
    }.items():
        monkeypatch.setattr(attention, name, value)
    # which takes longer than all else
    monkeypatch.setattr(measuring, "matrix_peak", lambda *arguments, **options: 1e12)
    with on_any_device(monkeypatch) as calls:
        section = attention.section(1, CPU)
    assert calls and not section.measured
    assert [ratio.what.split(", ")[-1] for ratio in section.ratios] == [
        "training",
        "training",
        "encoding",
        "encoding",
    ]


def test_a_step_on_a_made_up_pool_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large_batch.one_step(str(folder), size=4, max_tokens=40)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < found["loss"] < 100 and found["seconds"] > 0
