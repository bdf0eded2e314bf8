"""The figures in a page."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench import page
from bench.check import Tally
from bench.disk import Limit
from bench.results import Pairing, Row
from bench.spark_figures import ALONE, APART, Beside, Run, SparkFigures
from bench.stats import Percentiles
from bench.wire import BenchError
from tests.bench.test_charts import results


def test_figures_between_the_marks_are_replaced(tmp_path: Path) -> None:
    chart = tmp_path / "img" / "rates-100.svg"
    path = tmp_path / "PAGE.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    for _ in range(2):
        page.fill(path, results(), [chart])
    text = path.read_text()
    assert text.startswith(f"before\n{page.BEGIN}\n") and text.endswith(f"{page.END}\nafter\n")
    assert "old" not in text and text.count("### Beside others") == 1
    assert "![rates-100](img/rates-100.svg)" in text
    # Twice as fast, and as cheap.
    assert "| send-1 | 100 | 2.00 / 1.0 |" in text
    assert "Versions: Peer 1.2, client 3.4." in text


def test_latencies_are_listed_below_the_disk_in_order(tmp_path: Path) -> None:
    def row(workload: str, p50_ms: float, tally: Tally) -> Row:
        confirms = Percentiles(p50_ms, 2 * p50_ms, 0.0)
        return replace(found.rows[0], workload=workload, confirms=confirms, tally=tally)

    def limit(batch: int, p50_ms: float) -> Limit:
        return Limit(100, batch, True, 1.0, 1.0, Percentiles(p50_ms, 1.0, 1.0), 0.0)

    found = results()
    found.limits = [limit(1, 0.2), limit(1, 0.1), limit(16, 0.05)]
    found.rows = [row("send-1", 0.3, Tally(1)), row("send-100", 0.7, Tally(1))]
    lossy = Pairing("lossy", "", "", [row("send-1", 0.01, Tally(1, lost=1))], [])
    found.peers = [Pairing("slow", "", "", [row("send-1", 0.4, Tally(1))], []), lossy]
    text = page.figures(found, [], tmp_path)
    table = text.partition("### One message at a time")[2].partition("###")[0]
    assert [line for line in table.splitlines() if line.startswith("|")][2:] == [
        "| the bare disk | 0.10 | 1.00 | 1.0 |",
        "| Curbstone | 0.30 | 0.60 | 3.0 |",
        "| slow | 0.40 | 0.80 | 4.0 |",
    ]


def test_page_without_marks_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "PAGE.md"
    path.write_text("nothing here")
    with pytest.raises(BenchError, match="no place for figures"):
        page.fill(path, results(), [])
    assert path.read_text() == "nothing here"


def test_spark_row_has_memory_and_consumer_rates(tmp_path: Path) -> None:
    runs = [Run("read", 1000, seconds, 0.002, 0.001, 0.0, 50_000_000, 60_000_000, 55_000_000) for seconds in (1, 2, 4)]
    rates = {ALONE: 1000.0, APART: 800.0, "a read": 600.0}
    beside = [Beside(load, rate, 10.0, 1.0, 0.5, 0.25, Tally(100)) for load, rate in rates.items()]
    found = results()
    found.spark = SparkFigures(1000, runs, beside)
    text = page.figures(found, [], tmp_path)
    assert "| read | 500 | 250 – 1,000 | 2.00 | 1.00 | 50 | 60 | 55 | 0% |" in text
    assert "| a read | 600 | 60% | 75% | 1.00 | 0.50 | 10.0 | 0.25 |" in text
    assert found.tally.received == found.spark.tally.received + sum(row.tally.received for row in found.rows) + 200


def test_lost_message_beside_spark_is_not_clean() -> None:
    found = results()
    assert found.clean
    found.spark = SparkFigures(1, [], [Beside(ALONE, 1.0, 1.0, 0.0, 0.5, 0.0, Tally(99, lost=1))])
    assert not found.clean
