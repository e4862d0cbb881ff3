"""Reading models without network access."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_downloads() -> Iterator[None]:
    """A block in which Hugging Face's libraries read only local files, as with ``HF_HUB_OFFLINE=1``.

    Used for names and folders that come from a file: only what a person typed may be looked up on the network.
    """
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
