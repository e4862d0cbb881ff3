"""Drawings as SVG that follow a dark or light screen: the ratios of the page as horizontal bars, with their
spread over the rounds, and a metric over the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.page import Ratio, Section

WIDTH, ROW, HEAD, TOP, BOTTOM = 790, 24, 26, 12, 44
LEFT, RIGHT = 330, 60
STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #1b2330 } .soft { fill: #566274 } .head { font-weight:"
    " 600 } .bar { fill: #2563eb } .grid { stroke: #dde2e9 } .even { stroke: #566274 } .spread { stroke:"
    " #1b2330; stroke-width: 1.5 } .bar.missed { fill: #c2410c } .wanted { stroke: #12683a; stroke-width: 2.5"
    " } @media (prefers-color-scheme: dark) { text { fill: #e6eaf1 } .soft { fill: #a3aec0 } .grid { stroke:"
    " #303948 } .even { stroke: #a3aec0 } .bar { fill: #7aa7ff } .bar.missed { fill: #ff9a62 } .spread {"
    " stroke: #e6eaf1 } .wanted { stroke: #84e0ae } }"
)


@dataclass(frozen=True)
class Axis:
    """Values ``low`` to ``high`` on ``start`` to ``end`` of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Where a value lies."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def nice_ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers from zero that reach beyond the values."""
    rough = max(values) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= rough * 0.999), power * 10)
    return [number * step for number in range(math.ceil(max(values) / step - 1e-9) + 1)]


class Markup(str):
    """Text that is markup already; all else is escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """One element; ``class_`` is ``class`` and ``stroke_width`` is ``stroke-width``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escape(str(value))}"' for key, value in attributes.items()
    )
    content = "".join(child if isinstance(child, Markup) else _escape(child) for child in children)
    return Markup(f"<{name}{given}>{content}</{name}>")


def _escape(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def bars(sections: Iterable[Section]) -> str:
    """A bar for every ratio under the title of its section; a green mark stands at what the ratio has to
    be."""
    shown = [section for section in sections if section.ratios]
    ratios = [ratio for section in shown for ratio in section.ratios]
    height = TOP + BOTTOM + HEAD * len(shown) + ROW * len(ratios)
    ticks = nice_ticks(
        [0.0, 1.0, *(ratio.high for ratio in ratios), *(ratio.at_least or 0.0 for ratio in ratios)]
    )
    axis = Axis(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    base = height - BOTTOM
    parts = [tag("style", STYLE), tag("title", "How many times as fast: ours against others")]
    for value in sorted({*ticks, 1.0}):
        x = _n(axis.place(value))
        parts.append(tag("line", x1=x, y1=TOP, x2=x, y2=base, class_="even" if value == 1 else "grid"))
        parts.append(tag("text", f"{value:.4g}", x=x, y=base + 17, text_anchor="middle", class_="soft"))
    parts.append(
        tag(
            "text",
            "times as fast (1: equal)",
            x=_n((LEFT + WIDTH - RIGHT) / 2),
            y=height - 8,
            text_anchor="middle",
            class_="soft",
        )
    )
    y = TOP
    for section in shown:
        parts.append(tag("text", section.title, x=10, y=y + 18, class_="head"))
        y += HEAD
        for ratio in section.ratios:
            parts += _row(ratio, axis, y)
            y += ROW
    drawing = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
    )
    return f"{drawing}\n"


CURVE_WIDTH, CURVE_HEIGHT = 460, 320
CURVE_STYLE = (
    ".curve { fill: none; stroke: #2563eb; stroke-width: 2.5 } .curve.second { stroke: #c2410c } .point {"
    " fill: #2563eb } .point.second { fill: #c2410c } .level { stroke: #566274; stroke-dasharray: 5 4 } @media"
    " (prefers-color-scheme: dark) { .curve { stroke: #7aa7ff } .curve.second { stroke: #ff9a62 } .point {"
    " fill: #7aa7ff } .point.second { fill: #ff9a62 } .level { stroke: #a3aec0 } }"
)


def curves(
    title: str, steps: Sequence[int], series: Mapping[str, Sequence[float]], levels: Mapping[str, float]
) -> str:
    """One or two curves over the steps of a training, each value written beside its point, and dashed lines
    at the values of what is not trained. The vertical axis begins below the lowest value, not at zero."""
    values = [value for curve in series.values() for value in curve] + [*levels.values()]
    ticks = [number / 50 for number in range(math.floor(min(values) * 50), math.ceil(max(values) * 50) + 1)]
    across = Axis(steps[0], steps[-1], 72, CURVE_WIDTH - 30)
    up = Axis(ticks[0], ticks[-1], CURVE_HEIGHT - 62, 20)
    parts = [tag("style", STYLE + CURVE_STYLE), tag("title", title)]
    for tick in ticks:
        height = _n(up.place(tick))
        parts.append(tag("line", x1=40, y1=height, x2=CURVE_WIDTH - 10, y2=height, class_="grid"))
        parts.append(
            tag("text", f"{tick:.2f}", x=34, y=height, dy="0.35em", text_anchor="end", class_="soft")
        )
    for step in steps:
        below = {"x": _n(across.place(step)), "y": CURVE_HEIGHT - 28}
        parts.append(tag("text", str(step), **below, text_anchor="middle", class_="soft"))
    below = {"x": _n((across.start + across.end) / 2), "y": CURVE_HEIGHT - 8}
    parts.append(tag("text", title, **below, text_anchor="middle", class_="soft"))
    for name, level in levels.items():
        height = _n(up.place(level))
        parts.append(tag("line", x1=40, y1=height, x2=CURVE_WIDTH - 10, y2=height, class_="level"))
        below = {"x": CURVE_WIDTH - 12, "y": _n(up.place(level) + 15)}
        parts.append(tag("text", f"{name} {level:.3f}", **below, text_anchor="end", class_="soft"))
    for kind, (name, curve) in zip(("", " second"), series.items(), strict=False):
        places = [(across.place(step), up.place(value)) for step, value in zip(steps, curve, strict=True)]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in places)
        parts.append(tag("polyline", points=path, class_=f"curve{kind}"))
        for number, ((x, y), value) in enumerate(zip(places, curve, strict=True)):
            beside = y - 9 if number else y + 19  # the curve rises from its first point
            parts.append(tag("circle", cx=_n(x), cy=_n(y), r=4, class_=f"point{kind}"))
            parts.append(tag("text", f"{value:.3f}", x=_n(x), y=_n(beside), text_anchor="middle"))
        x, y = places[1]
        parts.append(tag("text", name, x=_n(x), y=_n(y + 20), class_="head"))
    drawing = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {CURVE_WIDTH} {CURVE_HEIGHT}",
        width=CURVE_WIDTH,
        height=CURVE_HEIGHT,
    )
    return f"{drawing}\n"


def _row(ratio: Ratio, axis: Axis, y: float) -> list[Markup]:
    middle, (start, end, low, high) = (
        y + ROW / 2,
        (axis.place(value) for value in (0.0, ratio.median, ratio.low, ratio.high)),
    )
    colour = "bar missed" if ratio.is_missed else "bar"
    hint = tag("title", f"{ratio.what}: {ratio.text}")
    parts = [
        tag("text", ratio.what, x=LEFT - 8, y=_n(middle), dy="0.35em", text_anchor="end"),
        tag("rect", hint, x=_n(start), y=y + 4, width=_n(end - start), height=ROW - 8, rx=2, class_=colour),
        tag("line", x1=_n(low), y1=_n(middle), x2=_n(high), y2=_n(middle), class_="spread"),
        *(
            tag("line", x1=_n(x), y1=_n(middle - 4), x2=_n(x), y2=_n(middle + 4), class_="spread")
            for x in (low, high)
        ),
        tag("text", f"{ratio.median:.2f}", x=_n(max(end, high) + 6), y=_n(middle), dy="0.35em"),
    ]
    if ratio.at_least is not None:
        wanted = _n(axis.place(ratio.at_least))
        parts.append(tag("line", x1=wanted, y1=y + 1, x2=wanted, y2=y + ROW - 1, class_="wanted"))
    return parts


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
