"""The figures in a page."""

from pathlib import Path

import pytest

from bench import page
from bench.wire import BenchError
from tests.bench.test_charts import results


def test_figures_come_between_the_marks_and_replace_those_of_before(tmp_path: Path) -> None:
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


def test_a_page_without_marks_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "PAGE.md"
    path.write_text("nothing here")
    with pytest.raises(BenchError, match="no place for figures"):
        page.fill(path, results(), [])
    assert path.read_text() == "nothing here"
