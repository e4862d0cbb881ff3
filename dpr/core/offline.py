"""Reading models without asking the network for anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_downloads() -> Iterator[None]:
    """Within, Hugging Face's libraries read what is on this machine and request nothing, as with ``HF_HUB_OFFLINE=1``.

    For names and folders that a file mentions: only what a person typed may be looked up on the network.
    """
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
