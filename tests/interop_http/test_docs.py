"""The page of the contract in headless Chromium: all of it is there, and a call can be tried from it."""

from __future__ import annotations

from pathlib import Path

from tests.interop_http.browser import opened
from tests.openapi.test_contract import CONTRACT, operations
from tests.server import ServerProcess

PAGE = "document.querySelector('rapi-doc').shadowRoot"
REQUEST = f"[...{PAGE}.querySelectorAll('api-request')].find(each => each.path === '/healthz')?.shadowRoot"


def test_every_call_is_on_it_and_one_is_tried(server: ServerProcess, tmp_path: Path) -> None:
    with opened(f"{server.url}/docs", tmp_path / "profile") as page:
        page.until(f"{PAGE}.textContent.includes('Figures as JSON')")
        text = page.evaluate(f"{PAGE}.textContent")
        for _, _, operation in operations():
            assert operation["summary"] in text
        assert CONTRACT["info"]["version"] in text
        page.evaluate("document.querySelector('rapi-doc').scrollToPath('get-/healthz')")
        page.until(f"{REQUEST}?.querySelector('.m-btn.primary') != null")
        page.evaluate(f"{REQUEST}.querySelector('.m-btn.primary').click()")
        answered = "entry => entry.name.endsWith('/healthz') && entry.responseStatus === 200"
        page.until(f"performance.getEntriesByType('resource').some({answered})")
        assert page.problems == []
