"""Errors pass between processes as they are."""

import pickle

import pytest

from dpr.core.errors import CheckpointError, DprError, InputError, OutputError, StageError, StopRequested


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
