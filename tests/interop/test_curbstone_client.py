"""@curbstone/client in Node.js and on a page in headless Chromium (see curbstone_client.mjs)."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.interop import control
from tests.interop.control import HERE, Control, chromium, node
from tests.interop.test_stompjs import Restarts
from tests.kit.server import ServerProcess

LIBRARY = HERE.parent.parent / "client" / "js"
SEEDS = 24


def judge(facts: dict[str, Any]) -> None:
    assert facts["first"] == {
        "headers": {"customer": "7:\n"},
        "type": "text/plain; charset=utf-8",
        "key": "customer 7",
        "id": facts["id"],
    }
    assert facts["json"] == {"total": 12, "text": "ä\0"}
    assert facts["refused"] == [True, 413]
    assert facts["tries"][:2] == [0, 1]
    assert facts["heard"] == {"id": 7} and facts["filtered"] == [9]
    assert facts["ranked"] == [["high", 9], ["none", 4], ["low", 0]]
    assert facts["left"] == [["new", "a"]]
    assert facts["named"] == [[False, True], True]
    assert facts["confirmed"] == 200
    assert (facts["maybeRepeated"], facts["twice"]) == (False, 0)
    assert (facts["kept"], facts["ends"]) == ("abc", [0, 413, 0, 413, 0])
    assert facts["isRepeated"] is False
    assert facts["afterClose"] == "Unknown"


def make_small(server: ServerProcess) -> None:
    """Make the queue that refuses some of what is published to it."""
    httpx.put(f"{server.url}/v2/shop/queues/kept", json={"max_message_size": 1024}).raise_for_status()


def test_javascript_client_works_in_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Control(lambda: server.restart(same_ports=True)) as pages:
        make_small(server)
        judge(pages.result(node("curbstone_node.mjs", server.url, pages.origin)))


def test_javascript_client_works_in_chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("index.js", "publishing.js", "frames.js", "errors.js"):
        monkeypatch.setitem(control.FILES, f"/{name}", (LIBRARY / name, "text/javascript"))
    monkeypatch.setitem(
        control.FILES, "/curbstone_client.mjs", (HERE / "curbstone_client.mjs", "text/javascript; charset=utf-8")
    )
    monkeypatch.setitem(control.FILES, "/curbstone.html", (HERE / "curbstone_page.html", "text/html; charset=utf-8"))
    restarts = Restarts()
    with Control(restarts) as pages, ServerProcess(tmp_path / "data", f"--cors-origin={pages.origin}") as server:
        restarts.server = server
        make_small(server)
        page = f"{pages.origin}/curbstone.html?url={quote(server.url, safe='')}"
        facts = pages.result(chromium(page, tmp_path / "profile"))
    judge(facts)
    assert "Chrome" in facts["agent"]


def test_javascript_client_renews_reports_and_retries_logins() -> None:
    with node("logins_node.mjs") as process:
        printed, _ = process.communicate(timeout=60)
    facts = json.loads(printed)
    assert (facts["first"], facts["second"], facts["again"]) == (80_000, 40_000, 5_000)
    assert facts["renewal"].startswith("SEND\ndestination:/session/token\nreceipt:token\n\ntwo\0")
    assert facts["refused"] == [401] and facts["published"] == ["Refused", 401]
    assert facts["afterWrong"] == 30_000 and facts["afterThrottled"] == 17_000


def test_javascript_client_skips_replaced_servers() -> None:
    with node("terms_node.mjs") as process:
        printed, _ = process.communicate(timeout=60)
    facts = json.loads(printed)
    assert facts["urls"] == [*["ws://one/stomp", "wss://two/mq/stomp"] * 2, "ws://one/stomp"]
    assert facts["subscribed"] == [True, True, False, True, False]
    assert "another server, of term 2, has replaced it, which has term 1" in facts["warnings"][2]


def test_javascript_client_logs_to_the_console_and_supports_keys(tmp_path: Path) -> None:
    """Handlers that throw, servers that are not there and queues that are full were met with silence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with ServerProcess(tmp_path / "data") as server:
        queues = f"{server.url}/v2/shop/queues"
        for queue, options in {"full": {"cap": 131072}, "keyed": {"groups": ["audit"]}}.items():
            httpx.put(f"{queues}/{queue}", json=options).raise_for_status()
        with node("reports_node.mjs", server.url, nowhere) as process:
            printed, _ = process.communicate(timeout=120)
        facts = json.loads(printed)
        ready = httpx.get(f"{queues}/keyed").json()["rdy"]
    connecting = re.escape(nowhere.replace("http", "ws"))
    assert re.fullmatch(
        rf"@curbstone/client: can't connect to {connecting}/stomp: .*ECONNREFUSED.*; next attempt in \d+\.\d s",
        facts["cantConnect"],
    )
    assert facts["errors"] == [
        ["error", "@curbstone/client: broken: the handler failed for message:", "RangeError", True]
    ]
    (full,) = facts["full"]
    assert full.startswith("@curbstone/client: publishing to /queue/shop/full waits until there is room: ")
    assert (facts["isSame"], facts["reused"], facts["refused"]) == (True, 422, ["TypeError", "TypeError"])
    assert (sorted(facts["audited"]), ready) == (["without a key", '{"total":12}'], 2)


def test_random_faults_end_each_publish_once_in_order() -> None:
    with node("curbstone_random.mjs", "0", str(SEEDS)) as process:
        printed, _ = process.communicate(timeout=120)
    print(printed)
    assert printed.endswith("all well\n")
