"""Curves and bars as inline SVG. Colours come from the page's style sheet, so that they follow a dark or light screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpr.evaluation.report.markup import Markup, join, tag

WIDTH, HEIGHT = 420.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 10.0, 38.0
STYLES = 6
_MOST_POINTS = 240
_MARKED_POINTS = 30

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A curve. Points that are not finite are left out."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """Values ``low`` to ``high`` on ``start`` to ``end`` of the drawing."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, at = (math.log(number) if self.is_log else number for number in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str = "step", percent: bool = False, from_zero: bool = False, log_x: bool = False
) -> Markup:
    """Curves over a common x; a curve of one point is a dot. Shares (``percent``) start at zero. Without any finite point it says so."""
    drawn = [Series(one.label, finite(one.points, log_x=log_x)) for one in series]
    drawn = [one for one in drawn if one.points]
    if not drawn:
        return figure(title, tag("p", "No figures yet.", class_="none"))
    xs = [x for one in drawn for x, _ in one.points]
    ys = [y for one in drawn for _, y in one.points]
    x_axis = _x_axis(min(xs), max(xs), log_x)
    ticks = (
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        if percent and max(ys) > 0.5 and min(ys) >= 0 and max(ys) <= 1
        else nice_ticks([0.0, *ys] if percent or from_zero else ys)
    )
    y_axis = Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = _y_grid(y_axis, ticks, percent)
    parts += _x_ticks(x_axis, _log_ticks(x_axis) if log_x else _round_ticks(x_axis), x_label)
    parts += [_curve(one, number, x_axis, y_axis, percent) for number, one in enumerate(drawn)]
    return figure(title, legend([one.label for one in drawn]), _svg(title, parts))


def bar_chart(title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, x_label: str) -> Markup:
    """Shares (0 to 1) as bars side by side: one bar of every series in each group."""
    if not series or not groups:
        return figure(title, tag("p", "No figures yet.", class_="none"))
    ticks = nice_ticks([0.0, *(value for _, values in series for value in values)])
    y_axis = Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = _y_grid(y_axis, ticks, True)
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = room * 0.84 / len(series)
    for place, group in enumerate(groups):
        start = LEFT + room * place
        parts.append(tag("text", group, x=_n(start + room / 2), y=_n(HEIGHT - BOTTOM + 15), text_anchor="middle", class_="tick"))
        for number, (label, values) in enumerate(series):
            top = y_axis.place(values[place])
            bar = {"x": _n(start + room * 0.08 + width * number), "y": _n(top), "width": _n(max(width - 1, 1))}
            hint = tag("title", f"{label}, {group}: {values[place]:.1%}")
            parts.append(tag("rect", hint, **bar, height=_n(max(HEIGHT - BOTTOM - top, 0)), class_=f"bar f{number % STYLES}"))
    parts.append(_axis_label(x_label))
    return figure(title, legend([label for label, _ in series], filled=True), _svg(title, parts))


def figure(title: str, *content: str) -> Markup:
    """A titled box of the grid."""
    return tag("figure", tag("figcaption", title), *content)


def legend(labels: Sequence[str], *, filled: bool = False) -> Markup:
    """Which line, or bar, is which; nothing where there is but one."""
    if len(labels) < 2:
        return Markup()
    swatch = [
        tag(
            "svg",
            tag("rect", x=6, y=0, width=10, height=10, class_=f"f{number % STYLES}")
            if filled
            else tag("line", x1=0, y1=5, x2=22, y2=5, class_=f"line l{number % STYLES}"),
            viewBox="0 0 22 10",
            class_="swatch",
            aria_hidden="true",
        )
        for number in range(len(labels))
    ]
    return tag("ul", *(tag("li", mark, label) for mark, label in zip(swatch, labels, strict=True)), class_="legend")


def finite(points: Sequence[Point], *, log_x: bool = False) -> list[Point]:
    """The points that can be drawn, by x, thinned: of every stretch the lowest and the highest."""
    good = sorted((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x))
    if len(good) <= _MOST_POINTS:
        return good
    stretch = math.ceil(2 * len(good) / _MOST_POINTS)
    kept: set[Point] = {good[0], good[-1]}
    for start in range(0, len(good), stretch):
        part = good[start : start + stretch]
        kept |= {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(kept)


def nice_ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers that enclose the values; from zero where zero is near."""
    low, high = min(values), max(values)
    if low > 0 and low < 0.6 * high:
        low = 0.0
    if low == high:
        low, high = (0.0, 1.0) if low == 0 else (min(low, 0.0), max(low, 0.0))
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def number_text(value: float) -> str:
    """A figure as short as it can be read: 12.3k, 0.042, 2e-05."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if size < 1e-3 and size:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}"


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= rough * 0.999), power * 10)


def _x_axis(low: float, high: float, is_log: bool) -> Axis:
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 1, high + 1)
    elif not is_log and 0 < low < high / 4:
        low = 0.0
    return Axis(low, high, LEFT + 4, WIDTH - RIGHT - 4, is_log)


def _log_ticks(axis: Axis) -> list[float]:
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [value for value in found if axis.low * 0.999 <= value <= axis.high * 1.001]


def _round_ticks(axis: Axis) -> list[float]:
    step = max(_round_step((axis.high - axis.low) / 6), 1.0)
    first = math.ceil(axis.low / step - 1e-9)
    return [number * step for number in range(first, math.floor(axis.high / step + 1e-9) + 1)]


def _y_grid(axis: Axis, ticks: Sequence[float], percent: bool) -> list[Markup]:
    parts = []
    for value in ticks:
        y = _n(axis.place(value))
        text = f"{value * 100:.4g}%" if percent else number_text(value)
        parts.append(tag("line", x1=_n(LEFT), y1=y, x2=_n(WIDTH - RIGHT), y2=y, class_="grid"))
        parts.append(tag("text", text, x=_n(LEFT - 6), y=y, dy="0.35em", text_anchor="end", class_="tick"))
    return parts


def _x_ticks(axis: Axis, ticks: Sequence[float], label: str) -> list[Markup]:
    base = HEIGHT - BOTTOM
    parts = [tag("line", x1=_n(LEFT), y1=_n(base), x2=_n(WIDTH - RIGHT), y2=_n(base), class_="axis"), _axis_label(label)]
    for value in ticks:
        x = _n(axis.place(value))
        parts.append(tag("line", x1=x, y1=_n(base), x2=x, y2=_n(base + 4), class_="axis"))
        parts.append(tag("text", number_text(value), x=x, y=_n(base + 16), text_anchor="middle", class_="tick"))
    return parts


def _axis_label(text: str) -> Markup:
    return tag("text", text, x=_n((LEFT + WIDTH - RIGHT) / 2), y=_n(HEIGHT - 5), text_anchor="middle", class_="tick label")


def _curve(one: Series, number: int, x_axis: Axis, y_axis: Axis, percent: bool) -> Markup:
    places = [(_n(x_axis.place(x)), _n(y_axis.place(y))) for x, y in one.points]
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    parts = [tag("path", d=path, class_=f"line l{number % STYLES}")] if len(places) > 1 else []
    if len(places) <= _MARKED_POINTS:
        for (x, y), (at, value) in zip(places, one.points, strict=True):
            text = f"{value:.1%}" if percent else number_text(value)
            hint = tag("title", f"{one.label}: {text} at {number_text(at)}")
            parts.append(tag("circle", hint, cx=x, cy=y, r=3, class_=f"dot f{number % STYLES}"))
    return tag("g", *parts)


def _svg(title: str, parts: Sequence[str]) -> Markup:
    return tag("svg", join(tuple(parts)), viewBox=f"0 0 {_n(WIDTH)} {_n(HEIGHT)}", role="img", aria_label=title, class_="chart")


def _n(value: float) -> str:
    """One decimal is below a pixel."""
    return f"{value:.1f}".removesuffix(".0")
