"""Fixtures of the tests with browsers and other clients. `server` is that of the test's module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.interop.control import Control
from tests.interop_http.test_browser import never
from tests.kit.authority import Authority
from tests.kit.browser import Page, open_page
from tests.kit.server import ServerProcess


@pytest.fixture(scope="module")
def browser(server: ServerProcess) -> Iterator[Page]:
    """The console, open_page once for all tests of the module."""
    with open_page(f"{server.url}/console") as page:
        assert page.problems == []
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    browser.evaluate("location.hash = ''; window.isOld = true")
    browser.call("Page.reload")
    browser.wait_for("!window.isOld && document.querySelector('input[type=search]') !== null")
    browser.problems.clear()  # what the page did before it was loaded again is of the test before
    yield browser
    assert browser.problems == [], "the page may cause no error, and no refusal of its security policy"


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def pages() -> Iterator[Control]:
    """A server of pages of another origin."""
    with Control(never) as made:
        yield made
