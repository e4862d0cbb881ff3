"""The page keeps what was not measured again, shows what it missed, and the README repeats the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import page, plot, profiling
from benchmarks.__main__ import INTRODUCTION, SECTIONS, keep
from benchmarks.page import Ratio, Section
from tests.architecture.source_files import REPOSITORY

PAGE = REPOSITORY / "benchmarks" / "results" / "benchmarks.md"


def test_sections_that_were_not_run_stay_as_they_were(tmp_path: Path) -> None:
    out = tmp_path / "page.md"
    keep(out, "search", Section("Search", "first text", (Ratio.of("another", [2.0, 1.0, 3.0]),), "yesterday"))
    keep(out, "training", Section("Training", "second text", (), "today"))
    written = out.read_text()
    assert written.index("## Training\n\ntoday\n\nsecond text") < written.index(
        "## Search\n\nyesterday\n\nfirst text"
    )
    keep(out, "search", Section("Search", "third text"))
    assert "first text" not in out.read_text() and "second text" in out.read_text()


@pytest.mark.parametrize(("median", "is_missed"), [(2.19, True), (2.197, False), (2.2, False), (3.0, False)])
def test_missed_bar_is_reported_by_the_number_as_it_is_printed(median: float, is_missed: bool) -> None:
    ratio = Ratio.of("another", [median], at_least=2.2)
    assert ratio.is_missed == is_missed
    assert ("missed" in page.render("", {"one": Section("One", "", (ratio,))}, "x.svg")) == is_missed


def test_drawing_has_a_bar_for_every_ratio_as_long_as_it_says() -> None:
    ratios = (Ratio.of("one & other", [1.0, 2.0, 4.0]), Ratio.of("third", [4.0], at_least=5.0))
    root = ET.fromstring(plot.bars([Section("Some <title>", "", ratios), Section("Without ratios", "")]))
    bars = root.findall("{*}rect")
    first, second = (float(bar.attrib["width"]) for bar in bars)
    assert second == pytest.approx(2 * first, abs=0.2)
    assert [bar.attrib["class"] for bar in bars] == ["bar", "bar missed"]
    assert "Without ratios" not in {text.text for text in root.findall("{*}text")}


def test_shares_of_a_profile_find_matrix_products_and_sum_to_one() -> None:
    import torch

    left = torch.randn(300, 300)
    found = profiling.shares(lambda: [left @ left for _ in range(20)])
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["matrix products"] > 0.5


def test_profile_sees_threads_that_the_work_starts() -> None:
    import torch

    left = torch.randn(300, 300)
    with ThreadPoolExecutor(2) as pool:
        found = profiling.shares(lambda: list(pool.map(lambda _: left @ left, range(20))))
    assert found["matrix products"] > 0.5


def test_page_is_what_its_numbers_give() -> None:
    sections = page.read(PAGE.with_suffix(".json"))
    assert set(sections) <= set(SECTIONS)
    assert PAGE.read_text(encoding="utf-8") == page.render(INTRODUCTION, sections, "benchmarks.svg")
    assert PAGE.with_suffix(".svg").read_text(encoding="utf-8") == plot.bars(sections.values())


def test_readme_says_what_the_page_says() -> None:
    rows = re.findall(
        r"(?m)^\| \[.+\]\(benchmarks/results/benchmarks\.md#.+$",
        (REPOSITORY / "README.md").read_text(encoding="utf-8"),
    )
    sections = page.read(PAGE.with_suffix(".json")).values()
    known = {
        page.summary_row(section, ratio, "benchmarks/results/benchmarks.md")
        for section in sections
        for ratio in section.ratios
    }
    assert rows, "README has no figures"
    assert not set(rows) - known, "not on the page; take these of\n" + "\n".join(sorted(known))
