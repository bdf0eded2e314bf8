"""The picture of a drill as a self-contained SVG: the latency of confirms, and a timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from curbstone.drill.load import Account

WIDTH, HEIGHT = 960, 620
LEFT, RIGHT = 70, 30
BINS_PER_DECADE = 8
COLUMNS = 120

_STYLE = """
 text { font: 13px system-ui, sans-serif; fill: #24323f } .big { font-size: 19px; font-weight: 600 }
 .small { font-size: 11px; fill: #5b6b78 } .axis { stroke: #9aa7b1 } .grid { stroke: #e4e9ed }
 .confirm { fill: #2f6fb0 } .sync { fill: none; stroke: #d9822b; stroke-width: 2 }
 .kill { stroke: #c0392b; stroke-width: 1.5 } .down { fill: #c0392b; opacity: .13 }
"""


def draw(account: Account, syncs_s: Sequence[float], verdict: str, facts: Sequence[str]) -> str:
    """Return the SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<style>{_STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 34, verdict, "big"),
        *[_text(LEFT, 58 + 17 * line, fact) for line, fact in enumerate(facts)],
        *_histogram([took for _, took in account.confirms], syncs_s, top=190, bottom=350),
        *_timeline(account, top=430, bottom=570),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'


def time_text(seconds: float) -> str:
    """Return a duration as text for people."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _shares(times_s: Sequence[float], low: int, high: int) -> list[float]:
    """Return the share of the times in each bin, from 10**`low` to 10**`high` seconds."""
    bins = [0] * ((high - low) * BINS_PER_DECADE)
    for took in times_s:
        place = int((math.log10(max(took, 1e-9)) - low) * BINS_PER_DECADE)
        bins[min(max(place, 0), len(bins) - 1)] += 1
    return [count / max(len(times_s), 1) for count in bins]


def _histogram(confirms_s: Sequence[float], syncs_s: Sequence[float], top: float, bottom: float) -> list[str]:
    everything = [*confirms_s, *syncs_s] or [1e-3]
    low = math.floor(math.log10(max(min(everything), 1e-7)))
    high = max(math.floor(math.log10(max(everything))) + 1, low + 1)
    confirm, sync = _shares(confirms_s, low, high), _shares(syncs_s, low, high)
    most = max([*confirm, *sync, 1e-9])
    width = (WIDTH - LEFT - RIGHT) / len(confirm)
    scale = (bottom - top) / most
    parts = [_text(LEFT, top - 12, "Latency of confirms (bars), and of a bare write and sync of 4 KiB (line)")]
    for place, share in enumerate(confirm):
        x, height = LEFT + place * width, share * scale
        parts.append(_bar(x + 1, bottom - height, width - 2, height, "confirm"))
    steps = " ".join(
        f"{LEFT + edge * width:.1f},{bottom - share * scale:.1f}"
        for place, share in enumerate(sync)
        for edge in (place, place + 1)
    )
    parts += [f'<polyline points="{steps}" class="sync"/>', _line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")]
    for power in range(low, high + 1):
        x = LEFT + (power - low) * BINS_PER_DECADE * width
        parts += [
            _line(x, bottom, x, bottom + 5, "axis"),
            _text(x, bottom + 19, time_text(10.0**power), "small", "middle"),
        ]
    parts += [_text(LEFT - 8, top + 5, f"{most:.0%}", "small", "end"), _text(LEFT - 8, bottom, "0", "small", "end")]
    return parts


def _timeline(account: Account, top: float, bottom: float) -> list[str]:
    end = max(
        [when for when, _ in account.confirms] + account.kills + [when + took for when, took in account.starts] + [1.0]
    )
    counts = [0] * COLUMNS
    for when, _ in account.confirms:
        counts[min(int(when / end * COLUMNS), COLUMNS - 1)] += 1
    most = max(counts) or 1
    span = WIDTH - LEFT - RIGHT
    width = span / COLUMNS
    parts = [_text(LEFT, top - 12, "Confirms per second; each red line is a kill -9, the band after it the restart")]
    for when, took in account.starts:
        parts.append(_bar(LEFT + when / end * span, top, max(took / end * span, 1), bottom - top, "down"))
    for place, count in enumerate(counts):
        height = count / most * (bottom - top)
        x = LEFT + place * width
        parts.append(_bar(x, bottom - height, width * 0.86, height, "confirm"))
    for when in account.kills:
        x = LEFT + when / end * span
        parts.append(_line(x, top - 4, x, bottom, "kill"))
    parts.append(_line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis"))
    for part in range(7):
        x = LEFT + part / 6 * span
        parts += [
            _line(x, bottom, x, bottom + 5, "axis"),
            _text(x, bottom + 19, f"{part / 6 * end:.0f} s", "small", "middle"),
        ]
    parts += [_text(LEFT - 8, top + 5, f"{most * COLUMNS / end:,.0f}", "small", "end")]
    return parts
