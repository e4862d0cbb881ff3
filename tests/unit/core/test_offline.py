"""Blocks without network access may overlap, in any threads, and leave the process as it was."""

import logging
import socket
import time
from contextlib import AbstractContextManager
from threading import Event, Thread
from typing import Any

import pytest
from huggingface_hub import constants

from dpr.core.errors import InputError
from dpr.core.machine import no_downloads
from dpr.data.tokenizer_files import load_tokenizer
from dpr.models import backbones


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def state() -> tuple[Any, ...]:
    from transformers.integrations import peft
    from transformers.models.auto import auto_factory
    from transformers.utils import logging as theirs

    switches = (peft.is_peft_available, auto_factory.is_peft_available)
    return constants.HF_HUB_OFFLINE, switches, theirs.get_verbosity(), theirs.is_progress_bar_enabled()


@pytest.mark.parametrize("block", [no_downloads, backbones._without_adapters, backbones.quiet_loading])
def test_overlapping_blocks_end_as_the_process_was(block: Any) -> None:
    """The first of two ends while the second is inside, which stays in effect there; then the second ends."""
    before = state()
    begun, first_ended = Event(), Event()
    inside = list[Any]()

    def second() -> None:
        with block():
            begun.set()
            first_ended.wait(10)
            inside.append(state())

    first: AbstractContextManager[None] = block()
    first.__enter__()
    changed = state()
    thread = Thread(target=second)
    thread.start()
    assert begun.wait(10)
    first.__exit__(None, None, None)
    first_ended.set()
    thread.join()
    assert repr(inside) == repr([changed]) != repr([before])
    assert state() == before


def test_an_exception_ends_a_block() -> None:
    with pytest.raises(ValueError, match="no"), no_downloads():
        raise ValueError("no")
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("load", [backbones.read_config, load_tokenizer])
def test_a_name_fails_without_a_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, load: Any
) -> None:
    asked = list[Any]()

    def refuse(*address: Any, **_: Any) -> Any:
        asked.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    begun = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(InputError, match="to a local model folder"):
        load("some/typed-name")
    assert len(asked) == 1
    assert time.monotonic() - begun < 5
    assert "Retry" not in caplog.text
