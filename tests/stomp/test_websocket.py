"""STOMP over WebSocket on the real gateway and engine (W1 to W6), and what a socket adds: pressure, pings, the end.

Each test of a pitfall is named by its number in the project's conformance list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from curbstone.access.authenticator import OpenAuthenticator
from curbstone.core.engine.broker import Broker
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.gateway.app import create_app
from curbstone.gateway.server import GatewayServer
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import binary_frame, text_frame
from curbstone.stomp.limits import Limits
from curbstone.stomp.websocket import StompSockets
from tests.kit.engine import WAIT_S, engine, wait_until
from tests.stomp.harness import Received, read_frames

pytestmark = pytest.mark.anyio

A = QueueName("default", "a")
CONNECT = "CONNECT\naccept-version:1.2\n\n\0"
SUB = "SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client-individual\n\n\0"


class WsPeer:
    """A client that sees the messages as they came."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, *messages: str | bytes) -> None:
        for message in messages:
            await self.socket.send(message)

    async def message(self) -> str | bytes:
        return await asyncio.wait_for(self.socket.recv(), WAIT_S)

    async def frame(self) -> Received:
        """Return the next frame, which must be a message of its own."""
        message = await self.message()
        (frame,) = read_frames(message if isinstance(message, bytes) else message.encode())
        return frame

    async def login(self, binary: bool = False) -> Received:
        await self.send(CONNECT.encode() if binary else CONNECT)
        return await self.frame()

    async def end(self) -> tuple[list[Received], int | None, str]:
        """Return what still comes, and the code and reason of the close."""
        received = []
        try:
            while True:
                received.append(await self.frame())
        except ConnectionClosed:
            return received, self.socket.close_code, self.socket.close_reason or ""


class World:
    def __init__(self, broker: Broker, server: GatewayServer, address: tuple[str, int]) -> None:
        self.broker = broker
        self.server = server
        self.address = address

    @asynccontextmanager
    async def socket(self, *subprotocols: str, origin: str = "") -> AsyncIterator[WsPeer]:
        async with connect(
            f"ws://{self.address[0]}:{self.address[1]}/stomp",
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            origin=Origin(origin) if origin else None,
            compression=None,
            proxy=None,
            max_size=None,
        ) as socket:
            yield WsPeer(socket)

    def count(self, name: QueueName = A) -> int:
        counts = self.broker.get(name).counts()
        return counts.rdy + counts.wip


@asynccontextmanager
async def serving(path: Path, limits: Limits, options: QueueOptions) -> AsyncIterator[World]:
    async with engine(path, options) as (broker, host):
        authenticator = OpenAuthenticator(broker, host)
        sockets = StompSockets(authenticator, host, text=text_frame, binary=binary_frame, limits=limits)
        app = create_app(
            authenticator, host, GatewaySettings(max_message_size=65_536), more_sockets={"/stomp": sockets.open}
        )
        server = GatewayServer(app)
        address = await server.start(("127.0.0.1", 0))
        try:
            yield World(broker, server, address)
        finally:
            await server.stop()


@pytest.fixture
async def world(
    anyio_backend: object, tmp_path: Path, limits: Limits | None, options: QueueOptions | None
) -> AsyncIterator[World]:
    async with serving(tmp_path, limits or Limits(), options or QueueOptions()) as opened:
        yield opened


def send(body: str, *headers: str) -> str:
    return "\n".join(["SEND", "destination:/queue/a", *headers, "", body]) + "\0"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["v10.stomp", "v11.stomp", "v12.stomp"], "v12.stomp"), (["bearer.secret", "v11.stomp"], "v11.stomp"),
     (["v10.stomp"], "v10.stomp"), ([], None)],
)  # fmt: skip
async def test_w01_w02_only_a_subprotocol_of_stomp_is_chosen(
    world: World, offered: list[str], chosen: str | None
) -> None:
    async with world.socket(*offered) as peer:
        assert peer.socket.subprotocol == chosen
        assert (await peer.login()).headers["version"] == "1.2", "the version is a matter of CONNECT"


async def test_w01_other_subprotocols_alone_are_refused_with_the_names_of_ours(world: World) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with world.socket("bearer.secret", "mqtt"):
            pass
    assert caught.value.response.status_code == 400
    body = bytes(caught.value.response.body or b"")
    assert b"v12.stomp" in body
    assert b"secret" not in body


async def test_a_page_of_another_origin_may_not_connect(world: World) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with world.socket(origin="https://evil.example"):
            pass
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_w03_frames_split_over_messages_and_several_in_one(world: World, size: int) -> None:
    async with world.socket() as peer:
        stream = CONNECT + "\n\n" + send("1", "receipt:1") + "\n" + send("2" * 300, "receipt:2") + SUB
        await peer.send(*[stream[at : at + size] for at in range(0, len(stream), size)])
        got = [await peer.frame() for _ in range(5)]
        assert sorted(frame.command for frame in got) == ["CONNECTED", "MESSAGE", "MESSAGE", "RECEIPT", "RECEIPT"]
        assert [frame.body for frame in got if frame.command == "MESSAGE"] == [b"1", b"2" * 300]


async def test_w03_fragmented_messages_and_empty_ones(world: World) -> None:
    async with world.socket() as peer:

        async def pieces() -> AsyncIterator[str]:
            for piece in (CONNECT[:5], CONNECT[5:], "", send("x", "receipt:1")):
                yield piece

        await peer.socket.send(pieces())
        await peer.send("", "\n", b"")
        assert [(await peer.frame()).command for _ in range(2)] == ["CONNECTED", "RECEIPT"]


BODIES = [b"plain", "grüße €".encode(), b"\xff\xfe\0binary", b"a\0b", b"", b"\0\n\0\n"]


@pytest.mark.parametrize("binary", [False, True])
async def test_w04_reply_uses_the_frame_type_of_the_client(world: World, binary: bool) -> None:
    async with world.socket() as peer:
        await peer.login(binary)
        for body in BODIES:
            # Whatever comes later, the first message decides.
            await peer.send(b"SEND\ndestination:/queue/a\ncontent-length:%d\n\n%b\0" % (len(body), body))
        await peer.send(SUB)
        for body in BODIES:
            message = await peer.message()
            assert isinstance(message, bytes) == (binary or b"\xff" in body)
            (frame,) = read_frames(message if isinstance(message, bytes) else message.encode())
            assert frame.body == body


async def test_w05_a_text_message_that_lost_its_nul_waits_for_it(world: World) -> None:
    """Old React Native drops it; stompjs then wants forceBinaryWSFrames (and appendMissingNULLonIncoming)."""
    async with world.socket() as peer:
        await peer.send(CONNECT.rstrip("\0"))
        await peer.send(b"\0")
        assert (await peer.frame()).command == "CONNECTED"


@pytest.mark.parametrize(
    "bad",
    ["SEND\nreceipt:b\n\nx\0", "FOO\nreceipt:b\n\n\0", "MESSAGE\nreceipt:b\n\n\0", "ACK\nid:9\nreceipt:b\n\n\0",
     "SEND\ndestination:/queue/a\nx\nreceipt:b\n\n\0"],
)  # fmt: skip
async def test_w06_error_precedes_the_close(world: World, bad: str) -> None:
    async with world.socket() as peer:
        await peer.login()
        await peer.send(send("kept", "receipt:1") + bad + send("lost"))
        frames, code, reason = await peer.end()
        assert [frame.command for frame in frames] == ["RECEIPT", "ERROR"]
        assert frames[1].headers["receipt-id"] == "b"
        assert code == 1002
        assert reason.startswith(frames[1].body.decode().split("\n")[0][:100])
    await wait_until(lambda: world.count() == 1)


@pytest.mark.parametrize("options", [QueueOptions(cap=64 * 1024)])
async def test_w06_engine_refusal_closes_with_1008(world: World) -> None:
    async with world.socket() as peer:
        await peer.login()
        frames: list[Received] = []
        await peer.send(*[send("x" * 2000) for _ in range(100)])
        frames, code, reason = await peer.end()
        assert (frames[-1].command, code) == ("ERROR", 1008)
        assert "cap" in reason


async def test_w06_a_message_too_large_to_read_is_reported_in_an_error(world: World) -> None:
    async with world.socket() as peer:
        await peer.login()
        await peer.send("SEND\ndestination:/queue/a\n\n" + "x" * 1_000_000)
        frames, code, _ = await peer.end()
        assert (frames[-1].command, code) == ("ERROR", 1009)


async def test_disconnect_gets_a_receipt_and_a_normal_close(world: World) -> None:
    async with world.socket() as peer:
        await peer.login()
        await peer.send("DISCONNECT\nreceipt:bye\n\n\0")
        frames, code, reason = await peer.end()
        assert ([frame.headers["receipt-id"] for frame in frames], code, reason) == (["bye"], 1000, "")


async def test_stopping_server_confirms_and_sends_an_error(world: World) -> None:
    async with world.socket() as peer:
        await peer.login()
        await peer.send(send("1", "receipt:1"))
        assert (await peer.frame()).command == "RECEIPT"
        stopping = asyncio.ensure_future(world.server.stop())
        frames, code, _ = await peer.end()
        assert (frames[-1].headers["message"], code) == ("the server is shutting down", 1001)
        await stopping


async def test_heart_beats_are_messages_of_one_line_feed(world: World) -> None:
    for binary in (False, True):
        async with world.socket() as peer:
            hello = "CONNECT\naccept-version:1.2\nheart-beat:0,100\n\n\0"
            await peer.send(hello.encode() if binary else hello)
            assert (await peer.frame()).headers["heart-beat"] == "100,0"
            assert await peer.message() == (b"\n" if binary else "\n")


@pytest.mark.parametrize("first", ["", "CONN", "\n", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("limits", [Limits(connect_ms=500)])
async def test_client_that_does_not_connect_is_notified_and_closed(world: World, first: str) -> None:
    async with world.socket() as peer:
        await peer.send(first)
        frames, code, _ = await peer.end()
        assert ([frame.command for frame in frames], code) == (["ERROR"], 1002)


async def test_lost_socket_requeues_deliveries_and_aborts_transactions(world: World) -> None:
    async with world.socket() as peer:
        await peer.login()
        await peer.send(send("1"), SUB, "BEGIN\ntransaction:t\n\n\0", send("2", "transaction:t", "receipt:t"))
        got = sorted([(await peer.frame()).command for _ in range(2)])
        assert got == ["MESSAGE", "RECEIPT"]
        peer.socket.transport.abort()
    async with world.socket() as peer:
        await peer.login()
        await peer.send(SUB)
        assert (await peer.frame()).headers["x-tries"] == "1"
    assert world.count() == 1


def drain(bodies: Iterable[int]) -> str:
    return "".join(send(f"{n:06d}" + "x" * 10_000) for n in bodies)


@pytest.mark.parametrize("options", [QueueOptions(cap=64 * 1024 * 1024)])
async def test_a_client_that_does_not_read_is_bounded_and_loses_nothing(world: World) -> None:
    async with world.socket() as lazy, world.socket() as producer:
        await lazy.login()
        await lazy.send(SUB.replace("client-individual", "auto"))
        await producer.login()
        count = 2000
        for first in range(0, count, 20):
            await producer.send(drain(range(first, first + 20)) + send("", f"receipt:{first}", "x-ks-groups:g"))
            assert (await producer.frame()).command == "RECEIPT"
        assert world.broker.get(A).counts().rdy > 0, "the socket is full, the rest stays in the queue"
        for n in range(count):
            assert (await lazy.frame()).body.startswith(f"{n:06d}".encode())


@pytest.mark.parametrize("limits", [Limits(output_bytes_max=500_000)])
async def test_reading_stops_while_receipts_are_not_read(world: World) -> None:
    async with world.socket() as peer:
        await peer.login()
        (wire,) = world.server.clients
        receipt, count = "r" * 1000, 20_000
        many = send("1", f"receipt:{receipt}") * 20

        async def produce() -> None:
            for _ in range(count // 20):
                await peer.send(many)

        # Not awaited: the server stops reading, so the client's socket fills up.
        peer.socket.transport.set_write_buffer_limits(1 << 30)
        await produce()
        await wait_until(lambda: not wire.is_reading)
        assert world.count() < count
        for _ in range(count):
            assert (await peer.frame()).headers["receipt-id"] == receipt
        assert world.count() == count
