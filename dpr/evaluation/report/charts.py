"""The geometry of curves and bars for templates/figure.html: positions, tick labels and hints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEFT, RIGHT, TOP, BASE = 52.0, 406.0, 10.0, 198.0
_MOST_POINTS = 240

Point = tuple[float, float]
Chart = dict[str, Any]


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
        low, high, at = (
            math.log(number) if self.is_log else number for number in (self.low, self.high, value)
        )
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def line_chart(
    title: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    x_label: str = "step",
    percent: bool = False,
    from_zero: bool = False,
    log_x: bool = False,
    bands: Sequence[Mapping[float, Point]] = (),
) -> Chart:
    """Labelled curves over a common x; a curve of one point is a dot. Shares (``percent``) start at zero.
    ``bands``: the interval at each x, one mapping for each of ``series``."""
    with_bands = [(*one, bands[index] if bands else {}) for index, one in enumerate(series)]
    kept = [
        (label, found, band) for label, points, band in with_bands if (found := finite(points, log_x=log_x))
    ]
    drawn = [(label, points) for label, points, _ in kept]
    if not drawn:
        return {"title": title, "labels": []}
    ends = [(x, y) for _, points, band in kept for x, _ in points for y in band.get(x, ())]
    xs, ys = zip(*(point for _, points in drawn for point in points), *ends, strict=True)
    x_axis = _x_axis(min(xs), max(xs), log_x)
    is_whole_range = percent and max(ys) > 0.5 and min(ys) >= 0 and max(ys) <= 1
    y_ticks = (
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        if is_whole_range
        else nice_ticks([0.0, *ys] if percent or from_zero else ys)
    )
    y_axis = Axis(y_ticks[0], y_ticks[-1], BASE, TOP)

    def text(label: str, x: float, y: float) -> str:
        return f"{label}: {f'{y:.1%}' if percent else number_text(y)} at {number_text(x)}"

    return {
        "title": title,
        "labels": [label for label, _ in drawn],
        "groups": [],
        "x_label": x_label,
        "x_ticks": [
            (x_axis.place(x), number_text(x)) for x in (_log_ticks(x_axis) if log_x else _round_ticks(x_axis))
        ],
        "y_ticks": [(y_axis.place(y), f"{y * 100:.4g}%" if percent else number_text(y)) for y in y_ticks],
        "curves": [
            [{"x": x_axis.place(x), "y": y_axis.place(y), "text": text(label, x, y)} for x, y in points]
            for label, points in drawn
        ],
        "bands": [_outline(points, band, x_axis, y_axis) for _, points, band in kept],
    }


def _outline(points: Sequence[Point], band: Mapping[float, Point], x_axis: Axis, y_axis: Axis) -> list[Point]:
    """The corners of a band: its lower end from left to right, its upper end back."""
    ends = [(x, *band[x]) for x, _ in points if x in band]
    corners = [(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)]
    return [(x_axis.place(x), y_axis.place(y)) for x, y in corners] if len(ends) > 1 else []


def bar_chart(
    title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, x_label: str
) -> Chart:
    """Shares (0 to 1) as bars side by side: one bar of every series in each group."""
    ticks = nice_ticks([0.0, *(value for _, values in series for value in values)])
    axis = Axis(ticks[0], ticks[-1], BASE, TOP)
    room = (RIGHT - LEFT) / len(groups)
    width = room * 0.84 / len(series)
    drawn = []
    for place, group in enumerate(groups):
        start = LEFT + room * place
        bars = []
        for index, (label, values) in enumerate(series):
            y = axis.place(values[place])
            size = {"width": max(width - 1, 1), "height": max(BASE - y, 0)}
            bars.append(
                {
                    "x": start + room * 0.08 + width * index,
                    "y": y,
                    **size,
                    "text": f"{label}, {group}: {values[place]:.1%}",
                }
            )
        drawn.append({"name": group, "middle": start + room / 2, "bars": bars})
    y_ticks = [(axis.place(value), f"{value * 100:.4g}%") for value in ticks]
    return {
        "title": title,
        "labels": [label for label, _ in series],
        "x_label": x_label,
        "y_ticks": y_ticks,
        "groups": drawn,
    }


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
    """A number in as few characters as can be read: 12.3k, 0.042, 2e-05."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    if size < 1e-3 and size:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.4g}"


def place_text(value: float) -> str:
    """A place in a drawing; one decimal is below a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= rough * 0.999), power * 10)


def _x_axis(low: float, high: float, is_log: bool) -> Axis:
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 1, high + 1)
    elif not is_log and 0 < low < high / 4:
        low = 0.0
    return Axis(low, high, LEFT + 4, RIGHT - 4, is_log)


def _log_ticks(axis: Axis) -> list[float]:
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [value for value in ticks if axis.low * 0.999 <= value <= axis.high * 1.001]


def _round_ticks(axis: Axis) -> list[float]:
    step = max(_round_step((axis.high - axis.low) / 6), 1.0)
    first = math.ceil(axis.low / step - 1e-9)
    return [number * step for number in range(first, math.floor(axis.high / step + 1e-9) + 1)]
