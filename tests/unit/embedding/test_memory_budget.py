"""Running out of memory costs a warning and smaller batches, not the run."""

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.embedding.encode import TokenBudget, encode_tokens, encode_within_memory
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from tests.helpers.tiny import tiny_model

CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    " allocate 9 bytes."
)
CUDA = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")


def limit_memory(monkeypatch: Any, most: int, error: Exception = CPU) -> list[int]:
    """Towers fail over more than ``most`` padded tokens; returns the sizes they are asked for."""
    asked: list[int] = []
    real = Encoder.forward

    def limited(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        asked.append(batch.padded_size)
        if batch.padded_size > most:
            raise error
        return real(self, batch)

    monkeypatch.setattr(Encoder, "forward", limited)
    return asked


def batch(*lengths: int) -> TokenBatch:
    rng = random.Random(0)
    return TokenBatch.from_lists([[rng.randint(11, 90) for _ in range(length)] for length in lengths])


@pytest.fixture
def model(tmp_path: Path) -> BiEncoder:
    torch.set_num_threads(1)
    return tiny_model(tmp_path / "encoder", dtype=torch.float32)


@pytest.mark.parametrize("error", [CPU, CUDA], ids=["cpu", "cuda"])
def test_the_budget_is_halved_until_it_fits_and_stays(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    tokens, budget = batch(*[16] * 64, *[5] * 40), TokenBudget(8192)
    expected = encode_tokens(model, tokens, batch_tokens=208)
    asked = limit_memory(monkeypatch, 300, error)
    with caplog.at_level(logging.WARNING, "dpr"):
        found = encode_within_memory(model, tokens, budget)
        assert budget.tokens == 208, "half of the 104 x 16 tokens that were tried, three times"
        trials = [size for size in asked if size > 300]
        assert len(trials) == 3, "halving begins at what was tried, not at a budget that nothing filled"
        encode_within_memory(model, tokens, budget)
    assert [size for size in asked if size > 300] == trials, "tried again with what had failed"
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 8192 tokens per forward pass; continuing with 208. Set batch_tokens=208 to start"
        " there"
    ]
    np.testing.assert_array_equal(found, expected)


def test_one_sequence_that_does_not_fit_is_an_error_with_its_length(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 20)
    with pytest.raises(
        InputError,
        match=r"one sequence of 24 tokens does not fit into the memory of device cpu; .*precision=bf16",
    ):
        encode_within_memory(model, batch(24, 5, 5, 5), TokenBudget(4096))


def test_other_errors_of_the_model_stay_as_they_are(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 1, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        encode_within_memory(model, batch(24, 5), TokenBudget(4096))
