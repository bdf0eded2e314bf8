"""The report's page and its charts: what one minute and many look like. Needs no Java."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from curbstone.spark import charts
from curbstone.spark.charts import Series
from curbstone.spark.figures import Minute
from curbstone.spark.page import page

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def minute(number: int, latency_ms: float | None = None) -> Minute:
    when = START + timedelta(minutes=number)
    return Minute("shop", "<orders>", "", when, 5, 500, 1, 0, 0, 0, latency_ms, latency_ms, latency_ms, 4)


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
