"""Charts as small SVG files, drawn without a library: bars for comparison with peers, lines for growth."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from bench.results import Results, Row

OURS = "Curbstone"
COLORS = [
    *("#0b6e4f", "#4c78a8", "#e08e45", "#b55a7a", "#7a6fb0", "#8c8c8c"),
    *("#c2a83e", "#5ba3a3", "#9c5c3c", "#d3a4c0", "#3d3d5c", "#a9c46c"),
]
WIDTH = 920
LABEL_WIDTH = 290
BAR = 14
TITLE_HEIGHT = 46
STYLE = "font-family:system-ui,sans-serif;font-size:12px;fill:#333"


@dataclass(frozen=True, slots=True)
class Group:
    """The bars of one workload: (whose, value)."""

    label: str
    bars: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """One line."""

    name: str
    values: Sequence[float]


def draw(folder: Path, results: Results) -> list[Path]:
    """Write the charts of the available figures, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, str] = {}
    for size in dict.fromkeys(row.size for pairing in results.peers for row in pairing.theirs):
        made[f"rates-{size}"] = bars(f"Messages a second, {size} bytes, log scale", rates(results, size), "{:,.0f}")
        made[f"cpu-{size}"] = bars(
            f"Server CPU, µs a message, {size} bytes, log scale", costs(results, size), "{:,.1f}"
        )
    if results.scaling and len(results.scaling.depths) > 1:
        depths = results.scaling.depths
        made["backlog"] = lines(
            "Messages a second by messages already queued",
            [f"{one.queued:,}" for one in depths],
            [
                Series("send, window 1000", [one.sent_per_s for one in depths]),
                Series("drain, ack each", [one.drained_per_s for one in depths]),
            ],
        )
        made["memory"] = lines(
            "Memory in MB by messages queued",
            [f"{one.queued:,}" for one in depths],
            [
                Series("after filling", [one.rss_mb for one in depths]),
                Series("after a restart", [one.restart_rss_mb for one in depths]),
            ],
        )
        restarts = [one.restart_s for one in depths]
        title = "Seconds from kill -9 until it accepts, by messages queued"
        made["restart"] = lines(title, [f"{one.queued:,}" for one in depths], [Series("restart", restarts)])
    if results.scaling and len(results.scaling.churn) > 1:
        churn = results.scaling.churn
        mib = results.scaling.churn_cap >> 20
        title = f"Messages through a {mib} MiB queue in each second, with compaction"
        made["churn"] = lines(title, [str(second) for second in range(len(churn))], [Series("through", churn)])
    if by_queues := queues(results.rows):
        made["queues"] = lines("Messages a second by number of queues", ["1", "10", "100", "1000"], by_queues)
    paths = []
    for name, text in made.items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def rates(results: Results, size: int) -> list[Group]:
    return _groups(results, size, lambda row: row.per_s)


def costs(results: Results, size: int) -> list[Group]:
    return _groups(results, size, lambda row: row.server_cpu_us)


def _groups(results: Results, size: int, value: Callable[[Row], float]) -> list[Group]:
    """Return the bars by workload: ours, which is the median of our runs with the peers, then each peer's."""
    workloads = dict.fromkeys(row.workload for pairing in results.peers for row in pairing.theirs)
    groups = []
    for workload in workloads:
        pairs = [
            (pairing.name, ours, theirs)
            for pairing in results.peers
            for ours, theirs in pairing.pairs()
            if (ours.workload, ours.size) == (workload, size)
        ]
        if pairs:
            ours = sorted(value(ours) for _, ours, _ in pairs)
            bars_ = [(OURS, ours[len(ours) // 2]), *[(name, value(theirs)) for name, _, theirs in pairs]]
            groups.append(Group(workload, bars_))
    return groups


def queues(rows: Iterable[Row]) -> list[Series]:
    """Return the lines over 1, 10, 100 and 1000 queues; nothing if a measurement is missing."""
    found = {row.workload: row.per_s for row in rows if row.size == 100}
    lines_ = {
        "send, window 1000": ["send-1000", "queues-10", "queues-100", "queues-1000"],
        "drain, ack each": ["drain", "queues-10-drain", "queues-100-drain", "queues-1000-drain"],
    }
    whole = {name: [found.get(one, 0) for one in names] for name, names in lines_.items()}
    return [Series(name, values) for name, values in whole.items() if all(values)]


def bars(title: str, groups: Sequence[Group], form: str) -> str:
    """Return a chart of horizontal bars on a logarithmic scale, each with its value."""
    names = list(dict.fromkeys(name for group in groups for name, _ in group.bars))
    colors = {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}
    values = [value for group in groups for _, value in group.bars if value > 0]
    low = math.log10(min(values, default=1)) - 0.3
    span = max(math.log10(max(values, default=10)) - low, 0.1)
    room = WIDTH - LABEL_WIDTH - 90
    parts, y = [], TITLE_HEIGHT
    for group in groups:
        parts.append(_text(8, y + BAR - 2, group.label, bold=True))
        y += BAR + 4
        for name, value in group.bars:
            length = max(1.0, (math.log10(value) - low) / span * room) if value > 0 else 1.0
            parts.append(_text(LABEL_WIDTH - 6, y + BAR - 3, name, anchor="end", bold=name == OURS))
            parts.append(
                f'<rect x="{LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{colors[name]}"/>'
            )
            parts.append(_text(LABEL_WIDTH + length + 5, y + BAR - 3, form.format(value)))
            y += BAR
        y += 10
    return _svg(title, parts, y)


def lines(title: str, places: Sequence[str], series: Sequence[Series]) -> str:
    """Return a chart of lines over evenly spaced places, with an axis from zero."""
    height, left, top = 220, 80, TITLE_HEIGHT + 10
    most = max((value for one in series for value in one.values), default=1) or 1
    step = (WIDTH - left - 40) / max(len(places) - 1, 1)
    parts = []
    for quarter in range(5):
        y = top + height - height * quarter / 4
        parts.append(f'<line x1="{left}" x2="{WIDTH - 40}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(left - 6, y + 4, f"{most * quarter / 4:,.{0 if most >= 100 else 2}f}", anchor="end"))
    every = math.ceil(len(places) / 16)
    for index, place in enumerate(places):
        if index % every == 0:
            parts.append(_text(left + index * step, top + height + 18, place, anchor="middle"))
    for index, one in enumerate(series):
        points = [(left + at * step, top + height - height * value / most) for at, value in enumerate(one.values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        color = COLORS[index % len(COLORS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        parts.append(_bar(left + index * 180, top + height + 32, 10, 10, color))
        parts.append(_text(left + index * 180 + 15, top + height + 41, one.name))
    return _svg(title, parts, top + height + 56)


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" fill="{color}"/>'


def _svg(title: str, parts: Sequence[str], height: float) -> str:
    size = f'width="{WIDTH}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{STYLE}" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="8" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )
