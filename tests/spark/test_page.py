"""The report's page and its charts: what one minute and many look like. Needs no Java."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import which

import pytest

from curbstone.spark import charts
from curbstone.spark.charts import Series
from curbstone.spark.dead_letters import DeadLetters, Sample
from curbstone.spark.figures import Minute
from curbstone.spark.gaps import Gap
from curbstone.spark.page import page, step_of

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def minute(number: int, latency_ms: float | None = None) -> Minute:
    when = START + timedelta(minutes=number)
    return Minute("shop", "<orders>", "", when, 5, 500, 1, 0, 0, 0, 0, 0, latency_ms, latency_ms, latency_ms, 4)


def test_isolated_value_is_drawn_as_a_step() -> None:
    moments = [START + timedelta(minutes=number) for number in range(4)]
    drawn = charts.lines(moments, [Series("p50", [None, 5.0, None, 7.0], 0)], charts.milliseconds)
    lines = re.findall(r'<polyline[^>]* points="([^"]*)"', drawn)
    ends = [[float(point.partition(",")[0]) for point in line.split()] for line in lines]
    assert len(lines) == 2
    assert all(last - first == (charts.WIDTH - charts.LEFT - charts.RIGHT) / 4 for first, last in ends)


def test_page_of_one_minute_is_complete_and_names_are_escaped() -> None:
    made = page([minute(0, 12.0)], "Orders & more", START)
    assert "Orders &amp; more" in made
    assert "shop/&lt;orders&gt;" in made and "<orders>" not in made
    assert made.count("<svg") == made.count("</svg>") == 5 and "The busiest compared" not in made
    assert "2026-01-31 12:00 to 2026-01-31 12:00 UTC" in made


def test_minutes_without_events_are_drawn_too() -> None:
    made = page([minute(0), minute(9)], "", START)
    [small] = re.findall(r'<svg class="spark"[^>]*><polyline[^>]* points="([^"]*)"', made)
    assert len(small.split()) == 2 * 10
    assert "Nothing was settled." in made


def test_empty_page_is_reported() -> None:
    assert "The journal has no events" in page([], "", START)


def test_losses_are_shown_first() -> None:
    lost = replace(minute(0), skipped=3, purged=2000, rejected=1)
    gap = Gap("shop/<orders>", "e", 2, 9, None, 4, "the queue was deleted")
    made = page([minute(0), lost], "", START, [gap])
    first = made[made.index("<h2>Losses") : made.index("<h2>Queues")]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", first) == ["shop/&lt;orders&gt;", "3", "2,000", "1", "–"]
    count = "unknown, at least 4 and at most 7"
    assert f"shop/&lt;orders&gt;: messages lost from 2 to 8: {count} (the queue was deleted)" in first
    assert "Nothing was lost, purged, rejected or expired" in page([minute(0)], "", START)
    assert "messages lost" in page([], "", START, [gap])


def test_dead_letters_are_reported_by_reason_with_the_latest() -> None:
    dead = [DeadLetters("shop/<orders>", "rejected", "no <price>", 1200, START, (Sample("e-7", "3", "<b>body</b>"),))]
    made = page([minute(0)], "", START, dead=dead)
    reported = made[made.index("<h2>Dead letters") : made.index("<h2>Queues")]
    assert "shop/&lt;orders&gt;" in reported and "no &lt;price&gt;" in reported and ">1,200<" in reported
    assert "<p>e-7, tries: 3</p><pre>&lt;b&gt;body&lt;/b&gt;</pre>" in reported
    assert "Dead letters</h2>" not in page([minute(0)], "", START)


def test_dead_letter_links_to_the_console() -> None:
    sample = Sample("e-7", "3", "body", "shop/dead:a")
    dead = [DeadLetters("shop/a", "rejected", "", 1, START, (sample,))]
    made = page([minute(0)], "", START, dead=dead, console="http://h:1/console")
    assert '<a href="http://h:1/console#shop/dead%3Aa?e-7">e-7</a>' in made
    assert "href=" not in page([minute(0)], "", START, dead=dead).partition("<h2>Queues")[0]


def test_identical_series_are_both_visible() -> None:
    """One line lay under the other."""
    moments = [START + timedelta(minutes=number) for number in range(2)]
    same = [Series(name, [1.0, 2.0], colour) for colour, name in enumerate("abc")]
    drawn = charts.lines(moments, [*same, Series("d", [2.0, 2.0], 3)], charts.short)
    assert re.findall(r'<polyline class="line c(\d)"( stroke-dasharray="[^"]*")?', drawn) == [
        *(("0", ""), ("1", ' stroke-dasharray="6 6"'), ("2", ' stroke-dasharray="6 12"'), ("3", "")),
    ]


@pytest.mark.parametrize(
    ("range_s", "step_s", "shown"),
    [(59, 1, "per second"), (3600, 60, "per minute"), (1800, 30, "per 30 seconds"), (29 * 86400, 21600, "per 6 hours")],
)
def test_the_resolution_follows_the_range(range_s: int, step_s: int, shown: str) -> None:
    assert step_of(range_s) == step_s
    rows = [replace(minute(0), minute=START + timedelta(seconds=at)) for at in range(0, range_s + 1, step_s)]
    made = page(rows, "", START, step_s=step_s)
    assert f"Messages {shown}" in made
    assert max(len(points.split()) for points in re.findall(r'class="line c0" points="([^"]*)"', made)) <= 2 * 120


def test_range_is_compared_with_the_previous_one() -> None:
    before = [replace(minute(-9), published=4, settled=2), replace(minute(-8), published=4, settled=0)]
    made = page([minute(0), minute(1)], "", START, before=before)
    cells = re.findall(
        r'<td data-v="[^"]*">([^<]*(?:<small[^>]*>[^<]*</small>)?)</td>', made[made.index("<h2>Queues") :]
    )
    assert cells[:3] == ['10 <small class="up">+25%</small>', "2", "0"]
    assert '<small class="up">from 0</small>' in page([minute(0)], "", START, before=[])
    assert "the preceding range" not in page([minute(0)], "", START)


def test_page_of_very_many_queues_opens_quickly() -> None:
    """A day of 100 queues with two groups each was 24 MB."""
    rows = [
        replace(minute(number, 5.0 + number % 7), queue=f"q{queue:03d}", group=group, published=queue)
        for queue in range(240)
        for group in ("", "audit")
        for number in range(0, 1440, 12)
    ]
    samples = (Sample("e-7", "3", 300 * "x"),) * 3
    dead = [DeadLetters(f"shop/q{kind}", "rejected", 300 * "y", 1, START, samples) for kind in range(200)]
    made = page(rows, "", START, dead=dead, before=rows)
    assert len(made) < 2_000_000
    assert "charts of the" in made and ">shop/q000</td>" in made, "the quietest is in the table, without a link"
    assert made.index("shop/q239") < made.index("shop/q000")


CLICKS = """
function shown() {
  const rows = [...document.querySelectorAll("h2 + .card table tbody tr, h2 + .note + .card table tbody tr")];
  return rows.filter((row) => !row.hidden).map((row) => row.cells[0].textContent.split("/")[1]).join(" ");
}
const told = [shown()];
const buttons = document.querySelectorAll("th button");
for (const head of ["settled", "settled", "queue", "worst p99"]) {
  [...buttons].filter((button) => button.textContent === head).at(-1).click();
  told.push(shown());
}
const [box, logarithmic] = document.querySelectorAll(".tools input");
box.value = "Q1";
box.dispatchEvent(new Event("input"));
told.push(shown());
const sections = [...document.querySelectorAll("section")].filter((one) => !one.hidden);
told.push(sections.map((one) => one.dataset.queue).join(" "));
function drawn() {
  const shapes = [...document.querySelectorAll(".series polyline, .series polygon, .series circle")];
  return shapes.map((one) => (one.getAttribute("points") ?? one.getAttribute("cy")).split(/[ ,]/).map(Number));
}
const linear = drawn();
logarithmic.click();
const moved = drawn();
const p95 = [...document.querySelectorAll("h3")].find((one) => one.textContent.startsWith("p95")).parentElement;
told.push([...p95.querySelectorAll("g.decades text")].map((one) => one.textContent.replace("\u00a0", "")).join(" "));
told.push([...p95.querySelectorAll("circle")].map((one) => Math.round(one.getAttribute("cy"))).join(" "));
logarithmic.click();
const off = (shapes) => Math.max(...shapes.flat().map((number, at) => Math.abs(number - linear.flat()[at])));
told.push(`${off(moved) > 10} ${off(drawn()) < 0.2}`);
document.body.innerHTML = "<pre>" + told.join("|") + "</pre>";
"""


def test_tables_can_be_sorted_and_queues_hidden(tmp_path: Path) -> None:
    """In a real browser, which runs the page as it opens from a disk."""
    browser = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), "")
    if not browser:
        pytest.skip("there is no Chromium; `make test` brings it")
    rows = [
        replace(minute(number, latency), queue=f"q{queue}", published=published, settled=settled)
        for queue, (published, settled, latency) in {1: (30, 9, 5.0), 2: (20, 1000, 90.0), 10: (10, 20, 7000.0)}.items()
        for number in range(2)
    ]
    made = page(rows, "", START).replace("</body>", f"<script>{CLICKS}</script></body>")
    (tmp_path / "page.html").write_text(made, encoding="utf-8")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--dump-dom")
    done = subprocess.run(
        [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found = re.search(r"<pre>(.*)</pre>", done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    assert found[1].split("|") == [
        *("q2 q1 q10", "q2 q10 q1", "q1 q10 q2", "q1 q2 q10", "q10 q2 q1"),
        *("q10 q1", "shop/q1 shop/q10"),
        # 90, 5 and 7000 ms twice each, between 1 ms at the bottom (176) and 10 s at the top (10), 41.5 for a decade.
        *("1ms 10ms 100ms 1s 10s", "95 95 147 147 16 16", "true true"),
    ]
