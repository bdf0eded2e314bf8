"""Output that is sent at once, past the transport: only if nothing waits before it, and never out of order."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from curbstone.net.connection_limits import Slot
from curbstone.net.fair_reader import Turns
from curbstone.net.peer import Peer
from curbstone.net.tcp import Connection, TcpServer

WAIT_S = 60


class Session:
    """Writes what the test gives it."""

    ending = closing = congested = False
    unfinished_bytes = 0
    is_another = True

    def __init__(self) -> None:
        self.output: list[bytes] = []

    def take_output(self) -> list[bytes]:
        output, self.output = self.output, []
        return output

    def pause(self) -> None:
        """Do nothing."""

    resume = end_input = connection_lost = pause


class Client(Connection[Session]):
    def open(self) -> Session:
        return Session()

    def receive(self, data: bytes) -> None:
        """Do nothing."""

    def shutdown(self) -> None:
        self.session.closing = True
        self.changed()

    def refuse_client(self, reason: str) -> None:
        self.abort()

    def reading(self, on: bool) -> None:
        """Do nothing."""

    def write(self, data: bytes) -> None:
        self.session.output.append(data)
        self.changed(len(data))

    def answer(self, data: bytes) -> bool:
        """Send at once, or else with the output of the turn; return whether it was at once."""
        is_sent = self.send_at_once(data)
        if not is_sent:
            self.write(data)
        return is_sent


class Server(TcpServer):
    def __init__(self, turns: Turns) -> None:
        super().__init__(turns)
        self.made: asyncio.Queue[Client] = asyncio.Queue()

    def connection(self, peer: Peer, slot: Slot) -> Client:
        client = Client(self, peer, slot, 1 << 20)
        self.made.put_nowait(client)
        return client

    def refusal(self, text: str) -> bytes:
        return text.encode()


class Clock:
    def now_us(self) -> int:
        return 0

    def call_soon(self, fn: Callable[[], object]) -> object:
        return asyncio.get_running_loop().call_soon(fn)


def run(test: Callable[[Client, socket.socket], Awaitable[None]], loop: Any) -> None:
    """Run a test with a connection and its client's socket, on one of the two kinds of loops."""

    async def main() -> None:
        server = Server(Turns(Clock()))
        address = await server.start(("127.0.0.1", 0))
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            await asyncio.get_running_loop().sock_connect(peer, address)
            client = await server.made.get()
            while not hasattr(client, "session"):
                await asyncio.sleep(0)
            await test(client, peer)
        await server.stop()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


async def receive(peer: socket.socket, size: int) -> bytes:
    """Return so many bytes from the peer."""
    data = b""
    async with asyncio.timeout(WAIT_S):
        while len(data) < size:
            more = await asyncio.get_running_loop().sock_recv(peer, 65536)
            assert more, f"closed after {len(data)} bytes"
            data += more
    return data


@loops
def test_answer_is_sent_before_the_turn_ends(loop: Any) -> None:
    async def test(client: Client, peer: socket.socket) -> None:
        assert client.send_at_once(b"now")
        assert peer.recv(10) == b"now", "the loop has done nothing since"

    run(test, loop)


@loops
def test_output_keeps_its_order(loop: Any) -> None:
    async def test(client: Client, peer: socket.socket) -> None:
        assert client.answer(b"1")
        client.write(b"2")
        assert not client.answer(b"3"), "2 waits for the end of the turn"
        assert await receive(peer, 3) == b"123"
        assert client.answer(b"4")
        assert await receive(peer, 1) == b"4"

    run(test, loop)


@loops
def test_transport_sends_what_the_socket_does_not_accept(loop: Any) -> None:
    async def test(client: Client, peer: socket.socket) -> None:
        large = bytes(range(256)) * 40_000
        assert client.send_at_once(large), "a part of it was sent"
        assert client._transport.get_write_buffer_size() > 0
        assert not client.answer(b"behind it")
        assert await receive(peer, len(large) + 9) == large + b"behind it"

    run(test, loop)


@loops
def test_full_socket_accepts_nothing_directly(loop: Any) -> None:
    async def test(client: Client, peer: socket.socket) -> None:
        block = b"x" * 65536
        sent = 0
        while client.send_at_once(block):  # ends with a part of a block in the transport, or nothing of it
            sent += len(block)
        client.write(b"end")
        assert (await receive(peer, sent + 3))[-3:] == b"end"

    run(test, loop)


@loops
@pytest.mark.parametrize("how", ["reset by the client", "aborted here"])
def test_closed_socket_accepts_nothing(loop: Any, how: str) -> None:
    async def test(client: Client, peer: socket.socket) -> None:
        assert client.send_at_once(b"1")
        if how == "aborted here":
            client.abort()
            assert not client.send_at_once(b"2")
        else:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            while not client._transport.is_closing():
                client.answer(b"2")
                await asyncio.sleep(0)
            assert not client.send_at_once(b"3")

    run(test, loop)
