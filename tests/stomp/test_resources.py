"""Hostile and broken peers against a server as a process: each costs little, ends, and disturbs nobody.

After each attack a client that was there all the time is served, and the server's memory has hardly grown.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.kit.engine import WAIT_S
from tests.kit.server import ServerProcess
from tests.stomp.harness import read_frames, send
from tests.stomp.raw import CONNECTED, Raw, encode

PEERS = 40
GROWTH_BYTES_MAX = 24 * 1024 * 1024

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")


class World:
    """A server, a good client of it, and the memory it had before the attack."""

    def __init__(self, server: ServerProcess, good: Raw) -> None:
        self.server = server
        self.good = good
        self._number = 0
        self.round()
        self._before = self.memory()

    def memory(self) -> int:
        pages = Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def round(self) -> None:
        """The good client sends, receives and settles."""
        self._number += 1
        body = str(self._number)
        self.good.confirm(send(body, queue="/queue/good"))
        message = self.good.frame()
        assert message.body.decode() == body
        self.good.confirm(f"ACK|id:{message.headers['ack']}")

    def check(self, growth_max: int = GROWTH_BYTES_MAX) -> None:
        self.round()
        assert self.memory() - self._before < growth_max
        assert "Traceback" not in self.server.log

    def peers(self, stack: ExitStack, connect: str = "", count: int = PEERS) -> list[Raw]:
        return [stack.enter_context(Raw(self.server.stomp, connect)) for _ in range(count)]


@pytest.fixture
def world(server: ServerProcess) -> Iterator[World]:
    with Raw(server.stomp) as good:
        good.confirm("SUBSCRIBE|id:0|destination:/queue/good|ack:client-individual")
        yield World(server, good)


def answer(peer: Raw, data: bytes) -> bytes:
    """Send as much as the server takes, and return all it says until it closes."""
    with suppress(OSError):  # it may close meanwhile
        peer.socket.sendall(data)
    said = b""
    with suppress(ConnectionError):
        while part := peer.socket.recv(65536):
            said += part
    return said


FLOODS = {
    "headers before CONNECT": ("", b"CONNECT\n" + b"".join(b"h%d:x\n" % n for n in range(100_000)), "headers"),
    "one endless header": (CONNECTED, b"SEND\ndestination:/queue/a\nk:" + b"x" * 5_000_000, "headers"),
    "headers after CONNECT": (CONNECTED, b"SEND\n" + b"".join(b"h%d:x\n" % n for n in range(100_000)), "headers"),
    "repeated headers": (CONNECTED, b"SEND\n" + b"same:name\n" * 500_000, "headers"),
    "a body before CONNECT": ("", b"CONNECT\n\n" + b"x" * 5_000_000, "body"),
    "an endless body": (CONNECTED, b"SEND\ndestination:/queue/a\n\n" + b"x" * 5_000_000, "body"),
    "an announced body": (CONNECTED, b"SEND\ndestination:/queue/a\ncontent-length:999999999999\n\nx", "body"),
    "an endless command": ("", b"X" * 5_000_000, "unknown command"),
    "garbage": ("", bytes(range(1, 256)) * 10_000, "unknown command"),
}


@pytest.mark.parametrize(("connect", "data", "rule"), FLOODS.values(), ids=FLOODS)
def test_flood_is_refused_with_an_error_and_freed(world: World, connect: str, data: bytes, rule: str) -> None:
    with ExitStack() as stack:
        for peer in world.peers(stack, connect, PEERS // 4):
            (error,) = read_frames(answer(peer, data))
            assert error.command == "ERROR"
            assert rule in error.headers["message"]
    world.check()


@pytest.mark.parametrize(
    ("greeting", "said"),
    [(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 400 "), (b"POST /x HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
     (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(32, 90)), b""), (b"\0" * 100_000, b"ERROR\n"),
     (b"SSH-2.0-OpenSSH_9\r\n", b"ERROR\n"), (b"*1\r\n$4\r\nPING\r\n", b"ERROR\n")],
)  # fmt: skip
def test_other_protocols_get_a_short_answer(world: World, greeting: bytes, said: bytes) -> None:
    with ExitStack() as stack:
        for peer in world.peers(stack):
            got = answer(peer, greeting)
            assert got.startswith(said)
            assert said or not got
            assert len(got) < 1000
    world.check()


def test_trickling_waiting_and_vanished_peers_cost_little(world: World) -> None:
    """Their deadlines are tested with a clock in test_server.py; here they are all there at once."""
    with ExitStack() as stack:
        silent = world.peers(stack)
        trickling = world.peers(stack, CONNECTED)
        frame = b"SEND\ndestination:/queue/a\n\n" + b"x" * 200
        for byte in range(200):
            for peer in trickling:
                peer.socket.sendall(frame[byte : byte + 1])
        for peer in world.peers(stack, CONNECTED):  # half-open: a reset without a word
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.socket.close()
        world.check()
        assert len(silent) == len(trickling) == PEERS
    world.check()


def test_slow_consumers_are_bounded_by_their_sockets_and_others_get_all(world: World) -> None:
    body = b"x" * 50_000
    count = 160  # 8 MB for each of 10: without a bound the server would hold 80
    with ExitStack() as stack:
        for number, peer in enumerate(world.peers(stack, CONNECTED, 10)):
            for sub in ("auto", "client"):
                peer.confirm(f"SUBSCRIBE|id:{sub}|destination:/queue/slow{number}|ack:{sub}")
            with Raw(world.server.stomp) as producer:
                for _ in range(count):
                    producer.send(encode(f"SEND|destination:/queue/slow{number}", body))
                producer.confirm(send("last", queue="/queue/other"))
        # What is kept of the newest messages for the next reader counts here too.
        pages = world.memory()
        assert pages < 400 * 1024 * 1024
        assert "Traceback" not in world.server.log
        world.round()


@pytest.mark.parametrize(
    ("frames", "rule"),
    [([f"BEGIN|transaction:{n}" for n in range(101)], "open transactions"),
     (["BEGIN|transaction:t"] + ["SEND|destination:/queue/a|transaction:t||x"] * 10_001, "frames together"),
     ([f"SUBSCRIBE|id:{n}|destination:/queue/a" for n in range(1001)], "subscriptions")],
)  # fmt: skip
def test_resources_of_a_connection_are_limited(world: World, frames: list[str], rule: str) -> None:
    with Raw(world.server.stomp) as peer:
        peer.send(b"".join(encode(frame) for frame in frames))
        assert rule in peer.read_all()[-1].headers["message"]
    world.check()


def test_a_client_that_never_reads_its_receipts_is_not_read_any_more(world: World) -> None:
    with Raw(world.server.stomp) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.setblocking(False)
        chunk = encode(send("x", "receipt:" + "r" * 5000)) * 100
        rounds = sent = 0
        while rounds < 50:  # so often others were served, and nothing was read of this one
            try:
                sent += deaf.socket.send(chunk)
                rounds = 0
            except BlockingIOError:
                world.round()
                rounds += 1
            assert sent < 400 * len(chunk), "nobody stops reading"
        # Its receipts, what is unconfirmed, and what came of the next; of 200 MB.
        world.check(growth_max=64 * 1024 * 1024)


def test_incomplete_websocket_costs_little(world: World) -> None:
    """The same session over /stomp: a connection that is cut after its handshake, or never speaks."""
    lines = [
        "GET /stomp HTTP/1.1",
        "Host: localhost",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
    ]
    shake = "\r\n".join([*lines, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]).encode()
    with ExitStack() as stack:
        for number in range(PEERS):
            peer = stack.enter_context(socket.create_connection(world.server.http, timeout=WAIT_S))
            peer.sendall(shake)
            assert peer.recv(4096).startswith(b"HTTP/1.1 101 ")
            if number % 2:
                peer.sendall(b"\x81\xfe\x40\x00half a frame")
        world.check()
