"""Curves, drawn by matplotlib as an SVG text that stands in the page itself. The same input gives the same
bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence

Point = tuple[float, float]

_STYLES = ("-", "--", ":", "-.")
# Characters that XML cannot hold, and controls that change the reading direction of everything after them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


def printable_text(text: str) -> str:
    """The text with a sign in place of each character that a page must not hold."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def curves_svg(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    *,
    levels: Mapping[str, float] | None = None,
    x_label: str = "step",
    percent: bool = False,
    log_x: bool = False,
) -> str:
    """Labelled curves over a common x.

    Args:
        levels: what they are to be compared with, as horizontal lines.
        percent: values are shares, whose axis starts at zero.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    levels = levels or {}
    text = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # signs that its own font lacks are drawn by the reader's
        matplotlib.rcdefaults()  # whatever a matplotlibrc says
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["svg.hashsalt"] = repr((title, curves, levels))
        matplotlib.rcParams["text.parse_math"] = False
        matplotlib.rcParams["path.simplify_threshold"] = 1.0  # a long curve in a few kB, its peaks included
        figure = Figure(figsize=(6, 3))
        # Margins that hold the longest labels; to have them computed takes as long as to draw.
        axes = figure.add_axes((0.14, 0.16, 0.84, 0.69))
        for number, (label, points) in enumerate(curves.items()):
            xs, ys = zip(*points, strict=True)
            colour = f"C{number}"
            style = _STYLES[number % len(_STYLES)]
            axes.plot(xs, ys, color=colour, linestyle=style, label=printable_text(label))
        for number, (label, level) in enumerate(levels.items()):
            style = _STYLES[number % len(_STYLES)]
            axes.axhline(level, color="gray", linewidth=1, linestyle=style, label=printable_text(label))
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        if percent:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_xlabel(x_label)
        axes.set_title(printable_text(title), loc="left", fontsize="medium")
        axes.legend(frameon=False, fontsize="small")
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    # Groups have the same names in every picture, and a page has several.
    return re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
