"""The report's page: one HTML file with its style and its charts in it, and nothing that it loads from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import groupby
from pathlib import Path

from curbstone.spark import charts
from curbstone.spark.charts import Series
from curbstone.spark.figures import Minute
from curbstone.spark.gaps import Gap

POINTS_MAX = 120
STEPS_MIN = (1, 5, 15, 60, 180, 720, 1440, 10_080)
"""Minutes that one point of a chart may stand for."""
SPARK_POINTS = 40
ROWS_MAX = 500
"""Queues and groups in the overview: those with most messages."""
SECTIONS_BYTES_MAX = 1_500_000
"""Charts are drawn as long as they have room in a page that opens at once."""

_STYLE, _SCRIPT = (Path(__file__).with_name(f"report.{kind}") for kind in ("css", "js"))

Cell = str | tuple[str, float]
"""A cell of a table as HTML, with the number that it is sorted by where it is one."""


def page(minutes: Sequence[Minute], title: str, made: datetime, gaps: Sequence[Gap] = ()) -> str:
    """Return the page; `minutes` are in the order of project, queue, group and time, `gaps` those of the lake."""
    places = [list(rows) for _, rows in groupby(minutes, lambda row: (row.project, row.queue, row.group))]
    body = [f"<h1>{escape(title)}</h1>", f'<p class="note">{_when(minutes, made)}</p>']
    if places or gaps:
        body.append(_losses(places, gaps))
    if places:
        busiest = sorted(places, key=lambda rows: -sum(row.published + row.settled for row in rows))
        sections = _within(_section(rows, number) for number, rows in enumerate(busiest))
        body += [_SEARCH, _overview(busiest, len(sections)), *sections]
    else:
        body.append('<p class="card empty">Nothing happened in these queues as far as the journal goes back.</p>')
    body.append(f"<footer>{_EXPLAINED}</footer>")
    style, script = (file.read_text(encoding="utf-8") for file in (_STYLE, _SCRIPT))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{''.join(body)}</main><script>{script}</script></body></html>\n"
    )


def _within(sections: Iterable[str]) -> list[str]:
    """Return as many as there is room for, and one at least."""
    found: list[str] = []
    size = 0
    for section in sections:
        size += len(section)
        if found and size > SECTIONS_BYTES_MAX:
            break
        found.append(section)
    return found


LOSSES = ("skipped", "purged", "rejected", "expired")


def _place(row: Minute) -> str:
    return _name(row) + (f" · group {escape(row.group)}" if row.group else "")


def _losses(places: Sequence[Sequence[Minute]], gaps: Sequence[Gap]) -> str:
    """Return what never reached a consumer, or not the lake: what one looks for first."""
    rows = []
    for minutes in places:
        counts = [sum(getattr(row, name) for row in minutes) for name in LOSSES]
        if any(counts):
            rows.append((sum(counts), [_place(minutes[0]), *(_number(count, "–") for count in counts)]))
    parts = []
    if rows:
        rows.sort(key=lambda row: -row[0])
        heads = ("queue", "given up while full", "purged", "rejected, dead letters", "expired")
        parts.append(_table(heads, [cells for _, cells in rows[:ROWS_MAX]]))
    if gaps:
        listed = "".join(f"<li>{escape(str(gap))}</li>" for gap in gaps[:ROWS_MAX])
        parts.append(f"<h3>Not in the lake, for it was gone before it could be archived</h3><ul>{listed}</ul>")
    content = "".join(parts) or '<p class="empty">Nothing was lost, purged, rejected or expired.</p>'
    return f'<h2>Losses</h2><div class="card scroll">{content}</div>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table that a click on a heading sorts."""
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join("<tr>" + "".join(map(_cell, cells)) + "</tr>" for cells in rows)
    return f'<table class="sort"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(cell: Cell) -> str:
    return f"<td>{cell}</td>" if isinstance(cell, str) else f'<td data-v="{cell[1]:g}">{cell[0]}</td>'


def _number(count: int, nothing: str = "0") -> Cell:
    return (f"{count:,}" if count else nothing, count)


_SEARCH = '<input type="search" placeholder="only queues whose names have this in them" hidden>'


_EXPLAINED = (
    "Times are UTC. Latency is the time from publish to settle; p95 means that 95 of 100 messages took no longer."
    " The backlog is what was published and not yet settled, rejected, expired, purged or given up. A point that stands"
    " for several minutes shows the sum of counts, the worst of latencies, and the last backlog."
)


def _when(minutes: Sequence[Minute], made: datetime) -> str:
    text = f"made {made:%Y-%m-%d %H:%M} UTC"
    if not minutes:
        return text
    first, last = min(row.minute for row in minutes), max(row.minute for row in minutes)
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC · {text}"


def _name(row: Minute) -> str:
    return f"{escape(row.project)}/{escape(row.queue)}"


def _overview(places: Sequence[Sequence[Minute]], drawn: int) -> str:
    rows = []
    for number, minutes in enumerate(places[:ROWS_MAX]):
        name = _place(minutes[0])
        published = _thinned([float(sum(row.published for row in rows)) for rows in _points(minutes)[2]])
        cells: list[Cell] = [
            f'<a href="#q{number}">{name}</a>' if number < drawn else name,
            (charts.spark(published), max(published)),
            *(_number(sum(getattr(row, name) for row in minutes)) for name in ("published", "settled", "retried")),
            (_worst(minutes, "p99_ms"), max((row.p99_ms or 0.0 for row in minutes), default=0.0)),
            _number(minutes[-1].backlog),
        ]
        rows.append(cells)
    heads = ("queue", "published over time", "in all", "settled", "retried", "worst p99", "backlog")
    notes = [f"charts of the {drawn:,} busiest"] if drawn < len(places) else []
    if len(places) > ROWS_MAX:
        notes.append(f"{len(places) - ROWS_MAX:,} more queues and groups are only in the file of figures")
    shown = f'<p class="note">{"; ".join(notes)}</p>' if notes else ""
    return f'<h2>Queues</h2>{shown}<div class="card scroll">{_table(heads, rows)}</div>'


def _thinned(values: Sequence[float]) -> list[float]:
    """Return no more values, each the sum of some that follow each other."""
    step = -(-len(values) // SPARK_POINTS)
    return [sum(values[at : at + step]) for at in range(0, len(values), step)]


def _worst(minutes: Sequence[Minute], name: str) -> str:
    values = [value for row in minutes if (value := getattr(row, name)) is not None]
    return charts.milliseconds(max(values)) if values else "–"


def _section(minutes: Sequence[Minute], number: int) -> str:
    reader = f"group {escape(minutes[0].group)}" if minutes[0].group else "ordinary consumers"
    tiles = [
        (f"{sum(row.published for row in minutes):,}", "published"),
        (charts.size(sum(row.bytes for row in minutes)), "in bodies"),
        (f"{sum(row.settled for row in minutes):,}", "settled"),
        (f"{sum(row.retried for row in minutes):,}", "retried"),
        (f"{sum(row.rejected for row in minutes):,}", "rejected"),
        (f"{sum(row.expired for row in minutes):,}", "expired"),
        (_worst(minutes, "p99_ms"), "worst p99"),
        (f"{minutes[-1].backlog:,}", "backlog"),
    ]
    shown = "".join(f'<div class="card tile"><b>{value}</b><span>{name}</span></div>' for value, name in tiles)
    return (
        f'<section data-queue="{_name(minutes[0])}">'
        f'<h2 id="q{number}">{_name(minutes[0])} <small>{reader}</small></h2><div class="tiles">{shown}</div>'
        f'<div class="charts">{"".join(_charts(minutes))}</div></section>'
    )


TROUBLES = (("retried", 2), ("rejected", 3), ("expired", 4), ("purged", 5), ("skipped", 1))


def _charts(minutes: Sequence[Minute]) -> list[str]:
    """Return the cards with the charts of one place."""
    step, moments, points = _points(minutes)
    per = "per minute" if step == 1 else f"per {step} minutes"

    def total(name: str) -> list[float | None]:
        return [float(sum(getattr(row, name) for row in rows)) for rows in points]

    def worst(name: str) -> list[float | None]:
        found = [[value for row in rows if (value := getattr(row, name)) is not None] for rows in points]
        return [max(values) if values else None for values in found]

    backlog: list[float | None] = []
    for rows in points:
        backlog.append(float(rows[-1].backlog) if rows else (backlog[-1] if backlog else 0.0))
    flow = [Series("published", total("published"), 0), Series("settled", total("settled"), 1)]
    latency = [Series(f"p{rank}", worst(f"p{rank}_ms"), colour) for rank, colour in ((50, 1), (95, 2), (99, 3))]
    trouble = [Series(name, total(name), colour) for name, colour in TROUBLES]
    cards = [
        _card(f"Messages {per}", charts.lines(moments, flow, charts.short, area=True)),
        _card("Latency, publish to settle", _or(latency, "Nothing was settled.", charts.milliseconds, moments)),
        _card("Backlog", charts.lines(moments, [Series("waiting", backlog, 4)], charts.short, area=True)),
        _card(f"Bytes published {per}", charts.bars(moments, [Series("bodies", total("bytes"), 0)], charts.size)),
    ]
    if any(value for one in trouble for value in one.values):
        cards.append(_card(f"Trouble {per}", charts.bars(moments, trouble, charts.short)))
    return cards


def _or(series: list[Series], otherwise: str, label: Callable[[float], str], moments: Sequence[datetime]) -> str:
    if any(value is not None for one in series for value in one.values):
        return charts.lines(moments, series, label)
    return f'<p class="empty">{otherwise}</p>'


def _card(title: str, content: str) -> str:
    return f'<div class="card"><h3>{title}</h3>{content}</div>'


def _points(minutes: Sequence[Minute]) -> tuple[int, list[datetime], list[list[Minute]]]:
    """Return the minutes that a point stands for, the points' moments without gaps, and the rows of each."""
    first, last = minutes[0].minute, minutes[-1].minute
    span = int((last - first).total_seconds() // 60) + 1
    step = next((step for step in STEPS_MIN if span / step <= POINTS_MAX), STEPS_MIN[-1])
    start = int(first.replace(tzinfo=first.tzinfo or UTC).timestamp()) // 60 // step * step
    count = (int(last.replace(tzinfo=last.tzinfo or UTC).timestamp()) // 60 - start) // step + 1
    points: list[list[Minute]] = [[] for _ in range(count)]
    for row in minutes:
        at = int(row.minute.replace(tzinfo=row.minute.tzinfo or UTC).timestamp()) // 60
        points[(at - start) // step].append(row)
    zero = datetime.fromtimestamp(start * 60, UTC)
    return step, [zero + timedelta(minutes=step * index) for index in range(count)], points
