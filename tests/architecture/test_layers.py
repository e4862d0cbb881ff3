"""Imports go down only, in no circle, and modules are named by what they hold; a failing test names the line."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dpr.cli.main import COMMANDS
from tests.architecture.source_files import REPOSITORY, Source, imports, package_sources, parse
from tests.helpers.patience import patient

_ROOMS_BY_LAYER = (
    "core",
    "storage",
    "formats",
    "data",
    "models losses",
    "embedding indexer evaluation",
    "training retrieval preparation mining export",
    "serving integrations adaptation",
    "jobs __init__",
    "cli",
    "__main__",
)
LAYERS = {room: layer for layer, rooms in enumerate(_ROOMS_BY_LAYER) for room in rooms.split()}

# Third-party packages that only some rooms may import; packages not named here: see ANYWHERE.
ROOMS = {
    "transformers": ("dpr/models/", "dpr/data/tokenizer_files.py", "dpr/preparation/", "dpr/export/"),
    "tokenizers": ("dpr/data/tensorizer.py", "dpr/preparation/", "dpr/export/root_static_embedding.py"),
    "sentence_transformers": ("dpr/export/root_static_embedding.py",),
    "huggingface_hub": ("dpr/models/", "dpr/core/machine.py", "dpr/export/"),
    "pooch": ("dpr/formats/",),
    "requests": ("dpr/formats/",),
    "safetensors": ("dpr/storage/", "dpr/formats/", "dpr/models/"),
    "datasets": ("dpr/formats/",),
    "pyarrow": ("dpr/formats/", "dpr/export/lancedb.py"),
    "yaml": ("dpr/formats/",),
    "filelock": ("dpr/formats/", "dpr/storage/"),
    "faiss": ("dpr/indexer/",),
    "bm25s": ("dpr/indexer/",),
    "pytrec_eval": ("dpr/evaluation/",),
    "scipy": ("dpr/evaluation/",),
    "jinja2": ("dpr/evaluation/",),
    "matplotlib": ("dpr/evaluation/",),
    "regex": ("dpr/evaluation/", "dpr/data/", "dpr/indexer/"),
    "fastapi": ("dpr/serving/",),
    "starlette": ("dpr/serving/",),
    "pydantic": ("dpr/serving/",),
    "uvicorn": ("dpr/serving/",),
    "prometheus_client": ("dpr/serving/",),
    "hydra": ("dpr/cli/",),
    "omegaconf": ("dpr/cli/",),
}
ANYWHERE = {"torch", "numpy", "tqdm"}
HEAVY = {*"torch transformers tokenizers datasets pyarrow pandas faiss bm25s pytrec_eval scipy".split()}


ROOTS = {command.settings.partition(":")[0] for command in COMMANDS.values()}
"""The modules that hold the root of a command's settings."""


def _holds_settings(source: Source) -> bool:
    return source.name.endswith(("/settings.py", "_settings.py")) and source.room != "core"


def _is_root(source: Source) -> bool:
    return source.name.removesuffix(".py").replace("/", ".") in ROOTS


def _is_light(name: str) -> bool:
    """True if a module of settings may import it."""
    light = "errors compute_settings other_names setting settings".split()
    is_light = name.startswith(tuple(f"dpr.core.{each}" for each in light))
    return is_light or "".join(name.split(".")[2:3]).endswith("settings")


def layer_faults(source: Source) -> list[str]:
    """Imports that go up, sideways, or from settings to anything but errors and settings."""
    own = LAYERS.get(source.room or Path(source.name).stem)
    faults = []
    for name, node in imports(source):
        parts = name.split(".")
        if parts[0] != "dpr" or own is None or len(parts) < 2:
            continue
        other = parts[1]
        is_down = other == source.room or LAYERS.get(other, 99) < own
        if _holds_settings(source) and not _is_light(name):
            is_down = False
        if not is_down:
            faults.append(f"{source.where(node)}   ({source.room or 'the front'} may not import {other})")
    return faults


def room_faults(source: Source) -> list[str]:
    """Third-party imports outside their rooms, or of packages that the project does not depend on."""
    faults = []
    for name, node in imports(source):
        package = name.split(".")[0]
        if package in sys.stdlib_module_names or package in ANYWHERE or package in ("dpr", "__future__"):
            continue
        if package not in ROOMS:
            faults.append(
                f"{source.where(node)}   ({package} is not a dependency; optional packages go through"
                " dpr.core.machine)"
            )
        elif not source.name.startswith(ROOMS[package]):
            faults.append(f"{source.where(node)}   ({package} belongs in {', '.join(ROOMS[package])})")
    return faults


def early_faults(source: Source) -> list[str]:
    """Heavy packages imported before a configuration mistake could be reported."""
    if source.room != "cli" and not _holds_settings(source) and not _is_root(source):
        return []
    light = ("dpr.cli.", *(f"dpr.core.{name}" for name in "cores logs machine settings version".split()))
    return [
        source.where(node)
        for name, node in imports(source, at_import_time_only=True)
        if name.split(".")[0] in HEAVY | {"hydra", "omegaconf"}
        or (name.startswith("dpr.") and not name.startswith((*light, *ROOTS)) and not _is_light(name))
    ]


@pytest.mark.parametrize("rule", [layer_faults, room_faults, early_faults])
def test_every_import_is_allowed(rule) -> None:  # type: ignore[no-untyped-def]
    faults = [fault for source in package_sources() for fault in rule(source)]
    assert not faults, "\n" + "\n".join(faults)


def test_every_room_has_a_layer() -> None:
    assert {source.room or Path(source.name).stem for source in package_sources()} == set(LAYERS)


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        (layer_faults, "dpr/losses/x.py", "from dpr.models.encoder import Encoder"),
        (layer_faults, "dpr/data/x.py", "def f():\n    import dpr.models"),
        (layer_faults, "dpr/formats/x.py", "from dpr import data"),
        (layer_faults, "dpr/models/settings.py", "from dpr.core.batch import TokenBatch"),
        (layer_faults, "dpr/training/x.py", "from dpr.jobs.train import build_model"),
        (layer_faults, "dpr/training/x.py", "from dpr import BiEncoder"),
        (layer_faults, "dpr/__init__.py", "from dpr.cli.main import run"),
        (room_faults, "dpr/training/x.py", "import transformers"),
        (room_faults, "dpr/retrieval/x.py", "def f():\n    import faiss"),
        (room_faults, "dpr/jobs/x.py", "from omegaconf import OmegaConf"),
        (room_faults, "dpr/data/x.py", "import requests"),
        (early_faults, "dpr/cli/x.py", "import torch"),
        (early_faults, "dpr/cli/x.py", "from dpr.jobs.train import run"),
        (early_faults, "dpr/jobs/doctor.py", "from dpr.storage.durable import verify_folder"),
        (early_faults, "dpr/training/settings.py", "class A:\n    import numpy.random\n    import torch"),
    ],
)
def test_the_rules_find_what_they_are_for(rule, name: str, text: str) -> None:  # type: ignore[no-untyped-def]
    (fault,) = rule(parse(name, text))
    assert fault.startswith(f"{name}:")


def test_lazy_imports_in_the_command_line_are_allowed() -> None:
    assert not early_faults(parse("dpr/cli/x.py", "def job():\n    import torch\n"))


def test_importing_every_command_loads_nothing_heavy() -> None:
    """What the statements above cannot see: a light module that imports a heavy one."""
    light = [
        source.name
        for source in package_sources()
        if source.room == "cli" or _holds_settings(source) or _is_root(source)
    ]
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in light]
    program = (
        f"import importlib, sys\nfor name in {names!r}:\n    importlib.import_module(name)\n"
        f"print(sorted({HEAVY | {'hydra', 'omegaconf', 'numpy'}!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=patient(60)
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_trainer_loads_no_more_than_training_needs() -> None:
    """A reader of the trainer opens these modules of the toolkit and no others."""
    program = "import sys, dpr.training.trainer; print(sum(name.startswith('dpr') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 95


def module_name(source: Source) -> str:
    """``dpr.losses.nll`` for ``dpr/losses/nll.py``, ``dpr.losses`` for its ``__init__``."""
    return source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Returns the modules that each module names."""
    by_name = {module_name(source): source for source in sources}
    graph: dict[str, set[str]] = {}
    for name, source in by_name.items():
        found = {one if one in by_name else one.rpartition(".")[0] for one, _ in imports(source)}
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
