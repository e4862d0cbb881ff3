"""The project's own source files, parsed once for all architecture tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Source:
    """One file: ``name`` is its path from the repository root."""

    name: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """``losses`` for ``dpr/losses/nll.py``; empty for files directly in ``dpr/`` and for scripts."""
        parts = self.name.split("/")
        return parts[1] if parts[0] == "dpr" and len(parts) > 2 else ""

    def where(self, node: ast.stmt | ast.expr | ast.alias) -> str:
        """``file:line: the line``."""
        return f"{self.name}:{node.lineno}: {self.text.splitlines()[node.lineno - 1].strip()}"


def parse(name: str, text: str) -> Source:
    return Source(name, text, ast.parse(text, name))


def package_sources() -> list[Source]:
    """Everything under ``dpr/``."""
    return [_read(path) for path in sorted((REPOSITORY / "dpr").rglob("*.py"))]


def all_sources() -> list[Source]:
    """The package, the scripts beside it, the examples and the benchmarks; not the tests."""
    baseline_of = [path for name in ("benchmarks", "examples") for path in (REPOSITORY / name).rglob("*.py")]
    scripts = [_read(path) for path in sorted([*REPOSITORY.glob("*.py"), *baseline_of])]
    return package_sources() + scripts


@cache
def _read(path: Path) -> Source:
    return parse(path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8"))


def imports(source: Source, *, at_import_time_only: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    """Yields the absolute dotted names that the file imports (``a.b`` for ``from a import b``), with the statement."""
    nodes = _import_time_nodes(source.tree.body) if at_import_time_only else ast.walk(source.tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


def _import_time_nodes(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run when the module is imported."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from _import_time_nodes(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _import_time_nodes(handler.body)
