"""``python -m benchmarks.quickstart_picture runs/quickstart > docs/quickstart.svg``: the first picture of its
report, for README."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.plot import HEAD, STYLE, Markup, tag
from dpr.evaluation.report.overview import headline
from dpr.evaluation.report.reading import read_retrieval

WIDTH, LEFT, RIGHT, ROW, MARGIN = 790, 100, 190, 30, 12
LABELS = ("BM25", "untrained", "trained", "hybrid")


def picture(folder: Path) -> str:
    """A bar with its interval for each of the quickstart's runs, under one sentence."""
    shown = headline(
        [read_retrieval(label, folder / "metrics" / f"{label.lower()}.json") for label in LABELS]
    )
    if shown is None:
        raise SystemExit(f"error: the metrics of {folder} have no accuracy in common")
    height, scale = 2 * MARGIN + 2 * HEAD + ROW * len(shown["bars"]), WIDTH - LEFT - RIGHT
    parts = [tag("style", STYLE), tag("text", shown["sentence"], x=MARGIN, y=MARGIN + 14, class_="head")]
    for number, bar in enumerate(shown["bars"]):
        y, low, high = MARGIN + HEAD + ROW * number, LEFT + scale * bar["low"], LEFT + scale * bar["high"]
        middle = y + ROW // 2
        parts += [
            tag("text", bar["label"], x=LEFT - 8, y=middle, dy="0.35em", text_anchor="end"),
            tag(
                "rect",
                x=LEFT,
                y=y + 5,
                width=round(scale * bar["share"], 1),
                height=ROW - 10,
                rx=2,
                class_="bar",
            ),
            tag("line", x1=round(low, 1), y1=middle, x2=round(high, 1), y2=middle, class_="spread"),
            tag(
                "text",
                f"{bar['share']:.1%}",
                x=WIDTH - RIGHT + 8,
                y=middle,
                dy="0.35em",
                class_="head" if bar["is_best"] else "plain",
            ),
            tag(
                "text",
                f"{bar['low']:.1%} to {bar['high']:.1%}",
                x=WIDTH - RIGHT + 74,
                y=middle,
                dy="0.35em",
                class_="soft",
            ),
        ]
    parts.append(tag("text", shown["title"], x=LEFT, y=height - MARGIN, class_="soft"))
    drawing: Markup = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
    )
    return f"{drawing}\n"


if __name__ == "__main__":
    sys.stdout.write(picture(Path(sys.argv[1])))
