"""What a WebSocket's peer may begin, and what it may provoke: deadlines, bounds, pongs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from websockets.frames import Frame, Opcode

from curbstone.core.options import QueueOptions
from curbstone.gateway.limits import MESSAGE_S_MAX
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.consume_session import ConsumeSession
from curbstone.gateway.websocket.protocol import WebSocketProtocol
from curbstone.gateway.websocket.publish_session import PublishSession
from curbstone.gateway.websocket.publish_targets import ToQueue
from curbstone.gateway.websocket.session import Session
from curbstone.gateway.websocket.subscription import Subscription
from curbstone.net import fair_reader as net_turns
from curbstone.net.budget import Budget
from tests.gateway.fakes import ANYBODY, FakeQueue, anything
from tests.kit.engine import wait_until
from tests.kit.gateway import Running, running

pytestmark = pytest.mark.anyio

CHUNK = 64 * 1024


def masked(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def wires(gateway: Running) -> list[WebSocketProtocol]:
    return [connection for connection in gateway.server.clients if isinstance(connection, WebSocketProtocol)]


async def reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read a frame of less than 126 bytes; return its opcode and payload."""
    first, size = await reader.readexactly(2)
    return first & 0x0F, await reader.readexactly(size)


BEGUN = {
    "head": masked(Opcode.BINARY, b"x" * 1000)[:1],
    "one byte short": masked(Opcode.BINARY, b"x" * 60_000)[:-1],
    "fragment": masked(Opcode.TEXT, b"x", fin=False),
    "empty fragment": masked(Opcode.TEXT, b"", fin=False),
    "ping": masked(Opcode.PING, b"x" * 100)[:-1],
}


@pytest.mark.parametrize("protocol", ["publish", "consume"])
@pytest.mark.parametrize("begun", BEGUN.values(), ids=BEGUN)
async def test_incomplete_message_ends_the_connection(gateway: Running, protocol: str, begun: bytes) -> None:
    reader, writer = await gateway.raw_socket("", protocol)
    [wire] = wires(gateway)
    writer.write(begun)
    await wait_until(lambda: wire.unfinished_bytes > 0)
    now = asyncio.get_running_loop().time()
    wire.check(now + MESSAGE_S_MAX - 1)
    assert wire._session is not None
    wire.check(now + MESSAGE_S_MAX + 1)
    opcode, text = await reply(reader)
    error = orjson.loads(text)
    assert (opcode, error["code"]) == (Opcode.TEXT, 408)
    assert await reply(reader) == (Opcode.CLOSE, b"\x03\xf0" + error["error"].encode())  # 1008
    writer.transport.abort()


async def test_trickling_message_times_out_despite_pings(gateway: Running) -> None:
    reader, writer = await gateway.raw_socket("", "publish")
    [wire] = wires(gateway)
    writer.write(masked(Opcode.BINARY, b"x", fin=False))
    await wait_until(lambda: wire.unfinished_bytes == 2)
    now = asyncio.get_running_loop().time()
    for _ in range(3):
        before = wire.unfinished_bytes
        writer.write(masked(Opcode.CONT, b"y", fin=False) + masked(Opcode.PING, b""))
        await wait_until(lambda before=before: wire.unfinished_bytes > before)  # type: ignore[misc]
    wire.check(now + MESSAGE_S_MAX + 1)
    assert wire._session is None
    writer.transport.abort()


async def test_idle_peer_that_answers_pings_stays_connected(gateway: Running) -> None:
    async with gateway.socket("consume") as socket:
        [wire] = wires(gateway)
        wire.check(asyncio.get_running_loop().time() + MESSAGE_S_MAX - 1)
        await (await socket.ping())
        assert wire._session is not None


async def test_incomplete_messages_of_all_sockets_are_bounded(tmp_path: Path) -> None:
    """20 sockets, each one byte short of 6 MiB, took 121 MB and were there for ever."""
    size = 6 * 1024 * 1024
    begun = masked(Opcode.BINARY, b"x" * size)[:-1]
    async with running(tmp_path / "data", GatewaySettings(), QueueOptions()) as gateway:
        budget = gateway.server.acceptor.admission.budget
        peers = [await gateway.raw_socket("", "publish") for _ in range(20)]
        kept = wires(gateway)
        for _, writer in peers:
            writer.write(begun)
        await wait_until(lambda: budget.refused >= 1)
        assert sum(wire.unfinished_bytes for wire in wires(gateway)) < budget.share_max + 2 * size
        # One that comes at once is taken all the same.
        reader, writer = await gateway.raw_socket("", "publish")
        writer.write(masked(Opcode.BINARY, b"y" * 1_000_000))
        taken = asyncio.create_task(reader.readexactly(2))
        await wait_until(lambda: budget.check() or taken.done())  # type: ignore[func-returns-value]  # a second each
        assert await taken == b"\x81\x00"
        for _, peer in [*peers, (reader, writer)]:
            peer.transport.abort()
        await wait_until(lambda: not wires(gateway))
        assert budget.bytes == 0
        assert not any(wire.unfinished_bytes for wire in kept), "also before Python finds its cycles"


class UnreadTransport:
    """An asyncio transport whose peer reads nothing."""

    def __init__(self) -> None:
        self.protocol: WebSocketProtocol
        self.unsent = bytearray()
        self.is_open = True
        self.is_reading = True

    def write(self, data: bytes) -> None:
        was_full = len(self.unsent) > CHUNK
        self.unsent += data
        if len(self.unsent) > CHUNK and not was_full:
            self.protocol.pause_writing()

    def read(self) -> bytes:
        """What the peer gets as it reads after all."""
        data = bytes(self.unsent)
        self.unsent.clear()
        self.protocol.resume_writing()
        return data

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_closing(self) -> bool:
        return not self.is_open

    def abort(self) -> None:
        self.is_open = False

    close = abort

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Turns:
    """A loop whose turns are the test's; nothing takes it any time."""

    def __init__(self) -> None:
        self.now = 100.0
        self._soon: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now

    def now_us(self) -> int:
        return 0

    def call_soon(self, fn: Callable[[], object]) -> None:
        self._soon.append(fn)

    def turn(self) -> None:
        soon, self._soon = self._soon, []
        for fn in soon:
            fn()


def unread_socket(protocol: str) -> tuple[WebSocketProtocol, UnreadTransport, Turns]:
    """Return a WebSocket whose peer does not read."""
    queue = FakeQueue().queue
    session: Session = (
        PublishSession(ToQueue(queue, anything), ANYBODY, GatewaySettings())
        if protocol == "publish"
        else ConsumeSession(Subscription(queue, settles=True, limit=10), ANYBODY)
    )
    transport, turns = UnreadTransport(), Turns()
    process_turns, account = net_turns.Turns(turns), Budget().account()
    wire = WebSocketProtocol(cast(Any, transport), session, 1_000_000, set(), cast(Any, turns), account, process_turns)
    transport.protocol = wire
    wire.begin(b"", b"")
    return wire, transport, turns


@pytest.mark.parametrize("protocol", ["publish", "consume"])
def test_pings_of_a_peer_that_does_not_read_take_no_memory(protocol: str) -> None:
    """260 MB of pings made the server keep as many pongs: it grew by 244 MB."""
    wire, transport, turns = unread_socket(protocol)
    for number in range(10_000):
        wire.data_received(masked(Opcode.PING, b"%0125d" % number) * 3)
        turns.turn()
    assert len(transport.unsent) < CHUNK + 200
    transport.read()
    turns.turn()
    assert transport.read() == b"\x8a\x7d" + b"%0125d" % 9_999


@pytest.mark.parametrize("piece", [masked(Opcode.PING, b""), masked(Opcode.CONT, b"", fin=False)], ids=["ping", "none"])
def test_a_flood_of_pieces_is_cut_off(piece: bytes) -> None:
    """A read full of empty fragments stopped all others for a second, and the next one came at once."""
    wire, transport, _ = unread_socket("publish")
    wire.data_received(masked(Opcode.BINARY, b"", fin=False))
    wire.data_received(piece * 1000)
    assert transport.is_open
    wire.data_received(piece * 1001)
    assert not transport.is_open
