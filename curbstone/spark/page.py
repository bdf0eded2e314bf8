"""The report's page: one self-contained HTML file with its style and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from curbstone.spark import charts
from curbstone.spark.charts import Series
from curbstone.spark.dead_letters import KINDS_MAX, DeadLetters, Sample
from curbstone.spark.figures import Minute
from curbstone.spark.gaps import Gap

POINTS_MAX = 120
STEPS_S = (1, 5, 10, 30, 60, 300, 900, 3600, 10_800, 21_600, 43_200, 86_400, 604_800)
"""The possible intervals, in seconds, of one point of a chart."""
SPARK_POINTS = 40
COMPARED = 6
"""The most queues and groups in one chart, which is the number of colours."""
ROWS_MAX = 500
"""The most queues and groups in the overview, which are those with most messages."""
BYTES_MAX = 1_900_000
"""The limit for the charts of single queues, so that the page opens quickly."""

_STYLE, _SCRIPT = (Path(__file__).with_name(f"report.{kind}") for kind in ("css", "js"))


Cell = str | tuple[str, float]
"""A cell as HTML. A cell with a number also has the number to sort by."""


def page(
    minutes: Sequence[Minute],
    title: str,
    made: datetime,
    gaps: Sequence[Gap] = (),
    dead: Sequence[DeadLetters] = (),
    before: Sequence[Minute] | None = None,
    *,
    step_s: int = 60,
    console: str = "",
) -> str:
    """Return the page. `minutes` are in the order of project, queue, group and time; `gaps` are those of the lake.

    Each of them covers `step_s` seconds. `console` is the address of the server's console, "" if unknown. `before` has
    the minutes of the equally long preceding range, for comparison; None without such a range.
    """
    places = [list(rows) for _, rows in groupby(minutes, _key)]
    body = [f"<h1>{escape(title)}</h1>", f'<p class="note">{_when(minutes, made)}</p>']
    if places or gaps:
        body.append(_losses(places, gaps))
    if dead:
        body.append(_dead_letters(dead, console))
    if places:
        busiest = sorted(places, key=lambda rows: -sum(row.published + row.settled for row in rows))
        compared = _compared(busiest[:COMPARED], step_s)
        taken = len(_overview(busiest, len(busiest), before, step_s)) + len(compared) + sum(map(len, body))
        sections = _within((_section(rows, place, step_s) for place, rows in enumerate(busiest)), BYTES_MAX - taken)
        body += [_TOOLS, _overview(busiest, len(sections), before, step_s), compared, *sections]
    else:
        body.append('<p class="card empty">The journal has no events of these queues.</p>')
    body.append(f"<footer>{_EXPLAINED}</footer>")
    style, script = (file.read_text(encoding="utf-8") for file in (_STYLE, _SCRIPT))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{''.join(body)}</main><script>{script}</script></body></html>\n"
    )


def _within(sections: Iterable[str], bytes_max: int) -> list[str]:
    """Return as many sections as fit, but at least one."""
    found: list[str] = []
    size = 0
    for section in sections:
        size += len(section)
        if found and size > bytes_max:
            break
        found.append(section)
    return found


LOSSES = ("skipped", "purged", "rejected", "expired")


def _key(row: Minute) -> tuple[str, str, str]:
    return row.project, row.queue, row.group


def _place(row: Minute) -> str:
    return _name(row) + (f" · group {escape(row.group)}" if row.group else "")


def _losses(places: Sequence[Sequence[Minute]], gaps: Sequence[Gap]) -> str:
    """Return the section on messages that never reached a consumer, or the lake. It is first, as the most important."""
    rows = []
    for minutes in places:
        counts = [sum(getattr(row, name) for row in minutes) for name in LOSSES]
        if any(counts):
            rows.append((sum(counts), [_place(minutes[0]), *(number(count, "–") for count in counts)]))
    parts = []
    if rows:
        rows.sort(key=lambda row: -row[0])
        heads = ("queue", "dropped while full", "purged", "rejected, dead letters", "expired")
        parts.append(table(heads, [cells for _, cells in rows[:ROWS_MAX]]))
    if gaps:
        listed = "".join(f"<li>{escape(str(gap))}</li>" for gap in gaps[:ROWS_MAX])
        parts.append(f"<h3>Not in the lake: lost before they could be archived</h3><ul>{listed}</ul>")
    content = "".join(parts) or '<p class="empty">Nothing was lost, purged, rejected or expired.</p>'
    return f'<h2>Losses</h2><div class="card scroll">{content}</div>'


_TOOLS = (
    '<div class="tools" hidden><input type="search" placeholder="only queues whose names contain this">'
    '<label><input type="checkbox"> logarithmic scale</label></div>'
)


def _dead_letters(dead: Sequence[DeadLetters], console: str) -> str:
    """Return the section on dead letters: the reasons, each with its last examples."""
    rows: list[list[Cell]] = []
    for one in dead:
        shown = "".join(
            f"<p>{_linked(sample, console)}, tries: {escape(sample.tries or '0')}</p><pre>{escape(sample.body)}</pre>"
            for sample in one.samples
        )
        when = (f"{one.last:%Y-%m-%d %H:%M:%S}", one.last.timestamp())
        why = f'<span class="why">{escape(one.error) or "–"}</span>'
        samples = f"<details><summary>the last {len(one.samples)}</summary>{shown}</details>"
        rows.append([escape(one.queue), escape(one.reason), why, number(one.count), when, samples])
    note = f'<p class="note">the {KINDS_MAX} most frequent kinds</p>' if len(dead) == KINDS_MAX else ""
    heads = ("queue", "reason", "error", "messages", "last (UTC)", "samples")
    return f'<h2>Dead letters</h2>{note}<div class="card scroll">{table(heads, rows)}</div>'


def _linked(sample: Sample, console: str) -> str:
    """Return the id of a message, as a link to its dead letter in the console if the console is known."""
    if not (console and sample.place):
        return escape(sample.message_id)
    project, _, queue = sample.place.partition("/")
    where = f"{console}#{quote(project)}/{quote(queue, safe='')}?{quote(sample.message_id, safe='')}"
    return f'<a href="{escape(where)}">{escape(sample.message_id)}</a>'


_EXPLAINED = (
    "Times are UTC. Latency is the time from publish to settle; p95 means that 95 of 100 messages took no longer."
    " The backlog is the number of messages published and not yet settled, rejected, expired, purged or dropped. A"
    " point for several intervals shows the sum of counts, the worst latency, and the last backlog. The latency of a"
    " named group excludes messages published before the group first settled a message."
)


def _when(minutes: Sequence[Minute], made: datetime) -> str:
    text = f"made {made:%Y-%m-%d %H:%M} UTC"
    if not minutes:
        return text
    first, last = min(row.minute for row in minutes), max(row.minute for row in minutes)
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC · {text}"


def _name(row: Minute) -> str:
    return f"{escape(row.project)}/{escape(row.queue)}"


def _overview(places: Sequence[Sequence[Minute]], drawn: int, before: Sequence[Minute] | None, step_s: int) -> str:
    earlier = {key: list(rows) for key, rows in groupby(before or (), _key)}

    def counted(minutes: Sequence[Minute], name: str) -> Cell:
        count = sum(getattr(row, name) for row in minutes)
        known = sum(getattr(row, name) for row in earlier.get(_key(minutes[0]), ())) if before is not None else None
        return number_with_change(count, known)

    rows = []
    for place, minutes in enumerate(places[:ROWS_MAX]):
        name = _place(minutes[0])
        published = _downsampled([float(sum(row.published for row in rows)) for rows in _points(minutes, step_s)[2]])
        cells: list[Cell] = [
            f'<a href="#q{place}">{name}</a>' if place < drawn else name,
            (charts.spark(published), max(published)),
            *(counted(minutes, name) for name in ("published", "settled", "retried")),
            (_worst(minutes, "p99_ms"), max((row.p99_ms or 0.0 for row in minutes), default=0.0)),
            number(minutes[-1].backlog),
        ]
        rows.append(cells)
    heads = ("queue", "published over time", "published", "settled", "retried", "worst p99", "backlog")
    notes = ["small: compared with the preceding range of the same length"] if before is not None else []
    if drawn < len(places):
        notes.append(f"charts of the {drawn:,} busiest")
    if len(places) > ROWS_MAX:
        notes.append(f"{len(places) - ROWS_MAX:,} more queues and groups are only in the Parquet file")
    shown = f'<p class="note">{"; ".join(notes)}</p>' if notes else ""
    return f'<h2>Queues</h2>{shown}<div class="card scroll">{table(heads, rows)}</div>'


def _downsampled(values: Sequence[float]) -> list[float]:
    """Return at most a limited number of values, each the sum of consecutive ones."""
    step = -(-len(values) // SPARK_POINTS)
    return [sum(values[at : at + step]) for at in range(0, len(values), step)]


def _worst(minutes: Sequence[Minute], name: str) -> str:
    values = [value for row in minutes if (value := getattr(row, name)) is not None]
    return charts.milliseconds(max(values)) if values else "–"


def _compared(places: Sequence[Sequence[Minute]], step_s: int) -> str:
    """Return charts that compare several queues and groups; "" for only one."""
    if len(places) < 2:
        return ""
    within = [row for minutes in places for row in (minutes[0], minutes[-1])]
    span = min(row.minute for row in within), max(row.minute for row in within)
    published, settled, latency, backlog = [], [], [], []
    for colour, minutes in enumerate(places):
        step, moments, points = _points(minutes, step_s, span)
        name = f"{minutes[0].project}/{minutes[0].queue}" + (f" · {minutes[0].group}" if minutes[0].group else "")
        published.append(Series(name, _total(points, "published"), colour))
        settled.append(Series(name, _total(points, "settled"), colour))
        latency.append(Series(name, _worst_of(points, "p95_ms"), colour))
        backlog.append(Series(name, _backlog(points), colour))
    cards = [
        _card(f"Published {_per(step)}", charts.lines(moments, published, charts.short)),
        _card(f"Settled {_per(step)}", charts.lines(moments, settled, charts.short)),
        _card("p95, publish to settle", _chart_or_text(latency, "Nothing was settled.", charts.milliseconds, moments)),
        _card("Backlog", charts.lines(moments, backlog, charts.short)),
    ]
    return f'<h2>The busiest compared</h2><div class="charts">{"".join(cards)}</div>'


def _total(points: Sequence[Sequence[Minute]], name: str) -> list[float | None]:
    return [float(sum(getattr(row, name) for row in rows)) for rows in points]


def _worst_of(points: Sequence[Sequence[Minute]], name: str) -> list[float | None]:
    found = [[value for row in rows if (value := getattr(row, name)) is not None] for rows in points]
    return [max(values) if values else None for values in found]


def _backlog(points: Sequence[Sequence[Minute]]) -> list[float | None]:
    backlog: list[float | None] = []
    for rows in points:
        backlog.append(float(rows[-1].backlog) if rows else (backlog[-1] if backlog else 0.0))
    return backlog


def _per(step_s: int) -> str:
    for unit_s, unit in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if step_s % unit_s == 0:
            count = step_s // unit_s
            return f"per {unit}" if count == 1 else f"per {count} {unit}s"
    raise AssertionError("not reached")


def step_of(range_s: float) -> int:
    """Return the interval of a point, in seconds, for a chart of this range."""
    return next((step for step in STEPS_S if range_s / step < POINTS_MAX), STEPS_S[-1])


def _section(minutes: Sequence[Minute], place: int, step_s: int) -> str:
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
        f'<h2 id="q{place}">{_name(minutes[0])} <small>{reader}</small></h2><div class="tiles">{shown}</div>'
        f'<div class="charts">{"".join(_charts(minutes, step_s))}</div></section>'
    )


TROUBLES = (("retried", 2), ("rejected", 3), ("expired", 4), ("purged", 5), ("skipped", 1))


def _charts(minutes: Sequence[Minute], step_s: int) -> list[str]:
    """Return the cards with the charts of one place."""
    step, moments, points = _points(minutes, step_s)
    per, backlog = _per(step), _backlog(points)
    flow = [Series(name, _total(points, name), colour) for colour, name in enumerate(("published", "settled"))]
    ranks = ((50, 1), (95, 2), (99, 3))
    latency = [Series(f"p{rank}", _worst_of(points, f"p{rank}_ms"), colour) for rank, colour in ranks]
    trouble = [Series(name, _total(points, name), colour) for name, colour in TROUBLES]
    cards = [
        _card(f"Messages {per}", charts.lines(moments, flow, charts.short, area=True)),
        _card(
            "Latency, publish to settle", _chart_or_text(latency, "Nothing was settled.", charts.milliseconds, moments)
        ),
        _card("Backlog", charts.lines(moments, [Series("waiting", backlog, 4)], charts.short, area=True)),
        _card(
            f"Bytes published {per}", charts.bars(moments, [Series("bodies", _total(points, "bytes"), 0)], charts.size)
        ),
    ]
    if any(value for one in trouble for value in one.values):
        cards.append(_card(f"Failures {per}", charts.bars(moments, trouble, charts.short)))
    return cards


def _chart_or_text(
    series: list[Series], otherwise: str, label: Callable[[float], str], moments: Sequence[datetime]
) -> str:
    if any(value is not None for one in series for value in one.values):
        return charts.lines(moments, series, label)
    return f'<p class="empty">{otherwise}</p>'


def _card(title: str, content: str) -> str:
    return f'<div class="card"><h3>{title}</h3>{content}</div>'


def _points(
    minutes: Sequence[Minute], step_s: int, within: tuple[datetime, datetime] | None = None
) -> tuple[int, list[datetime], list[list[Minute]]]:
    """Return the interval of a point in seconds, the moments of the points without gaps, and the rows of each point.

    Each row covers `step_s` seconds. The points reach from the first row to the last, or over the range `within`.
    """
    first, last = (_seconds(moment) for moment in within or (minutes[0].minute, minutes[-1].minute))
    step = max(step_s, step_of(last - first))
    start = first // step * step
    points: list[list[Minute]] = [[] for _ in range((last - start) // step + 1)]
    for row in minutes:
        points[(_seconds(row.minute) - start) // step].append(row)
    zero = datetime.fromtimestamp(start, UTC)
    return step, [zero + timedelta(seconds=step * index) for index in range(len(points))], points


def _seconds(moment: datetime) -> int:
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())


# --- tables; a click on a heading sorts them


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table. If the first cell of a row names a queue, the page's filter can hide the row.

    Numbers are right-aligned, text is left-aligned.
    """
    is_text = [all(isinstance(row[place], str) for row in rows) for place in range(len(heads))]
    head = "".join(
        f'<th class="text">{name}</th>' if text else f"<th>{name}</th>"
        for name, text in zip(heads, is_text, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, cells)) + "</tr>" for cells in rows)
    return f'<table class="sort"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(cell: Cell) -> str:
    return f"<td>{cell}</td>" if isinstance(cell, str) else f'<td data-v="{cell[1]:g}">{cell[0]}</td>'


def number(count: int, nothing: str = "0") -> Cell:
    return (f"{count:,}" if count else nothing, count)


def number_with_change(count: int, earlier: int | None) -> Cell:
    """Return a cell with a number and its difference from the `earlier` one, if any."""
    shown = f"{count:,}"
    if earlier is not None and count != earlier:
        change = f"{(count - earlier) / earlier:+.0%}" if earlier and count < 10 * earlier else f"from {earlier:,}"
        shown += f' <small class="{"up" if count > earlier else "down"}">{change}</small>'
    return shown, count
