"""Texts of several packs are embedded by threads of one core each, with the vectors of one thread."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.core.batch import TokenBatch
from dpr.models.biencoder import BiEncoder
from dpr.models.towers import in_streams
from tests.helpers.tiny import tiny_model

PARTS = [np.array([number]) for number in range(20)]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model(tmp_path: Path) -> BiEncoder:
    return tiny_model(tmp_path / "encoder", dtype=torch.float32, shared=True, pooling="mean")


def test_the_vectors_are_those_of_one_thread(model: BiEncoder) -> None:
    tokens = TokenBatch.from_lists([[2, *([5, 7] * length), 3] for length in range(1, 30)])
    seen: list[tuple[int, int]] = []

    def note(sequences: int, found: int) -> None:
        seen.append((sequences, found))

    several = model.encode_batch(tokens, encoder_type="ctx", batch_tokens=64, on_batch=note)
    assert len(seen) > 10
    assert sum(sequences for sequences, _ in seen) == len(tokens)
    torch.set_num_threads(1)
    one = model.encode_batch(tokens, encoder_type="ctx", batch_tokens=64)
    assert torch.equal(several, one)
    assert not several.requires_grad


def test_half_precision_reaches_every_thread(model: BiEncoder) -> None:
    tokens = TokenBatch.from_lists([[2, *([5] * length), 3] for length in range(1, 20)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model.encode_batch(tokens, encoder_type="ctx", batch_tokens=32)
    full = model.encode_batch(tokens, encoder_type="ctx", batch_tokens=32)
    difference = (half - full).abs().amax(1)
    assert (difference > 0).all()  # no text was computed in fp32
    assert difference.max() < 0.1


def test_every_part_is_done_once_on_threads_with_one_core() -> None:
    done: list[int] = []
    cores: set[int] = set()
    threads: set[int] = set()
    meet = threading.Barrier(2, timeout=20)

    def work(part: np.ndarray) -> None:
        if part[0] < 2:
            meet.wait()  # passes only if two threads work at once
        assert not torch.is_grad_enabled()
        done.append(int(part[0]))
        cores.add(torch.get_num_threads())
        threads.add(threading.get_ident())

    in_streams(work, PARTS)
    assert sorted(done) == list(range(20))
    assert cores == {1}
    assert len(threads) == 2 and threading.get_ident() not in threads
    assert torch.get_num_threads() == 2
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]


def test_an_error_ends_the_work() -> None:
    begun: list[int] = []

    def work(part: np.ndarray) -> None:
        begun.append(int(part[0]))
        if part[0] == 1:
            raise RuntimeError("not enough memory")

    with pytest.raises(RuntimeError, match="not enough memory"):
        in_streams(work, [np.array([1])] * 2 + PARTS)
    assert torch.get_num_threads() == 2
