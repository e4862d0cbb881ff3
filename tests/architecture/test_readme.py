"""The layers of docs/architecture.md are those that are there, the README is short, and links lead somewhere."""

import re
from pathlib import Path

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
