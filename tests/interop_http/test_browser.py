"""A page in headless Chromium that publishes and consumes with acks, over WebSockets and server-sent events.

The page is of another origin than the server, as pages are; the server lists it.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.interop import control
from tests.interop.control import Control, chromium
from tests.kit.server import ServerProcess

PAGE = Path(__file__).with_name("page.html")


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(control.FILES, "/http.html", (PAGE, "text/html; charset=utf-8"))


def never() -> None:
    raise AssertionError("this page asks for no crash")


def test_a_page_publishes_and_consumes(tmp_path: Path) -> None:
    with Control(never) as pages, ServerProcess(tmp_path / "data", f"--cors-origin={pages.origin}") as server:
        url = f"{pages.origin}/http.html?url={quote(server.url, safe='')}"
        facts = pages.result(chromium(url, tmp_path / "profile"))
    bodies = facts["bodies"]
    assert "Chrome" in facts["agent"]
    assert facts["confirms"] == [""] * len(bodies)
    assert [got["body"] for got in facts["overSocket"]] == bodies
    assert [got["body"] for got in facts["overEvents"]] == bodies
    assert all(got["same"] for got in facts["overEvents"])
    assert {got["from"] for got in facts["overSocket"] + facts["overEvents"]} == {"page"}
    assert facts["popped"]["body"] == "last" and facts["popped"]["id"] and facts["popped"]["tries"] == "0"
    several = facts["several"]
    assert several["bodies"] == {"one": bodies, "two": bodies}
    assert several["published"] == ["one", "two"] * len(bodies)
    assert several["settled"] == [2 * len(bodies)]
    assert [(each["code"], each["subscribe"]) for each in several["refused"]] == [(404, "none")]
    assert (several["ended"]["unsubscribed"], several["ended"]["code"]) == ("one", 404)
    info = facts["info"]
    assert (info["rdy"], info["wip"], info["delayed"]) == (0, 0, 0)


def test_page_of_an_unlisted_origin_is_refused(tmp_path: Path) -> None:
    with Control(never) as pages, ServerProcess(tmp_path / "data") as server:
        url = f"{pages.origin}/http.html?url={quote(server.url, safe='')}"
        with pytest.raises(AssertionError, match="Failed to fetch"):
            pages.result(chromium(url, tmp_path / "profile"))
