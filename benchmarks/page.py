"""What was measured, kept as JSON beside the page that shows it, so that sections can be measured one at a
time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measuring import median_and_range


@dataclass(frozen=True)
class Ratio:
    """How many times as fast ours is: median, least and greatest of the rounds, and what it has to be."""

    what: str
    median: float
    low: float
    high: float
    at_least: float | None = None

    @classmethod
    def of(cls, what: str, rounds: Sequence[float], at_least: float | None = None) -> Ratio:
        median, low, high = (round(value, 3) for value in median_and_range(rounds))
        return cls(what, median, low, high, at_least)

    @property
    def text(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def is_missed(self) -> bool:
        """As it is read: 1.297 is printed as 1.30 and counts as that."""
        return self.at_least is not None and round(self.median, 2) < self.at_least

    @property
    def verdict(self) -> str:
        return (
            "" if self.at_least is None else f"{self.at_least:g}" + (", **missed**" if self.is_missed else "")
        )


@dataclass(frozen=True)
class Section:
    """A part of the page: Markdown, the ratios that the summary and the drawing show, under what it was
    measured or why it was not."""

    title: str
    text: str
    ratios: tuple[Ratio, ...] = ()
    measured: str = ""

    @property
    def anchor(self) -> str:
        """As Markdown viewers name the heading."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def read(path: Path) -> dict[str, Section]:
    """The sections of an earlier run by name; none where there is no file."""
    if not path.is_file():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Section(
            one["title"], one["text"], tuple(Ratio(**ratio) for ratio in one["ratios"]), one["measured"]
        )
        for name, one in stored.items()
    }


def write(path: Path, sections: Mapping[str, Section]) -> None:
    stored = {name: asdict(section) for name, section in sections.items()}
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def summary_row(section: Section, ratio: Ratio, page: str = "") -> str:
    """A line of the summary, and of the README, which names the page."""
    return f"| [{section.title}]({page}#{section.anchor}) | {ratio.what} | {ratio.text} |"


def render(introduction: str, sections: Mapping[str, Section], drawing: str) -> str:
    """The page: introduction, drawing, summary, sections in the order given."""
    rows = [
        f"{summary_row(section, ratio)} {ratio.verdict} |".replace("|  |", "| |")
        for section in sections.values()
        for ratio in section.ratios
    ]
    rows.append("| any of these on a GPU | | not measured | |")
    summary = "\n".join(["| | against | ours is faster by | at least |", "|---|---|---:|---:|", *rows])
    parts = [introduction, f"![Ratios with their spread]({drawing})", summary]
    for section in sections.values():
        parts += [f"## {section.title}", *([section.measured] if section.measured else []), section.text]
    return "\n\n".join(parts) + "\n"
