"""The report's page: one HTML file with its style and its charts in it, and nothing that it loads from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import groupby
from pathlib import Path

from curbstone.spark import charts
from curbstone.spark.charts import Series
from curbstone.spark.figures import Minute

POINTS_MAX = 200
STEPS_MIN = (1, 5, 15, 60, 180, 720, 1440, 10_080)
"""Minutes that one point of a chart may stand for."""

_STYLE = Path(__file__).with_name("report.css")


def page(minutes: Sequence[Minute], title: str, made: datetime) -> str:
    """Return the page; `minutes` are in the order of project, queue, group and time."""
    places = [list(rows) for _, rows in groupby(minutes, lambda row: (row.project, row.queue, row.group))]
    body = [f"<h1>{escape(title)}</h1>", f'<p class="note">{_when(minutes, made)}</p>']
    if places:
        body += [_overview(places), *(_section(rows, number) for number, rows in enumerate(places))]
    else:
        body.append('<p class="card empty">Nothing happened in these queues as far as the journal goes back.</p>')
    body.append(f"<footer>{_EXPLAINED}</footer>")
    style = _STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


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


def _overview(places: Sequence[Sequence[Minute]]) -> str:
    rows = []
    for number, minutes in enumerate(places):
        group = f" · group {escape(minutes[0].group)}" if minutes[0].group else ""
        cells = [
            f'<a href="#q{number}">{_name(minutes[0])}{group}</a>',
            charts.spark([float(sum(row.published for row in rows)) for rows in _points(minutes)[2]]),
            *(f"{sum(getattr(row, name) for row in minutes):,}" for name in ("published", "settled", "retried")),
            f"{sum(row.rejected + row.expired for row in minutes):,}",
            _worst(minutes, "p99_ms"),
            f"{minutes[-1].backlog:,}",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = (
        "queue",
        "published over time",
        "in all",
        "settled",
        "retried",
        "rejected, expired",
        "worst p99",
        "backlog",
    )
    head = "".join(f"<th>{text}</th>" for text in heads)
    return f'<div class="card scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


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
        f'<h2 id="q{number}">{_name(minutes[0])} <small>{reader}</small></h2><div class="tiles">{shown}</div>'
        f'<div class="charts">{"".join(_charts(minutes))}</div>'
    )


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
    trouble = [Series(name, total(name), colour) for name, colour in (("retried", 2), ("rejected", 3), ("expired", 4))]
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
