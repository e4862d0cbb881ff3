"""``import dpr`` is the public API: cheap, the same for editors as at run time, enough for documents and examples."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpr
from dpr.formats.training_files.dpr import write_training_set
from tests.architecture.source_files import REPOSITORY, Source, imports, package_sources, parse
from tests.helpers.patience import patient
from tests.helpers.tiny import encoder_folder, make_samples

BLOCK = re.compile(r"```python\n(.+?)```", re.DOTALL)
INDENTED = re.compile(r"(?m)^    ((?:from dpr[. ]|import dpr).+)$")


def python_for_readers() -> Iterator[Source]:
    """Yields every block of Python in README and docs, every cell of the notebook, and the examples."""
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate([*BLOCK.findall(text), *INDENTED.findall(BLOCK.sub("", text))], 1):
            yield parse(f"{page.name}, block {number}", block)
    for example in sorted((REPOSITORY / "examples").glob("*.py")):
        yield parse(f"examples/{example.name}", example.read_text(encoding="utf-8"))
    notebook = json.loads((REPOSITORY / "examples" / "first_steps.ipynb").read_text(encoding="utf-8"))
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        yield parse(f"first_steps.ipynb, cell {number}", "".join(cell["source"]))


def deep_imports(source: Source) -> list[str]:
    """Imports of the toolkit that are not ``import dpr`` or ``from dpr import <a public name>``."""
    public = {"dpr", *(f"dpr.{name}" for name in [*dpr.__all__, "__version__"])}
    return [
        source.where(node)
        for name, node in imports(source)
        if name.split(".")[0] == "dpr" and name not in public
    ]


def test_documents_and_examples_import_from_dpr_alone() -> None:
    sources = list(python_for_readers())
    users = [source for source in sources if any(name.split(".")[0] == "dpr" for name, _ in imports(source))]
    assert len(users) >= 15
    deep = [fault for source in sources for fault in deep_imports(source)]
    assert not deep, "\n" + "\n".join(deep)


@pytest.mark.parametrize(
    "text", ["from dpr.models.biencoder import BiEncoder", "import dpr.models", "from dpr import biencoder"]
)
def test_deep_imports_are_found(text: str) -> None:
    assert len(deep_imports(parse("x.md", text))) == 1


def test_editors_see_the_names_that_there_are() -> None:
    (front,) = (source for source in package_sources() if source.name == "dpr/__init__.py")
    block = next(node for node in front.tree.body if isinstance(node, ast.If))
    seen = {
        (node.module, name.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert seen == {(module, name) for name, module in dpr._HOME.items()}
    assert {*dpr.__all__, "__version__"} <= set(dir(dpr))
    assert all(getattr(dpr, name).__module__.startswith("dpr.") for name in dpr.__all__)
    with pytest.raises(AttributeError, match="module 'dpr' has no attribute 'Biencoder'"):
        dpr.Biencoder  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"SetOptions is dpr\.DataSetSettings"):
        from dpr import SetOptions  # type: ignore[attr-defined]  # noqa: F401


def test_importing_it_loads_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import dpr; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-Sc", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=patient(60)
    )
    loaded = [
        name
        for name in done.stdout.split()
        if name.split(".")[0] == "dpr" or name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert (loaded, done.stderr) == (["dpr", "dpr.core", "dpr.core.cores", "dpr.core.version"], "")
    assert "dataclasses" not in done.stdout  # nor what is slow to load in the standard library


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "30000"), ({"OMP_WAIT_POLICY": "passive"}, "None"), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_waiting_threads_spin_for_a_short_time_unless_the_environment_says_otherwise(
    given: dict[str, str], expected: str
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    others = {name: value for name, value in os.environ.items() if name not in names}
    program = "import os, dpr; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-Sc", program], cwd=REPOSITORY, env=others | given, capture_output=True, text=True
    )
    assert done.stdout.strip() == expected


PAGE = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(Path("tiny"))
    write_training_set("train.jsonl", make_samples(64))
    write_training_set("dev.jsonl", make_samples(32, seed=1))
    code = "\n".join(re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL))
    code = code.replace(
        '"bert-base-uncased", EncoderSettings(sequence_length=256',
        '"tiny", EncoderSettings(sequence_length=24',
    ).replace(', pooling="mean")', ', pooling="mean"), pretrained=False')
    Path("page.py").write_text(code.replace("num_train_epochs=3", "num_train_epochs=1"))
    names = runpy.run_path("page.py")
    assert (names["scores"].shape, names["vector"].shape) == ((1, 2), (16,))
    assert names["best"] in (0, 1)
    assert names["again"].fingerprint == names["model"].fingerprint
    assert len(names["train_set"]) == names["train_set"].counts.kept == 64
