"""Names: what keeps the house readable."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.source_files import REPOSITORY, package_sources

EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "misc", "base", "common"}


def test_modules_are_named_by_what_they_hold() -> None:
    assert not [source.name for source in package_sources() if Path(source.name).stem in EMPTY_NAMES]


def test_sources_are_ascii_and_open_with_what_they_are() -> None:
    for source in package_sources():
        assert source.text.isascii(), source.name
        assert not source.text.strip() or ast.get_docstring(source.tree), f"{source.name} has no docstring"


def test_test_folders_are_packages() -> None:
    """Otherwise test files of the same name hide each other, and processes cannot import their functions."""
    folders = {path.parent for path in (REPOSITORY / "tests").rglob("test_*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
