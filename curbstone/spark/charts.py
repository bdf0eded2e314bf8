"""Charts as SVG: lines, areas and stacked bars over time. Pure: values in, text out.

A value belongs to an interval and not to a moment, so a line has a step for each value, and a single value is visible.
The page's style sheet sets the colours (classes `c0` to `c5`), so that a chart fits light and dark pages. Each point
shows its value on hover, by SVG's own <title>.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 10, 24


@dataclass(frozen=True)
class Series:
    """One line, area or stack of bars. It has a value for each of the chart's moments, None if there is no value."""

    name: str
    values: Sequence[float | None]
    colour: int


Format = Callable[[float], str]


def short(value: float) -> str:
    """Return a number in short form: 950, 1.2k, 3.4M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def milliseconds(value: float) -> str:
    """Return a duration in ms as text for people."""
    if value < 1000:
        return f"{value:.3g}\u00a0ms"
    if value < 120_000:
        return f"{value / 1000:.3g}\u00a0s"
    return f"{value / 60_000:.3g}\u00a0min" if value < 7_200_000 else f"{value / 3_600_000:.3g}\u00a0h"


def size(value: float) -> str:
    """Return a number of bytes as text for people."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.3g}\u00a0{unit}"
    return f"{value:.0f}\u00a0B"


def ticks(most: float, wanted: int = 4) -> list[float]:
    """Return round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    return [step * index for index in range(math.ceil(most / step * 0.999) + 1)]


def decades(values: Sequence[float]) -> list[float]:
    """Return the powers of ten that enclose the values above 0, at least two."""
    some = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(some))), math.ceil(math.log10(max(some)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


class _Frame:
    """The axes of a chart, and the place of a value between them. Moments are evenly spaced; a step begins at each."""

    def __init__(self, moments: Sequence[datetime], most: float, label: Format) -> None:
        self.moments = moments
        self._ticks = ticks(most)
        self._label = label
        self._days = (moments[-1] - moments[0]).days
        self._time = "%H:%M:%S" if moments[-1] - moments[0] < timedelta(minutes=10) else "%H:%M"
        self.step = (WIDTH - LEFT - RIGHT) / len(moments)

    def x(self, index: float) -> float:
        return LEFT + self.step * index

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self._ticks[-1])

    def axes(self, values: Sequence[float] | None = None) -> str:
        """Return the axes. With `values`, also add a logarithmic axis, which the page's script can show instead."""
        parts = []
        if values is not None:
            places = decades(values)
            share = (HEIGHT - TOP - BOTTOM) / (len(places) - 1)
            other = [(tick, HEIGHT - BOTTOM - share * index) for index, tick in enumerate(places)]
            parts.append(f'<g class="decades" data-low="{places[0]:g}" data-share="{share:g}" display="none">')
            parts += [self._tick(tick, y) for tick, y in other[:: 1 + len(places) // 8]]
            parts.append("</g>")
        parts.append(
            f'<g data-most="{self._ticks[-1]:g}">'
            + "".join(self._tick(tick, self.y(tick)) for tick in self._ticks)
            + "</g>"
        )
        for index in _marks(len(self.moments)):
            text = self.moments[index].strftime("%d %b %H:%M" if self._days >= 2 else self._time)
            x = max(self.x(index), LEFT + 16)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 7}" text-anchor="middle">{text}</text>')
        return "".join(parts)

    def _tick(self, value: float, y: float) -> str:
        return (
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{self._label(value)}</text>'
        )


def _marks(count: int) -> list[int]:
    wanted = min(count, 5)
    return sorted({round(index * (count - 1) / max(1, wanted - 1)) for index in range(wanted)})


def lines(moments: Sequence[datetime], series: Sequence[Series], label: Format, *, area: bool = False) -> str:
    """Return a chart of stepped lines. With `area`, the area below them is tinted."""
    values = [value for one in series for value in one.values if value is not None]
    frame = _Frame(moments, max(values, default=0.0), label)
    parts = [frame.axes(values)]
    drawn: dict[str, int] = {}
    """How often each line was drawn. Repeated lines are dashed, so that all are visible."""
    for one in series:
        numbers = ",".join(f"{value:.6g}" for value in one.values if value is not None)
        parts.append(f'<g class="series" data-v="{numbers}">')
        for stretch in _stretches(one.values):
            ends = [(at, frame.y(one.values[index] or 0.0)) for index in stretch for at in (index, index + 1)]
            points = [(frame.x(at), y) for at, y in ends]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            if area:
                base = frame.y(0)
                corners = f"{points[0][0]:.1f},{base:.1f} {path} {points[-1][0]:.1f},{base:.1f}"
                parts.append(f'<polygon class="area c{one.colour}" points="{corners}"/>')
            dashes = f' stroke-dasharray="6 {6 * drawn[path]}"' if path in drawn else ""
            drawn[path] = drawn.get(path, 0) + 1
            parts.append(f'<polyline class="line c{one.colour}"{dashes} points="{path}"/>')
        parts += [*_labels(frame, one, label), "</g>"]
    return _svg(parts, series)


def bars(moments: Sequence[datetime], series: Sequence[Series], label: Format) -> str:
    """Return a chart of stacked bars."""
    sums = [sum(one.values[index] or 0.0 for one in series) for index in range(len(moments))]
    frame = _Frame(moments, max(sums, default=0.0), label)
    width = max(1.0, min(40.0, 0.7 * frame.step))
    parts = [frame.axes()]
    for index in range(len(moments)):
        below = 0.0
        for one in series:
            value = one.values[index] or 0.0
            if value <= 0:
                continue
            top, bottom = frame.y(below + value), frame.y(below)
            x = frame.x(index + 0.5) - width / 2
            parts.append(
                f'<rect class="bar c{one.colour}" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}"'
                f' height="{max(0.5, bottom - top):.1f}">{_title(frame, one, index, label)}</rect>'
            )
            below += value
    return _svg(parts, series)


def spark(values: Sequence[float]) -> str:
    """Return a stepped line without axes, for a cell of a table."""
    most = max(values, default=0.0) or 1.0
    step = 118 / max(1, len(values))
    ends = [(at, value) for index, value in enumerate(values) for at in (index, index + 1)]
    points = " ".join(f"{1 + step * at:.1f},{23 - 20 * value / most:.1f}" for at, value in ends)
    return f'<svg class="spark" viewBox="0 0 120 26" role="img"><polyline class="line c0" points="{points}"/></svg>'


def _stretches(values: Sequence[float | None]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append(index)
    return [stretch for stretch in found if stretch]


def _labels(frame: _Frame, one: Series, label: Format) -> list[str]:
    """Return points that are visible on hover and show their value."""
    return [
        f'<circle class="dot c{one.colour}" cx="{frame.x(index + 0.5):.1f}" cy="{frame.y(value):.1f}" r="4">'
        f"{_title(frame, one, index, label)}</circle>"
        for index, value in enumerate(one.values)
        if value is not None
    ]


def _title(frame: _Frame, one: Series, index: int, label: Format) -> str:
    moment = frame.moments[index].strftime("%Y-%m-%d %H:%M:%S")
    return f"<title>{moment} UTC · {escape(one.name)}: {label(one.values[index] or 0.0)}</title>"


def _svg(parts: Sequence[str], series: Sequence[Series]) -> str:
    keys = "".join(f'<span class="key"><i class="c{one.colour}"></i>{escape(one.name)}</span>' for one in series)
    drawing = "".join(parts)
    names = escape(", ".join(one.name for one in series))
    return (
        f'<div class="keys">{keys}</div>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{names}">{drawing}</svg>'
    )
