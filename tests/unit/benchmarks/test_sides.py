"""What the benchmarks compare does the same work: equal losses, step after step."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import large_batch, sides
from benchmarks.workload import Texts, write_encoder

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


def test_a_step_on_a_made_up_pool_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large_batch.one_step(str(folder), size=4, max_tokens=40)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < found["loss"] < 100 and found["seconds"] > 0
