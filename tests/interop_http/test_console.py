"""The console in headless Chromium, used as a person would: look, open, send, redrive, purge, delete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.interop_http.console import fill, open_queue, press
from tests.kit.browser import Page, open_page
from tests.kit.server import ServerProcess
from tests.standby.standby_process import StandbyProcess

NASTY = '<script>document.title = "taken over"</script><img src=x onerror="document.title = 1">'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("console") / "data", "--cap=1MiB") as process:
        yield process


@pytest.fixture(autouse=True)
def queues(server: ServerProcess) -> None:
    """Two queues, made for each test before its page is loaded, and no others."""
    queues = f"{server.url}/v2/shop/queues"
    with httpx.Client(trust_env=False) as http:
        for queue in http.get(queues).json()["queues"]:
            http.delete(f"{queues}/{queue['name']}").raise_for_status()
        http.put(f"{queues}/dead", json={}).raise_for_status()
        http.put(f"{queues}/orders", json={"dead_letter": "dead"}).raise_for_status()
        for body in (NASTY, "second"):
            http.post(f"{queues}/orders/messages", content=body, headers={"x-msg-x-from": "a<b"}).raise_for_status()


def info(server: ServerProcess, queue: str) -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"{server.url}/v2/shop/queues/{queue}", trust_env=False).json()
    return found


def test_queues_are_listed_with_counts(page: Page) -> None:
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    cells = page.evaluate(
        "[...document.querySelectorAll('tbody tr')].map(tr => [...tr.cells].slice(0, 2).map(c => c.innerText))"
    )
    assert cells == [["shop/dead", "0"], ["shop/orders", "2"]]
    assert page.wait_for("document.getElementById('health').textContent") == "ready, sync always"


def test_message_is_shown_as_text(page: Page) -> None:
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    open_queue(page, "shop/orders")
    press(page, "Open")
    assert page.wait_for("document.querySelector('pre')?.textContent") == NASTY
    assert "a<b" in page.evaluate("document.querySelector('tr.opened dl').innerText")
    assert page.evaluate("document.title") == "Curbstone"
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_a_queue_is_paused_and_resumed(page: Page, server: ServerProcess) -> None:
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    open_queue(page, "shop/orders")
    press(page, "Pause")
    page.wait_for("document.querySelector('.trouble').textContent === 'paused: nothing is delivered'")
    assert httpx.delete(f"{server.url}/v2/shop/queues/orders/messages", trust_env=False).status_code == 204
    press(page, "Resume")
    page.wait_for("document.querySelector('.trouble').textContent === ''")
    assert httpx.delete(f"{server.url}/v2/shop/queues/orders/messages", trust_env=False).status_code == 200


def test_a_message_is_sent_and_a_queue_purged_and_deleted(page: Page, server: ServerProcess) -> None:
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    open_queue(page, "shop/orders")
    press(page, "Send …")
    fill(page, "textarea", "from the console")
    press(page, "Send")
    page.wait_for("document.getElementById('notice').textContent.endsWith('is on disk')")
    assert info(server, "orders")["rdy"] == 3
    assert httpx.delete(f"{server.url}/v2/shop/queues/orders/messages", trust_env=False).status_code == 200
    press(page, "Undo …")
    press(page, "Bring back")
    page.wait_for("document.getElementById('notice').textContent === '1 message restored'")
    assert info(server, "orders")["rdy"] == 3
    press(page, "Purge …")
    page.wait_for("document.querySelector('dialog button.danger').disabled")
    fill(page, "input[autocomplete]", "orders")
    press(page, "Purge")
    page.wait_for("document.getElementById('notice').textContent === '3 messages purged'")
    assert info(server, "orders")["rdy"] == 0
    press(page, "Delete …")
    press(page, "Cancel")
    assert info(server, "orders")
    press(page, "Delete …")
    fill(page, "input", "orders")
    press(page, "Delete")
    page.wait_for("document.getElementById('notice').textContent === 'shop/orders deleted'")
    page.wait_for("document.querySelectorAll('tbody tr').length === 1")


def test_dead_letters_show_the_reason_and_can_be_redriven(page: Page, server: ServerProcess) -> None:
    messages = f"{server.url}/v2/shop/queues/orders/messages"
    with httpx.Client(trust_env=False) as http:
        lease = http.post(f"{messages}/lease", json={}).json()["messages"][0]
        nack = {"ackIds": [lease["ackId"]], "reject": True, "error": "no such customer"}
        http.post(f"{messages}/nack", json=nack).raise_for_status()
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    open_queue(page, "shop/dead")
    press(page, "Open")
    shown = page.wait_for("document.querySelector('tr.opened dl')?.innerText")
    assert "no such customer" in shown and "rejected" in shown
    press(page, "Redrive …")
    press(page, "Redrive")
    page.wait_for("document.getElementById('notice').textContent === '1 message redriven'")
    assert info(server, "orders")["rdy"] == 2 and info(server, "dead")["rdy"] == 0


def test_queue_can_be_created(page: Page, server: ServerProcess) -> None:
    press(page, "New queue …")
    fill(page, "[name=project]", "shop")
    fill(page, "[name=queue]", "returns")
    fill(page, "[name=cap]", "131072")
    press(page, "Create")
    page.wait_for("document.querySelector('.bar h2').textContent.endsWith('shop/returns')")
    assert info(server, "returns")["cap"] == 131072


def test_server_refusals_are_shown(page: Page) -> None:
    press(page, "New queue …")
    fill(page, "[name=queue]", "a queue")
    press(page, "Create")
    assert "bad" in page.wait_for("(line => !line.hidden && line.textContent)(document.getElementById('notice'))")
    assert all("400 (Bad Request)" in problem for problem in page.problems)
    page.problems.clear()


def test_server_loss_and_return_are_shown(page: Page, server: ServerProcess) -> None:
    page.wait_for("document.getElementById('health').className === 'ready'")
    server.kill()
    page.wait_for("document.getElementById('health').className === 'failing'")
    server.restart(same_ports=True)
    page.wait_for("document.getElementById('health').className === 'ready'")
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    page.problems.clear()  # the refused connections


def test_followers_are_shown(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--standby-backlog=1MiB") as server,
        open_page(f"{server.url}/console") as page,
    ):
        shown = "document.querySelector('#followers:not([hidden])')?.innerText.replaceAll('\\t', ' ')"
        page.wait_for(f"{shown}?.includes('The server has no followers.')")
        with StandbyProcess(tmp_path / "other", server.url) as standby:
            standby.has_everything(server)
            page.wait_for(f"{shown}?.includes('standby can take over')")
            assert "Confirms do not wait for a standby · term 1" in page.evaluate(shown)
        page.wait_for(f"{shown}?.includes('The server has no followers.')")
        assert page.problems == []


def test_a_server_that_can_not_be_followed_shows_nothing_of_followers(page: Page) -> None:
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    assert page.evaluate("document.getElementById('followers').hidden")


def test_open_batches_are_shown(page: Page, server: ServerProcess) -> None:
    messages = f"{server.url}/v2/shop/queues/dead/messages"
    headers = {"x-batch": "import <1>", "x-batch-size": "2", "x-batch-to": "imported"}
    httpx.post(messages, content="x", headers=headers, trust_env=False).raise_for_status()
    page.wait_for("document.querySelectorAll('tbody tr').length === 2")
    open_queue(page, "shop/dead")
    cells = page.wait_for(
        "[...document.querySelectorAll('caption, table')].length && "
        "[...document.querySelectorAll('th')].find(th => th.textContent === 'import <1>')"
        "?.parentElement.textContent"
    )
    assert cells == "import <1>1 of 210imported"
    press(page, "Open")
    assert "import <1>" in page.wait_for("document.querySelector('tr.opened dl')?.innerText")
