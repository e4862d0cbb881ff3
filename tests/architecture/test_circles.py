"""No module needs another that needs it, imports for type checkers and inside functions included."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source_files import Source, imports, package_sources, parse


def module_name(source: Source) -> str:
    """``dpr.losses.nll`` for ``dpr/losses/nll.py``, ``dpr.losses`` for its ``__init__``."""
    return source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Returns the modules that each module names."""
    by_name = {module_name(source): source for source in sources}
    graph: dict[str, set[str]] = {}
    for name, source in by_name.items():
        found = {
            imported if imported in by_name else imported.rpartition(".")[0]
            for imported, _ in imports(source)
        }
        graph[name] = (found & by_name.keys()) - {name}
    return graph


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(import_graph(package_sources())).prepare()


@pytest.mark.parametrize(
    "back",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpr.a import A",
        "def f():\n    import dpr.a",
        "from dpr import a, d",
        "import dpr.a.nothing, torch",
    ],
)
def test_circles_of_every_kind_are_found(back: str) -> None:
    texts = {"dpr/a.py": "import dpr.b", "dpr/b.py": back, "dpr/d.py": "from dpr.a import A"}
    with pytest.raises(CycleError, match=r"dpr\.a"):
        TopologicalSorter(import_graph(parse(*item) for item in texts.items())).prepare()
