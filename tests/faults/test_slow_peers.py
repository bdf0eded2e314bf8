"""Clients that take what they get slowly or not at all, and those that send a byte now and then, on every port."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.stomp_peer import encode
from tests.faults.witness import Witness, call, memory_bytes
from tests.kit.server import ServerProcess
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")

STUCK = 8
MESSAGES = 60
BODY_BYTES = 100_000
GROWTH_BYTES_MAX = 160 * 1024 * 1024
"""The newest messages of a queue are kept in memory for the next reader, 64 MiB of all queues together."""

WEBSOCKET = """GET {path} HTTP/1.1
Host: localhost
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Protocol: {protocol}
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==

""".replace("\n", "\r\n")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", "--cap=32MiB", "--log-level=error") as server:
        yield server


def narrow(address: tuple[str, int]) -> socket.socket:
    """Return a connection with a small buffer on our side."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(address)
    return peer


def subscribe(server: ServerProcess, protocol: str, queue: str) -> socket.socket:
    """Return a connection that wants all messages of a queue and reads none."""
    if protocol == "stomp":
        peer = narrow(server.stomp)
        peer.sendall(encode("CONNECT", {"accept-version": "1.2", "host": "x"}))
        peer.sendall(encode("SUBSCRIBE", {"id": "1", "destination": f"/queue/{queue}", "ack": "auto"}))
    elif protocol == "mqks":
        peer = narrow(server.mqks)
        peer.sendall(f"c consume {queue}\n".encode())
    elif protocol == "websocket":
        peer = narrow(server.http)
        peer.sendall(WEBSOCKET.format(path=f"/v2/default/queues/{queue}/messages", protocol="consume").encode())
    else:
        peer = narrow(server.http)
        peer.sendall(f"GET /v2/default/queues/{queue}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return peer


@pytest.mark.parametrize("protocol", ["stomp", "websocket", "mqks"])
def test_consumers_that_never_read_are_bounded_and_others_are_served(served: ServerProcess, protocol: str) -> None:
    witness = Witness(served)
    body = b"x" * BODY_BYTES
    with ExitStack() as stack:
        for number in range(STUCK):
            call(served, f"/v2/default/queues/stuck{number}", "PUT")
            stack.enter_context(subscribe(served, protocol, f"stuck{number}"))
        wait_until(lambda: call(served, f"/v2/default/queues/stuck{STUCK - 1}")[1]["consumers"] == 1, "no consumer")
        before = memory_bytes(served)
        batch = json.dumps(
            [{"message": base64.b64encode(body).decode(), "encoding": "base64"}] * (MESSAGES // 4)
        ).encode()
        for number in range(STUCK):
            for _ in range(4):
                status, said = call(served, f"/v2/default/queues/stuck{number}/messages/batch", "POST", batch)
                assert status == 201, said
        peer = stack.enter_context(witness.connect())
        assert witness.publish(peer, 50) == 50
        assert memory_bytes(served) - before < GROWTH_BYTES_MAX
    witness.drain()
    assert "Traceback" not in served.log


TRICKLES = {
    "stomp, CONNECT": ("stomp", b"CONNECT\naccept-version:1.2\nhost:x\n"),
    "mqks, line": ("mqks", b"m publish e "),
    "http, head": ("http", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "),
    "http, body": (
        "http",
        b"POST /v2/default/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx",
    ),
    "websocket, handshake": ("http", WEBSOCKET.format(path="/stomp", protocol="v12.stomp").encode()[:-10]),
}


@pytest.mark.soak
@pytest.mark.parametrize(("port", "start"), TRICKLES.values(), ids=TRICKLES)
def test_trickling_request_is_ended(served: ServerProcess, port: str, start: bytes) -> None:
    """Its deadline is 10 seconds for what opens a connection and a request's head, 30 for a line, 60 for a body."""
    witness = Witness(served)
    call(served, "/v2/default/queues/q", "PUT")
    with ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(getattr(served, port))) for _ in range(20)]
        for peer in peers:
            peer.sendall(start)
            peer.settimeout(0.01)
        good = stack.enter_context(witness.connect())

        def all_ended() -> bool:
            assert witness.publish(good, 1) == 1
            for peer in list(peers):
                try:
                    peer.sendall(b"x")
                    while part := peer.recv(4096):
                        assert part
                    peers.remove(peer)
                except TimeoutError:
                    continue
                except OSError:
                    peers.remove(peer)
            return not peers

        wait_until(all_ended, f"{len(peers)} of 20 are still served", 100)
    witness.drain()
