"""The page of the API in headless Chromium: all of it is there, and a call can be tried from it, on any screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.browser import Page, open_page
from tests.kit.contract import CONTRACT, operations
from tests.kit.guarded_server import guarded_server
from tests.kit.server import ServerProcess

PAGE = "document.querySelector('rapi-doc').shadowRoot"
REQUEST = f"[...{PAGE}.querySelectorAll('api-request')].find(each => each.path === '/healthz')?.shadowRoot"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("docs") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Page]:
    """The page, loaded once on a phone at night, because a browser works on it for seconds."""
    with open_page(f"{server.url}/healthz") as page:
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        page.call("Page.navigate", url=f"{server.url}/docs")
        page.wait_for("document.querySelector('select')?.hidden === false")
        page.wait_for(f"{PAGE}.textContent.includes('Figures as JSON')")
        yield page


def test_docs_page_fits_a_phone_and_follows_the_color_scheme(docs: Page) -> None:
    """The licence was cut off at the left, there was no menu, and it was bright at night."""
    white = "getComputedStyle(document.querySelector('rapi-doc')).backgroundColor === 'rgb(255, 255, 255)'"
    docs.wait_for(f"{PAGE}.textContent.includes('License')")
    assert not docs.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert docs.evaluate(f"{PAGE}.querySelector('#api-info').getBoundingClientRect().left") >= 0
    assert not docs.evaluate(white)
    docs.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    docs.wait_for(white)
    docs.evaluate(
        "(menu => { menu.value = 'get-/healthz'; menu.dispatchEvent(new Event('change')) })"
        "(document.querySelector('select'))"
    )
    docs.wait_for(f"{PAGE}.getElementById('get-/healthz').getBoundingClientRect().top < innerHeight")
    assert docs.problems == []
    docs.call("Emulation.clearDeviceMetricsOverride")


def test_docs_page_has_every_call_and_can_try_one(docs: Page) -> None:
    text = docs.evaluate(f"{PAGE}.textContent")
    for _, _, operation in operations():
        assert operation["summary"] in text
    assert CONTRACT["info"]["version"] in text
    docs.evaluate("document.querySelector('rapi-doc').scrollToPath('get-/healthz')")
    docs.wait_for(f"{REQUEST}?.querySelector('.m-btn.primary') != null")
    docs.evaluate(f"{REQUEST}.querySelector('.m-btn.primary').click()")
    answered = "entry => entry.name.endsWith('/healthz') && entry.responseStatus === 200"
    docs.wait_for(f"performance.getEntriesByType('resource').some({answered})")
    assert docs.problems == []


def test_a_server_without_users_shows_no_warning_of_missing_credentials(docs: Page) -> None:
    """It said "No API key applied" and "Required (None Applied)" in red."""
    text = docs.evaluate(f"{PAGE}.textContent")
    assert "AUTHENTICATION" not in text and "Applied" not in text and "HTTP Bearer" not in text


def test_a_server_with_users_asks_for_credentials(tmp_path: Path) -> None:
    with (
        guarded_server(tmp_path, '[users.root]\ngrants = ["admin server"]\n') as it,
        open_page(f"{it.server.url}/docs") as page,
    ):
        page.wait_for(f"{PAGE}.textContent.includes('AUTHENTICATION')")
