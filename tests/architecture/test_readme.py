"""The layers of docs/architecture.md are those that are there, the README is short, and links lead somewhere."""

import os
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from dpr.core.version import __version__
from tests.architecture.source_files import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_architecture_names_every_package_and_nothing_else() -> None:
    rows = re.findall(
        r"(?m)^\| \d+ \| (.+?) \|", (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    )
    there = {path.parent.name for path in (REPOSITORY / "dpr").glob("*/__init__.py")}
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == there


def test_what_adding_something_touches_is_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`(?:dpr/)?(?!tests/)([\w/]+\.py)`", page))
    files |= {f"{name}.py" for name in re.findall(r"(?m)^ +-> ([a-z]+/\w+(?:/\w+)?)", page)}
    files |= set(re.findall(r"`(?:dpr/)?([a-z]+/callbacks|models/folders)`", page))
    assert (
        len(files) > 40 and [file for file in sorted(files) if not (REPOSITORY / "dpr" / file).exists()] == []
    )


def test_readme_is_short() -> None:
    assert README.count("\n") <= 110


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


PAGES = sorted((REPOSITORY / "website" / "pages" / "reference").glob("*.md"))
NAMES = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_reference_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(module), attribute), f"{name}: mend its entry in website/pages/reference"


def test_a_name_stands_once() -> None:
    assert len(NAMES) > 60
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("step", ["The tag is the version", "The changelog and the citation name it"])
def test_the_tag_of_this_version_passes_and_another_does_not(step: str) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    (command,) = (each["run"] for each in workflow["jobs"]["build"]["steps"] if each.get("name") == step)
    for tag, is_right in ((f"v{__version__}", True), ("v99.9.9", False), ("v", False)):
        done = subprocess.run(
            ["bash", "-ec", command], cwd=REPOSITORY, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False
        )
        assert (done.returncode == 0) == is_right, (step, tag)


def test_the_version_is_one() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^## {re.escape(__version__)} - {cited['date-released']}$", changes)
