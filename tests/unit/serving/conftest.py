"""A run folder of a small corpus, searched both ways."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.browser import Browser, chromium
from tests.unit.retrieval.conftest import World, searchable, world

__all__ = ["world"]


@pytest.fixture(scope="session")
def run_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid of equal shares."""
    return searchable(world, tmp_path_factory.mktemp("served") / "run", weight=0.5)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def empty_page(browser: Browser) -> Browser:
    """A page as wide as a desk's, that has asked for nothing yet."""
    browser.size(1200)
    browser.open("about:blank")
    browser.requested.clear()
    browser.problems.clear()
    return browser
