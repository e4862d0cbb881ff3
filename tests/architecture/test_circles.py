"""No module needs another that needs it: circles over all imports, those for type checkers and those inside
functions included."""

from __future__ import annotations

from collections.abc import Iterable

from tests.architecture.source_files import Source, imports, package_sources, parse


def module_name(source: Source) -> str:
    """``dpr.losses.nll`` for ``dpr/losses/nll.py``, ``dpr.losses`` for its ``__init__``."""
    return source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """For every module those that it names. ``from a import b`` is of ``a.b`` where that is a module, else of
    ``a``."""
    by_name = {module_name(source): source for source in sources}
    graph: dict[str, set[str]] = {}
    for name, source in by_name.items():
        found = {
            imported if imported in by_name else imported.rpartition(".")[0]
            for imported, _ in imports(source)
        }
        graph[name] = (found & by_name.keys()) - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that can all reach each other (Tarjan's strongly connected components), without those
    of one."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circles(import_graph(package_sources()))
    assert not found, "\n" + "\n".join(" <-> ".join(group) for group in found)


def test_circles_of_every_kind_are_found() -> None:
    sources = [
        parse("dpr/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpr.b import B"),
        parse("dpr/b.py", "def f():\n    import dpr.c"),
        parse("dpr/c.py", "from dpr import a, d"),
        parse("dpr/d.py", "import dpr.c.nothing, torch"),
        parse("dpr/e.py", "from dpr.a import A"),
    ]
    assert circles(import_graph(sources)) == [["dpr.a", "dpr.b", "dpr.c", "dpr.d"]]
