"""The charts of the console in headless Chromium begin with what the server has recorded; odd addresses."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.resources.test_stats_history import write_history
from tests.kit.browser import Page
from tests.kit.server import ServerProcess

POINTS = "[...document.querySelectorAll('{} svg.plot path:not(.grid)')].map(p => p.getAttribute('d').split('L').length)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("history") / "data"
    with ServerProcess(data) as process:
        httpx.put(f"{process.url}/v2/shop/queues/orders", json={}, trust_env=False).raise_for_status()
        process.kill()
        (directory,) = data.joinpath("queues").iterdir()
        write_history(data, directory.name, 300)
        process.restart()
        yield process


@pytest.mark.parametrize(("address", "charts"), [("", "#totals"), ("shop/orders", "#view")])
def test_charts_start_with_recorded_values(browser: Page, server: ServerProcess, address: str, charts: str) -> None:
    """They were empty after a reload."""
    browser.call("Page.navigate", url=f"{server.url}/healthz")
    browser.call("Page.navigate", url=f"{server.url}/console#{address}")
    points = POINTS.format(charts)
    for span, least in (("5 min", 100), ("1 h", 100), ("24 h", 25)):
        browser.wait_for(
            f"(b => b && (b.click(), true))([...document.querySelectorAll('{charts} .choice button')]"
            f".find(b => b.textContent === '{span}'))"
        )
        browser.wait_for(f"{points}.some(count => count > {least})")


def test_a_chart_has_no_gap_between_its_record_and_the_first_look(browser: Page, server: ServerProcess) -> None:
    """The time since the queue was last looked at was left empty behind the record, which has it."""
    browser.call("Page.setBypassCSP", enabled=True)  # it forbids a script to import one
    browser.call("Page.navigate", url=f"{server.url}/console")
    values = browser.evaluate("""
        import('./console/time_series.js').then(({ History }) => {
          const history = new History()
          const queues = new Map([['p/q', { messages_ready: 1, messages_published: 1 }]])
          const poll = at => history.add({ at, totals: {}, commits: new Map(), queues })
          poll(100)
          const known = history.of('p/q')
          known.series.ready.replace(0, [1, 1])
          known.recordedUntil = 159
          poll(160)
          return known.series.ready.values(0)
        })
    """)
    browser.call("Page.setBypassCSP", enabled=False)
    assert values == [1, 1, 1]


def test_list_charts_start_with_recorded_values(browser: Page, server: ServerProcess) -> None:
    browser.call("Page.navigate", url=f"{server.url}/healthz")
    browser.call("Page.navigate", url=f"{server.url}/console")
    browser.wait_for(
        "[...document.querySelectorAll('svg.spark path')].some(p => p.getAttribute('d').split('L').length > 100)"
    )


def test_logins_page_without_users(browser: Page, server: ServerProcess) -> None:
    """The page was empty."""
    browser.call("Page.navigate", url=f"{server.url}/console#~logins")
    browser.wait_for("document.querySelector('#logins .empty')?.textContent.includes('no users')")


@pytest.mark.parametrize("address", ["%", "shop/%E0%A4%A", "shop/a%20b"])
def test_invalid_page_address_is_handled(browser: Page, server: ServerProcess, address: str) -> None:
    browser.call("Page.navigate", url=f"{server.url}/healthz")
    browser.call("Page.navigate", url=f"{server.url}/console#{address}")
    browser.wait_for("document.querySelector('#view .bar h2') !== null")


def test_a_project_has_a_list_of_its_queues(browser: Page, server: ServerProcess) -> None:
    httpx.put(f"{server.url}/v2/other/queues/q", json={}, trust_env=False).raise_for_status()
    browser.evaluate("location.hash = '#other'")
    browser.wait_for("document.querySelector('.bar h2').textContent === 'Queues / 1 queue of other'")
    browser.wait_for("document.querySelector('tbody th')?.textContent === 'other/q'")
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 1
