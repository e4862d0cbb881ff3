"""Sizes and names: what keeps the house readable."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.source_files import REPOSITORY, all_sources, package_sources

LONGEST_FILE = 350
LONGEST_FUNCTION = 60
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "misc", "base", "common"}


def test_files_are_short() -> None:
    lengths = {source.name: len(source.text.splitlines()) for source in all_sources()}
    long = [f"{name}: {length} lines" for name, length in lengths.items() if length > LONGEST_FILE]
    assert not long, f"more than {LONGEST_FILE} lines; does the file hold two ideas?\n" + "\n".join(long)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring: a list of settings is long, not complicated."""
    first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
    return (node.end_lineno or first.lineno) - first.lineno + 1


def test_functions_are_short() -> None:
    long = [
        f"{source.name}:{node.lineno} {node.name}: {body_lines(node)} lines"
        for source in all_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > LONGEST_FUNCTION
    ]
    assert not long, f"more than {LONGEST_FUNCTION} lines\n" + "\n".join(long)


def test_modules_are_named_by_what_they_hold() -> None:
    assert not [source.name for source in package_sources() if Path(source.name).stem in EMPTY_NAMES]


def test_sources_are_ascii_and_open_with_what_they_are() -> None:
    for source in package_sources():
        assert source.text.isascii(), source.name
        assert not source.text.strip() or ast.get_docstring(source.tree), f"{source.name} has no docstring"


def test_test_folders_are_packages() -> None:
    """Otherwise two test files of the same name hide each other, and spawned processes cannot import their functions."""
    folders = {path.parent for path in (REPOSITORY / "tests").rglob("test_*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
