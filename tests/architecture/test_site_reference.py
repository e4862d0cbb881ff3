"""The pages of the site's reference name what exists, so that a module that moves takes its entry along."""

import re
from importlib import import_module

import pytest

from tests.architecture.source_files import REPOSITORY

PAGES = sorted((REPOSITORY / "website" / "pages" / "reference").glob("*.md"))
NAMES = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_reference_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(module), attribute), f"{name}: mend its entry in website/pages/reference"


def test_a_name_stands_once() -> None:
    assert len(NAMES) > 60
    assert len(NAMES) == len(set(NAMES))
