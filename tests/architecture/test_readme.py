"""The README's Python example runs as it stands, and the layers of docs/architecture.md are those that are
there."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

from dpr.formats.training_sets import write_training_set
from tests.architecture.source_files import REPOSITORY
from tests.helpers.tiny import encoder_folder, make_samples

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_python_example_trains_and_encodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    # The same lines, with a small untrained encoder in place of the published one.
    wanted = '"bert-base-uncased", EncoderSettings(sequence_length=256)'
    assert wanted in example
    example = example.replace(wanted, '"tiny", EncoderSettings(sequence_length=24), pretrained=False')
    example = example.replace("batch_size=32", "batch_size=4").replace(
        "num_train_epochs=3", "num_train_epochs=1"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    encoder_folder(Path("tiny"))
    write_training_set(Path("train.json"), make_samples(8))
    write_training_set(Path("dev.json"), make_samples(4, seed=1))
    Path("example.py").write_text(example)
    variables = runpy.run_path("example.py")
    assert variables["questions"].shape == (1, 16)
    assert variables["passages"].shape == (2, 16)
    assert capsys.readouterr().out.strip().startswith("[[")


def test_architecture_names_every_package_and_nothing_else() -> None:
    rows = re.findall(
        r"(?m)^\| \d+ \| (.+?) \|", (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    )
    there = {path.parent.name for path in (REPOSITORY / "dpr").glob("*/__init__.py")}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == there


def test_what_adding_something_touches_is_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("## Contracts") :]
    paths = set(re.findall(r"`((?:dpr|conf)/[\w./]+)`", table))
    assert len(paths) > 10 and [path for path in sorted(paths) if not (REPOSITORY / path).exists()] == []
    for module, name in (
        ("dpr.losses.protocol", "Loss"),
        ("dpr.training.validations.protocol", "Validation"),
        ("dpr.models.pooling", "POOLINGS"),
    ):
        assert hasattr(importlib.import_module(module), name)
    assert issubclass(
        importlib.import_module("dpr.indexer.exact").ExactIndex,
        importlib.import_module("dpr.indexer.registry").Index,
    )


def test_readme_is_short() -> None:
    assert README.count("\n") <= 130


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub names them."""
    text = re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#+ (.+?)\s*$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    wrong = []
    for document in [
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        *(REPOSITORY / "docs").glob("*.md"),
        *(REPOSITORY / "benchmarks" / "results").glob("*.md"),
    ]:
        for target in re.findall(r"\]\(([^)\s:]+)\)", document.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            page = document.parent / name if name else document
            if not page.exists() or (anchor and anchor not in anchors(page)):
                wrong.append(f"{document.name}: {target}")
    assert not wrong, "\n".join(wrong)


def test_what_proves_a_claim_is_there() -> None:
    page = (REPOSITORY / "benchmarks" / "results" / "compare_peers.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"\btests/[\w/]+(?:\.py)?", page))
    assert len(paths) > 20 and [path for path in sorted(paths) if not (REPOSITORY / path).exists()] == []
