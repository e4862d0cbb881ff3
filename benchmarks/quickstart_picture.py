"""``python -m benchmarks.quickstart_picture runs/quickstart > docs/quickstart.svg``: the picture of README."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from benchmarks.plot import HEAD, STYLE, Markup, tag
from dpr.formats.results import read_metrics

WIDTH, LEFT, RIGHT, ROW, MARGIN = 790, 100, 190, 30, 12
METRIC = "accuracy@20"
LABELS = ("BM25", "untrained", "trained", "hybrid")


def interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share observed over ``count`` questions (Wilson's)."""
    z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
    middle = share + z**2 / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    whole = 1 + z**2 / count
    return (middle - half) / whole, (middle + half) / whole


def picture(folder: Path) -> str:
    """A bar with its interval for each of the quickstart's runs, under one sentence."""
    runs = [read_metrics(folder / "metrics" / f"{label.lower()}.json") for label in LABELS]
    shares = {label: run.metrics[METRIC] for label, run in zip(LABELS, runs, strict=True)}
    best = max(shares, key=lambda label: shares[label])
    depth = METRIC.partition("@")[2]
    sentence = f"Of 100 questions, {best} has a right passage among its first {depth} for"
    sentence += f" {100 * shares[best]:.0f}, BM25 for {100 * shares['BM25']:.0f}."
    note = f"Questions with a right passage among its first {depth}, with 95 % intervals"
    height = 2 * MARGIN + 2 * HEAD + ROW * len(shares)
    scale = WIDTH - LEFT - RIGHT
    parts = [tag("style", STYLE), tag("text", sentence, x=MARGIN, y=MARGIN + 14, class_="head")]
    for number, (label, run) in enumerate(zip(LABELS, runs, strict=True)):
        share = shares[label]
        low, high = interval(share, run.num_questions)
        y = MARGIN + HEAD + ROW * number
        middle = y + ROW // 2
        parts += [
            tag("text", label, x=LEFT - 8, y=middle, dy="0.35em", text_anchor="end"),
            tag(
                "rect",
                x=LEFT,
                y=y + 5,
                width=round(scale * share, 1),
                height=ROW - 10,
                rx=2,
                class_="bar",
            ),
            tag(
                "line",
                x1=round(LEFT + scale * low, 1),
                y1=middle,
                x2=round(LEFT + scale * high, 1),
                y2=middle,
                class_="spread",
            ),
            tag(
                "text",
                f"{share:.1%}",
                x=WIDTH - RIGHT + 8,
                y=middle,
                dy="0.35em",
                class_="head" if label == best else "plain",
            ),
            tag(
                "text",
                f"{low:.1%} to {high:.1%}",
                x=WIDTH - RIGHT + 74,
                y=middle,
                dy="0.35em",
                class_="soft",
            ),
        ]
    parts.append(tag("text", note, x=LEFT, y=height - MARGIN, class_="soft"))
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
