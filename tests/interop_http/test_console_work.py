"""The console in headless Chromium, at work: options, messages with headers, dead letters in bulk, search, events."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.interop_http.console import fill, noticed, open_queue, press
from tests.interop_http.test_console_messages import made, rows_of
from tests.kit.browser import Page
from tests.kit.server import ServerProcess

SHOWN = "[...document.querySelectorAll('[aria-label=Messages] tbody tr')].filter(tr => !tr.hidden)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("work") / "data", "--cap=32MiB") as process:
        yield process


def killed(http: httpx.Client, path: str, *errors: str) -> None:
    """Reject the first messages of a queue, each with an error."""
    for error in errors:
        leased = http.post(f"{path}/messages/lease", json={}).json()["messages"][0]
        nack = {"ackIds": [leased["ackId"]], "reject": True, "error": error}
        http.post(f"{path}/messages/nack", json=nack).raise_for_status()


def test_only_changed_options_are_sent(page: Page, http: httpx.Client) -> None:
    path = made(http, "options", "q", max_tries=3, unused=60)
    open_queue(page, "options/q")
    press(page, "Edit options …")
    fill(page, "[name=max_tries]", "7")
    fill(page, "[name=dead_letter]", "letters")
    fill(page, "[name=unused]", "")
    fill(page, "[name=cap]", "2MiB")
    press(page, "Save")
    noticed(page, "4 options changed")
    options = http.get(path).json()["options"]
    assert (options["max_tries"], options["dead_letter"], options["unused"]) == (7, "options/letters", None)
    assert options["cap"] == 2 * 1024 * 1024


def test_options_of_a_new_queue_are_sent(page: Page, http: httpx.Client) -> None:
    press(page, "New queue …")
    fill(page, "[name=project]", "fresh")
    fill(page, "[name=queue]", "q")
    fill(page, "[name=max_tries]", "5")
    fill(page, "[name=ttl]", "60")
    fill(page, "[name=groups]", "a, b")
    press(page, "Create")
    page.wait_for("document.querySelector('.bar h2').textContent.endsWith('fresh/q')")
    options = http.get("/v2/fresh/queues/q").json()["options"]
    assert (options["max_tries"], options["ttl"], options["groups"]) == (5, 60, ["a", "b"])
    assert options["cap"] == 32 * 1024 * 1024, "the server's default"


def test_a_message_is_sent_with_headers_a_key_and_a_delay(page: Page, http: httpx.Client) -> None:
    path = made(http, "send", "q")
    open_queue(page, "send/q")
    press(page, "Send …")
    fill(page, "[name=body]", "größer")
    fill(page, "[name=headers]", "x-tenant: shop\nnote: a: b")
    fill(page, "[name=key]", "k-1")
    fill(page, "[name=delay]", "600")
    press(page, "Send")
    noticed(page, " is on disk")
    (message,) = http.get(f"{path}/messages").json()["messages"]
    assert (message["message"], message["key"], message["state"]) == ("größer", "k-1", "delayed")
    assert (message["x-msg-x-tenant"], message["x-msg-x-note"]) == ("shop", "a: b")


def test_dead_letters_are_grouped_by_cause_and_redriven_together(page: Page, http: httpx.Client) -> None:
    path = made(http, "bulk", "q", *"abcde", dead_letter="letters")
    letters = made(http, "bulk", "letters")
    killed(http, path, "timeout", "no such user", "timeout", "timeout")
    open_queue(page, "bulk/letters")
    page.wait_for(f"{SHOWN}.length === 4")
    assert "timeout – rejected in bulk/q after 1 delivery" in rows_of(page, "Messages")[0][7]
    page.evaluate(
        "(s => { s.value = 'rejected: timeout'; s.dispatchEvent(new Event('change')) })"
        "(document.querySelector('[aria-label=\"Cause of death\"]'))"
    )
    page.wait_for(f"{SHOWN}.length === 3")
    page.evaluate("document.querySelector('thead input[type=checkbox]').click()")
    press(page, "Redrive selected")
    noticed(page, "3 of 3 redriven")
    assert (http.get(path).json()["rdy"], http.get(letters).json()["rdy"]) == (4, 1)
    page.wait_for(f"{SHOWN}.length === 1")
    page.evaluate("document.querySelector('thead input[type=checkbox]').click()")
    press(page, "Delete selected …")
    press(page, "Delete")
    noticed(page, "1 of 1 deleted")
    assert http.get(letters).json()["rdy"] == 0


def test_the_page_of_a_queue_is_as_wide_as_a_phone(page: Page, http: httpx.Client) -> None:
    """The fields of the search and the list of causes made it wider, and their button was off the screen."""
    path = made(http, "phone", "q", "a", dead_letter="letters")
    made(http, "phone", "letters")
    killed(http, path, "an error that is longer than a phone is wide, as those of databases are " * 2)
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    try:
        open_queue(page, "phone/letters")
        page.wait_for(f"{SHOWN}.length === 1")
        press(page, "Open")
        shown = "[...document.querySelectorAll('main *')].filter(e => e.offsetParent && !e.closest('.scroll'))"
        assert page.evaluate(f"{shown}.filter(e => e.getBoundingClientRect().right > 390).map(e => e.outerHTML)") == []
        assert page.evaluate("innerWidth") == 390
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")


def test_redrive_is_offered_only_where_there_are_dead_letters(page: Page, http: httpx.Client) -> None:
    made(http, "alive", "q", "x")
    open_queue(page, "alive/q")
    page.wait_for(f"{SHOWN}.length === 1")
    offered = (
        "[...document.querySelectorAll('button')].some(b => b.offsetParent && b.textContent.startsWith('Redrive'))"
    )
    assert not page.evaluate(offered)


def test_search_covers_bodies_and_headers_and_shows_its_position(page: Page, http: httpx.Client) -> None:
    made(http, "search", "q", "apple", "pear", "Apple pie")
    open_queue(page, "search/q")
    page.wait_for(f"{SHOWN}.length === 3")
    page.evaluate("document.querySelector('.search input').value = 'apple'")
    press(page, "Search")
    page.wait_for(f"{SHOWN}.length === 2")
    assert page.evaluate("document.querySelector('.looked').textContent").startswith("Searched 3 messages, ")
    page.evaluate("document.querySelector('.search input').value = 'plum'")
    press(page, "Search")
    page.wait_for("document.querySelector('section .empty:not([hidden])')?.textContent === 'Nothing found.'")


def test_a_message_is_edited_and_sent_again(page: Page, http: httpx.Client) -> None:
    path = made(http, "edit", "q", '{"to": "nobody"}', dead_letter="letters")
    letters = made(http, "edit", "letters")
    killed(http, path, "no such user")
    open_queue(page, "edit/letters")
    press(page, "Open")
    press(page, "Edit and resend …")
    fill(page, "[name=body]", '{"to": "somebody"}')
    press(page, "Send")
    noticed(page, " is in edit/q")
    (message,) = http.get(f"{path}/messages").json()["messages"]
    assert (message["message"], message["x-msg-x-from"]) == ('{"to": "somebody"}', "here") and "dead" not in message
    assert http.get(letters).json()["rdy"] == 0


def test_list_of_large_messages_is_marked_incomplete(page: Page, http: httpx.Client) -> None:
    """It stopped at 8 MiB without a word."""
    path = made(http, "large", "q")
    for _ in range(10):
        http.post(f"{path}/messages", content=b"x" * 1_000_000).raise_for_status()
    open_queue(page, "large/q")
    page.wait_for(f"{SHOWN}.length > 0")
    assert page.evaluate(f"{SHOWN}.length") < 10
    press(page, "More")
    page.wait_for(f"{SHOWN}.length === 10")
    page.wait_for("[...document.querySelectorAll('button')].find(b => b.textContent === 'More').hidden")


def test_missing_queue_is_reported(page: Page) -> None:
    """It had all buttons, empty figures and a full green bar."""
    page.evaluate("location.hash = '#nosuch/queue'")
    page.wait_for("document.querySelector('#view .empty')?.textContent.includes('There is no queue nosuch/queue.')")
    assert page.evaluate("document.querySelectorAll('#view button').length") == 0
    assert all("404" in problem for problem in page.problems)
    page.problems.clear()


def test_a_queue_is_bound_to_an_event_and_unbound(page: Page, http: httpx.Client) -> None:
    path = made(http, "events", "q")
    open_queue(page, "events/q")
    page.wait_for("document.querySelector('.events') !== null")
    press(page, "Bind …")
    fill(page, "[name=event]", "orders.*")
    fill(page, "[name=filter]", "region = 'eu'")
    press(page, "Bind")
    page.wait_for("document.querySelector('.events li')?.textContent.startsWith('orders.*')")
    assert page.evaluate("document.querySelector('.events li code').textContent") == "region = 'eu'"
    info = http.get(path).json()
    assert (info["bindings"], info["filters"]) == (["orders.*"], {"orders.*": "region = 'eu'"})
    press(page, "Unbind")
    page.wait_for("document.querySelector('.events') !== null && document.querySelector('.events li') === null")
    assert http.get(path).json()["bindings"] == []


def test_the_keys_of_a_queue_are_listed(page: Page, http: httpx.Client) -> None:
    path = made(http, "keys", "q", fair=True, key_limit=0)
    for key in ("a<b", "a<b", "c"):
        http.post(f"{path}/messages", content=b"x", headers={"x-key": key}).raise_for_status()
    open_queue(page, "keys/q")
    rows = "[...document.querySelectorAll('[aria-label=Keys] tbody tr')].map(tr => tr.textContent)"
    page.wait_for(f"{rows}.length === 2")
    assert page.evaluate(rows) == ["a<b20–", "c10–"]
