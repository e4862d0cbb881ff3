"""What unit tests get besides the fixtures of all tests."""

import logging
from collections.abc import Iterator

import pytest

from dpr.core.logs import LOGGER_NAME, warn_once


@pytest.fixture(autouse=True)
def logging_of_a_library_user() -> Iterator[None]:
    """A command that ran in this process has sent the log to the standard error of its test, which is closed
    by now, and what it warned of once it would not warn of again."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    warn_once.cache_clear()
