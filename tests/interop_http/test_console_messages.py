"""The console and single messages, those who hold them, many queues, and those who use it without a mouse."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.interop import control
from tests.interop_http.console import fill, noticed, open_queue, press
from tests.kit.browser import Page
from tests.kit.server import ServerProcess

AXE = control.MODULES / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("console") / "data", "--cap=256KiB") as process:
        yield process


def made(http: httpx.Client, project: str, queue: str, *bodies: str, **options: object) -> str:
    """Make a queue with messages; return its path."""
    path = f"/v2/{project}/queues/{queue}"
    http.put(path, json=options).raise_for_status()
    for body in bodies:
        http.post(f"{path}/messages", content=body, headers={"x-msg-x-from": "here"}).raise_for_status()
    return path


def rows_of(page: Page, region: str) -> list[list[str]]:
    cells = "[...tr.cells].map(cell => cell.innerText)"
    found: list[list[str]] = page.evaluate(
        f"[...document.querySelectorAll('[aria-label={json.dumps(region)}] tbody tr')].map(tr => {cells})"
    )
    return found


def test_message_can_be_moved_and_deleted(page: Page, http: httpx.Client) -> None:
    source, target = made(http, "one", "source", "moved", "deleted", "stays"), made(http, "one", "target")
    open_queue(page, "one/source")
    press(page, "Open")
    press(page, "Move one …")
    fill(page, "[name=to]", "target")
    press(page, "Move")
    noticed(page, " moved to target")
    reply = http.delete(f"{target}/messages")
    assert (reply.text, reply.headers["x-msg-x-from"]) == ("moved", "here")
    page.wait_for("document.activeElement.textContent === 'Refresh'")  # the keyboard continues from there
    press(page, "Open")
    press(page, "Delete one …")
    press(page, "Delete")
    noticed(page, " deleted")
    assert [each["message"] for each in http.get(f"{source}/messages").json()["messages"]] == ["stays"]


def test_dead_letter_can_be_moved_in_one_step(page: Page, http: httpx.Client) -> None:
    source = made(http, "dead", "source", "a", "b", dead_letter="letters")
    letters, other = made(http, "dead", "letters"), made(http, "dead", "other")
    leased = http.post(f"{source}/messages/lease", json={"count": 2}).json()["messages"]
    http.post(f"{source}/messages/nack", json={"ackIds": [each["ackId"] for each in leased], "reject": True})
    open_queue(page, "dead/letters")
    press(page, "Open")
    press(page, "Move one …")
    fill(page, "[name=to]", "other")
    press(page, "Move")
    noticed(page, " moved to other")
    assert (http.get(letters).json()["rdy"], http.get(other).json()["rdy"]) == (1, 1)


def test_message_history_is_shown(page: Page, http: httpx.Client) -> None:
    path = made(http, "life", "q", "x")
    leased = http.post(f"{path}/messages/lease", json={}).json()["messages"][0]
    nack = {"ackIds": [leased["ackId"]], "delay": 3600}
    http.post(f"{path}/messages/nack", json=nack).raise_for_status()
    open_queue(page, "life/q")
    press(page, "Open")
    press(page, "History")
    page.wait_for("document.querySelector('.life .now') !== null")
    steps = page.evaluate("[...document.querySelectorAll('.life li')].map(li => li.innerText)")
    assert "published" in steps[0] and "requeued, delivered once by then" in steps[1]
    assert "is delayed until" in steps[-1] and len(steps) == 3


def test_consumers_are_shown_with_held_messages(page: Page, http: httpx.Client) -> None:
    path = made(http, "held", "q", "a", "b", "c")
    http.post(f"{path}/messages/lease", json={"count": 2}).raise_for_status()
    open_queue(page, "held/q")
    page.wait_for("document.querySelector('.sentences li') !== null")
    page.wait_for("document.querySelectorAll('[aria-label=\"Consumers and leases\"] tbody tr').length === 1")
    (row,) = rows_of(page, "Consumers and leases")
    who, protocol, address, holds = row[0], row[2], row[3], row[6]
    assert (who, protocol, holds) == ("Leases 1", "HTTP", "2") and address.startswith("127.0.0.1:")
    assert "No consumer is connected." in page.evaluate("document.querySelector('.sentences').innerText")


def test_consumer_address_and_message_holder_are_shown(page: Page, server: ServerProcess, http: httpx.Client) -> None:
    made(http, "who", "q", "a", "b")
    with socket.create_connection(server.stomp, timeout=60) as stomp:
        stomp.sendall(
            b"CONNECT\naccept-version:1.2\nhost:x\nclient-id:billing\n\n\0"
            b"SUBSCRIBE\nid:s-1\ndestination:/queue/who/q\nack:client\nprefetch-count:1\n\n\0"
        )
        heard = b""
        while b"MESSAGE" not in heard:
            heard += stomp.recv(65536)
        open_queue(page, "who/q")
        page.wait_for("document.querySelectorAll('[aria-label=\"Consumers and leases\"] tbody tr').length === 1")
        (row,) = rows_of(page, "Consumers and leases")
        peer = "{}:{}".format(*stomp.getsockname())
        assert row[:5] == ["Consumer 1", "billing / s-1", "STOMP", peer, "–"]
        assert row[5:8] == ["–", "1", "1"] and row[8].startswith("20") and row[9:] == ["full", "–"]
        press(page, "Open")
        press(page, "History")
        now = page.wait_for("document.querySelector('.life .now')?.innerText")
        assert f"A consumer over STOMP (at {peer}, client billing, id s-1) has held it since 20" in now


def test_queue_list_is_paged(page: Page, http: httpx.Client) -> None:
    for number in range(103):
        made(http, "many", f"q{number:03}", *(["x"] if number == 57 else []))
    page.evaluate(
        "(field => { field.value = 'many/'; field.dispatchEvent(new Event('input')) })"
        "(document.querySelector('input[type=search]'))"
    )
    page.wait_for("document.querySelector('.pager span').textContent === '1 to 100 of 103'")
    page.wait_for("document.querySelectorAll('[aria-label=Queues] tbody tr').length === 100")
    press(page, "Next ›")
    page.wait_for("document.querySelector('[aria-label=Queues] tbody th').textContent === 'many/q100'")
    assert len(rows_of(page, "Queues")) == 3
    press(page, "Ready")
    page.wait_for("document.querySelector('[aria-label=Queues] tbody th').textContent === 'many/q057'")
    assert page.evaluate("document.querySelector('[aria-sort=descending]').innerText") == "Ready"


def test_focus_and_open_sections_survive_an_update(page: Page, http: httpx.Client) -> None:
    path = made(http, "focus", "q", "x")
    open_link = "[...document.querySelectorAll('a')].find(a => a.textContent === 'focus/q')"
    page.wait_for(f"!!{open_link}")
    page.evaluate(f"{open_link}.focus()")
    http.post(f"{path}/messages", content="y").raise_for_status()
    page.wait_for(f"{open_link}.closest('tr').cells[1].textContent === '2'")
    assert page.evaluate("document.activeElement.textContent") == "focus/q"
    page.evaluate("document.activeElement.click()")
    press(page, "Open")
    page.evaluate("document.querySelectorAll('#view [aria-pressed]')[1].click()")
    page.evaluate("document.querySelector('tr.opened pre').focus()")
    http.post(f"{path}/messages", content="z").raise_for_status()
    page.wait_for("document.querySelector('#view .cards strong').textContent === '3'")
    assert page.evaluate("document.activeElement.tagName") == "PRE"
    assert page.evaluate("document.querySelector('#view [aria-pressed=true]').textContent") == "1 h"


def flaws(page: Page) -> list[Any]:
    """Return what axe-core finds on the page as it is."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8") + "\n;0")
    found: list[Any] = page.evaluate(
        "axe.run(document).then(found => found.violations.map(each =>"
        " [each.id, each.nodes.map(node => node.html.slice(0, 200))]))"
    )
    return found


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_axe_reports_nothing_and_pages_fit_the_screen(page: Page, http: httpx.Client, scheme: str, width: int) -> None:
    path = made(http, "look", "source", *"abcd", dead_letter="letters", groups=["billing"])
    made(http, "look", "letters")
    lease = http.post(f"{path}/messages/lease", json={}).json()["messages"][0]
    http.post(f"{path}/messages/nack", json={"ackIds": [lease["ackId"]], "reject": True, "error": "no"})
    http.post(f"{path}/messages/lease", json={}).raise_for_status()
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    try:
        page.wait_for("[...document.querySelectorAll('a')].some(a => a.textContent === 'look/source')")
        is_too_wide = "document.documentElement.scrollWidth > innerWidth"
        assert flaws(page) == [] and not page.evaluate(is_too_wide)
        open_queue(page, "look/source")
        press(page, "Open")
        page.evaluate("document.querySelector('details').open = true")
        press(page, "History")
        page.wait_for("document.querySelector('.life .now') !== null")
        assert flaws(page) == [] and not page.evaluate(is_too_wide)
        press(page, "Purge …")
        page.wait_for("document.querySelector('dialog') !== null")
        assert flaws(page) == []
        press(page, "Cancel")
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
