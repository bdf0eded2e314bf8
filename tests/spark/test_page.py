"""The report's page and its charts: what one minute and many look like. Needs no Java."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from curbstone.spark import charts
from curbstone.spark.charts import Series
from curbstone.spark.figures import Minute
from curbstone.spark.gaps import Gap
from curbstone.spark.page import page

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def minute(number: int, latency_ms: float | None = None) -> Minute:
    when = START + timedelta(minutes=number)
    return Minute("shop", "<orders>", "", when, 5, 500, 1, 0, 0, 0, 0, 0, latency_ms, latency_ms, latency_ms, 4)


def test_a_value_that_stands_alone_is_seen_as_a_step_of_its_own() -> None:
    moments = [START + timedelta(minutes=number) for number in range(4)]
    drawn = charts.lines(moments, [Series("p50", [None, 5.0, None, 7.0], 0)], charts.milliseconds)
    lines = re.findall(r'<polyline[^>]* points="([^"]*)"', drawn)
    ends = [[float(point.partition(",")[0]) for point in line.split()] for line in lines]
    assert len(lines) == 2
    assert all(last - first == (charts.WIDTH - charts.LEFT - charts.RIGHT) / 4 for first, last in ends)


def test_a_page_of_one_minute_is_whole_and_names_are_text() -> None:
    made = page([minute(0, 12.0)], "Orders & more", START)
    assert "Orders &amp; more" in made
    assert "shop/&lt;orders&gt;" in made and "<orders>" not in made
    assert made.count("<svg") == made.count("</svg>") == 5
    assert "2026-01-31 12:00 to 2026-01-31 12:00 UTC" in made


def test_minutes_without_events_are_drawn_too() -> None:
    made = page([minute(0), minute(9)], "", START)
    [small] = re.findall(r'<svg class="spark"[^>]*><polyline[^>]* points="([^"]*)"', made)
    assert len(small.split()) == 2 * 10
    assert "Nothing was settled." in made


def test_a_page_of_nothing_says_so() -> None:
    assert "Nothing happened" in page([], "", START)


def test_what_was_lost_comes_first() -> None:
    lost = replace(minute(0), skipped=3, purged=2000, rejected=1)
    gap = Gap("shop/<orders>", "e", 2, 9, None, 4, "the queue was deleted")
    made = page([minute(0), lost], "", START, [gap])
    first = made[made.index("<h2>Losses") : made.index("<h2>Queues")]
    assert re.findall(r"<td>([^<]*)</td>", first) == ["shop/&lt;orders&gt;", "3", "2,000", "1", "–"]
    assert "shop/&lt;orders&gt;: messages lost from 2 to 8: unknown, at least 4 (the queue was deleted)" in first
    assert "Nothing was lost, purged, rejected or expired" in page([minute(0)], "", START)
    assert "messages lost" in page([], "", START, [gap])


def test_a_page_of_very_many_queues_opens_at_once() -> None:
    """A day of 100 queues with two groups each was 24 MB."""
    rows = [
        replace(minute(number, 5.0 + number % 7), queue=f"q{queue:03d}", group=group, published=queue)
        for queue in range(100)
        for group in ("", "audit")
        for number in range(0, 1440, 3)
    ]
    made = page(rows, "", START)
    assert len(made) < 2_000_000
    assert "charts of the" in made and ">shop/q000</td>" in made, "the quietest is in the table, without a link"
    assert made.index("shop/q099") < made.index("shop/q000")
