"""Batches and errors pass between processes as they are."""

import pickle
from dataclasses import fields
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.errors import CheckpointError, DprError, InputError, OutputError, StageError, StopRequested


def make_batch(num_known: int = 2) -> BiEncoderBatch:
    return BiEncoderBatch(
        questions=TokenBatch.from_lists([[2, 5, 3], [2, 3]], [1, 0]),
        contexts=TokenBatch.from_lists([[2, 7, 70_000, 3]]),
        context_row=torch.tensor([0, 0, 0, 0]),
        context_valid=torch.tensor([True, False, True, True]),
        context_ids=torch.tensor([[-(2**63), 2**63 - 1]] * 4),
        positive_idx=torch.tensor([0, 2]),
        known_positive_ids=torch.arange(4 * num_known).reshape(2, num_known, 2),
        known_positive_valid=torch.ones(2, num_known, dtype=torch.bool),
        loss_weights=torch.tensor([0.5, 1 / 3], dtype=torch.float64),
        datasets=(3, 0),
        encoder_type="ctx",
        rows=(4, 9),
    )


def values(batch: Any) -> list[Any]:
    """Everything in it, to compare batches by; NaN is equal to NaN."""
    found: list[Any] = []
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, TokenBatch):
            value = values(value)
        elif isinstance(value, torch.Tensor):
            value = value.dtype, value.shape, value.nan_to_num(9.0).tolist()
        found.append(value)
    return found


@pytest.mark.parametrize("num_known", [0, 2])
def test_a_batch_comes_from_a_worker_as_it_was(num_known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        monkeypatch.setattr(torch.UntypedStorage, name, lambda *_: pytest.fail("memory is shared"))
    batch = make_batch(num_known)
    received = ForkingPickler.loads(ForkingPickler.dumps(batch))
    assert values(received) == values(batch)
    assert received.known_positive_ids.shape == (2, num_known, 2)
    received.questions.tokens[0] = 9  # what was received may be written to
    assert batch.questions.tokens[0] == 2


def test_joined_batches_are_the_sequences_of_one_after_the_others() -> None:
    given = ([[2, 5, 3], [2, 3]], [1, 0]), ([[9]], None), ([[4, 4]], [1])
    parts = [TokenBatch.from_lists(*each) for each in given]
    joined = TokenBatch.join(parts)
    assert (joined.tokens.tolist(), joined.lengths.tolist()) == ([2, 5, 3, 2, 3, 9, 4, 4], [3, 2, 1, 2])
    assert joined.position.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    "error",
    [
        InputError("x", file="a.json", line=3, expected="y", hint="z"),
        CheckpointError("x", file="a"),
        OutputError("a.json", "disk full", hint="make room"),
        StopRequested("SIGTERM", exit_code=143),
        StageError("b ended", exit_code=4),
    ],
)
def test_an_error_from_another_process_has_its_class_message_and_exit_code(error: DprError) -> None:
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert (str(received), received.exit_code) == (str(error), error.exit_code)
    assert vars(received) == vars(error)


def test_padding_is_the_given_token_wherever_there_is_no_other() -> None:
    ids, mask = TokenBatch.from_lists([[1, 2, 3], [4]]).padded(9)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9]] and mask.sum() == 4
