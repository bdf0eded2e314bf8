"""Real clients of a server with users, over TLS: each logs in its own way, and is refused with another secret."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import stomp
from stomp.exception import ConnectFailedException

from tests.interop import control
from tests.interop.control import Control, chromium, node
from tests.kit.authority import Authority, trust_flag
from tests.kit.guarded_server import GuardedServer, guarded_server
from tests.stomp.client import Listener

USERS = """
[users.worker]
home = "shop"
grants = ["send,receive,peek,manage shop/*"]
"""
PAGE = Path(__file__).with_name("ticket.html")


@pytest.fixture(scope="module")
def it(folder: Path, authority: Authority, pages: Control) -> Iterator[GuardedServer]:
    pair = authority.signed("server")
    listeners = ["--http-addr=127.0.0.1:0", "--http-addr=tls://127.0.0.1:0", "--stomp-addr=tls://127.0.0.1:0"]
    tls = [f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}", f"--cors-origin={pages.origin}"]
    with guarded_server(folder, USERS, *listeners, "--mqks-addr=", *tls) as made:
        yield made


def https(it: GuardedServer) -> str:
    return "https://localhost:{}".format(it.server.addresses["tls://http"][1])


def test_stomp_py_logs_in_over_tls(it: GuardedServer, authority: Authority) -> None:
    at = [it.server.addresses["tls://stomp"]]

    def connected(secret: str) -> tuple[stomp.Connection12, Listener]:
        connection = stomp.Connection12(at, reconnect_attempts_max=1)
        connection.set_ssl(for_hosts=at, ca_certs=str(authority.file))
        heard = Listener()
        connection.set_listener("", heard)
        connection.connect("worker", secret, wait=True)
        return connection, heard

    connection, heard = connected(it.secrets["worker"])
    connection.subscribe("/queue/stomp-py", id="0", ack="client-individual")
    connection.send("/queue/stomp-py", "over TLS")
    heard.wait_until(lambda: len(heard.messages) == 1)
    assert heard.messages[0].body == "over TLS"
    connection.disconnect()
    with pytest.raises(ConnectFailedException):
        connected(it.secrets["worker"] + "x")


def test_stompjs_logs_in_over_wss(it: GuardedServer, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(authority.file))
    url = https(it).replace("https", "wss") + "/stomp"
    with node("secure_node.mjs", url, "worker", it.secrets["worker"]) as process:
        output, _ = process.communicate(timeout=120)
    got, refused = json.loads(output.splitlines()[-1])
    assert got == {"body": "over wss"}
    assert refused == {"error": "the login failed"}


def test_curl_logs_in_with_a_token_alone_or_beside_its_user(it: GuardedServer, authority: Authority) -> None:
    url, secret = f"{https(it)}/v2/shop/queues/curl", it.secrets["worker"]

    def curl(*words: str) -> str:
        command = ["curl", "-sS", "--noproxy", "*", "--cacert", str(authority.file), *words]
        return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout

    bearer = ["-H", f"Authorization: Bearer {secret}"]
    curl(*bearer, "-X", "PUT", url)
    curl("-u", f"worker:{secret}", "-d", "hello", f"{url}/messages")
    assert json.loads(curl(*bearer[:1], f"{bearer[1]}x", "-X", "DELETE", f"{url}/messages"))["status"] == 401
    assert curl(*bearer, "-X", "DELETE", f"{url}/messages") == "hello"


def test_a_page_opens_sockets_over_wss_and_a_stream_by_tickets_each_once(
    it: GuardedServer, pages: Control, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(control.FILES, "/ticket.html", (PAGE, "text/html; charset=utf-8"))
    url = f"{pages.origin}/ticket.html?url={quote(https(it), safe='')}&token={it.secrets['worker']}"
    facts = pages.result(chromium(url, tmp_path / "profile", trust_flag(folder / "server.pem")))
    assert facts == {
        "confirms": [""], "again": None, "otherWay": None, "none": None,
        "body": "by a ticket", "streamed": "for the stream",
    }  # fmt: skip
