"""The TCP server over real sockets: pressure, deadlines and the way it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from curbstone.core.options import MIB, QueueOptions
from curbstone.stomp.limits import Limits
from tests.kit.engine import WAIT_S, wait_until
from tests.stomp.client import CONNECT
from tests.stomp.serving import World, serving

pytestmark = pytest.mark.anyio


async def test_message_round_trips(world: World) -> None:
    peer = await world.peer()
    await peer.send(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client\n\n\0")
    await peer.send(b"SEND\ndestination:/queue/a\nreceipt:r\nk:v\n\nhello\0")
    frames = {frame.command: frame for frame in (await peer.frame(), await peer.frame())}
    assert frames["RECEIPT"].headers["receipt-id"] == "r"
    assert (frames["MESSAGE"].body, frames["MESSAGE"].headers["k"]) == (b"hello", "v")
    await peer.send(b"ACK\nid:%b\nreceipt:a\n\n\0" % frames["MESSAGE"].headers["ack"].encode())
    assert (await peer.frame()).headers["receipt-id"] == "a"
    await peer.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    assert [frame.headers for frame in await peer.read_all()] == [{"receipt-id": "bye"}]


async def test_a_thousand_sends_in_one_write_get_their_receipts_in_order(
    world: World, calls: list[tuple[Any, ...]]
) -> None:
    peer = await world.peer()
    await peer.send(b"".join(b"SEND\ndestination:/queue/a\nreceipt:%d\n\n%d\0" % (n, n) for n in range(1000)))
    for n in range(1000):
        assert (await peer.frame()).headers["receipt-id"] == str(n)
    publishes = [call for call in calls if call[0] == "publish"]
    assert len(publishes) < 10, "together, not one by one"


async def test_m10_an_error_reaches_a_client_that_is_still_sending(world: World) -> None:
    """A reset of a socket with unread input used to destroy the ERROR before the client could read it."""
    for _ in range(20):
        peer = await world.peer()
        peer.writer.write(b"BOGUS\nreceipt:r\n\n\0" + b"x" * 3_000_000)
        (error,) = await peer.read_all()
        assert error.command == "ERROR"
        peer.writer.close()


async def test_m07_send_and_close_immediately(world: World) -> None:
    peer = await world.peer()
    peer.writer.write(b"SEND\ndestination:/queue/a\n\n1\0" * 500)
    peer.writer.close()
    await wait_until(lambda: world.count() == 500)


async def test_half_closed_client_gets_its_receipts(world: World) -> None:
    """As in `printf ... | nc host 61613`."""
    peer = await world.peer(connect=False)
    peer.writer.write(CONNECT + b"SEND\ndestination:/queue/a\nreceipt:r\n\n1\0")
    peer.writer.write_eof()
    assert [frame.command for frame in await peer.read_all()] == ["CONNECTED", "RECEIPT"]


@pytest.mark.parametrize("options", [QueueOptions(cap=64 * MIB)])
async def test_client_that_does_not_read_gets_no_deliveries(world: World) -> None:
    lazy = await world.peer()
    await lazy.send(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:auto\n\n\0")
    producer = await world.peer()
    count, body = 2000, b"x" * 10_000
    for n in range(count):
        await producer.send(b"SEND\ndestination:/queue/a\nreceipt:%d\n\n%b\0" % (n, body))
        if n % 100 == 99:
            for _ in range(100):
                await producer.frame()
    assert world.count() > 0, "the socket is full, the rest stays in the queue"
    for _ in range(count):
        assert (await lazy.frame()).body == body
    assert world.count() == 0


@pytest.mark.parametrize("limits", [Limits(unconfirmed_max=1000)])
async def test_reading_stops_while_too_much_is_unconfirmed(world: World, calls: list[tuple[Any, ...]]) -> None:
    peer = await world.peer()
    held: list[tuple[Any, ...]] = []
    world.host.submit = lambda *job: held.append(job)  # type: ignore[method-assign]  # a disk that does nothing
    count = 100_000
    peer.writer.write(b"SEND\ndestination:/queue/a\n\n1\0" * count + b"DISCONNECT\nreceipt:r\n\n\0")
    (client,) = world.server.clients
    await wait_until(lambda: client.session.congested and not client.is_reading)
    taken = sum(len(bodies) for what, _queue, bodies in calls if what == "publish")
    assert taken < count, "the rest waits in the socket"
    del world.host.submit
    for job in held:
        world.host.submit(*job)
    assert [frame.headers for frame in await peer.read_all()] == [{"receipt-id": "r"}]
    assert world.count() == count


@pytest.mark.parametrize("limits", [Limits(output_bytes_max=1_000_000, unconfirmed_max=1000)])
async def test_reading_stops_while_a_client_does_not_read_its_receipts(world: World) -> None:
    peer = await world.peer()
    count, receipt = 30_000, "r" * 1000
    peer.writer.write(f"SEND\ndestination:/queue/a\nreceipt:{receipt}\n\n1\0".encode() * count)
    (client,) = world.server.clients
    unsent = client._transport.get_write_buffer_size
    await wait_until(lambda: unsent() > 1_000_000 and not client.is_reading)
    assert client._transport.get_write_buffer_size() < 4_000_000
    assert world.count() < count
    for _ in range(count):
        assert (await peer.frame()).headers["receipt-id"] == receipt
    assert world.count() == count


@pytest.mark.parametrize("limits", [Limits(connect_ms=1000)])
async def test_c18_a_client_that_does_not_connect_is_closed(world: World) -> None:
    peer = await world.peer(connect=False)
    await peer.send(b"CONN")
    (error,) = await peer.read_all()
    assert "CONNECT" in error.headers["message"]


@pytest.mark.parametrize("limits", [Limits(frame_ms=100)])
async def test_frame_that_trickles_in_times_out(world: World) -> None:
    peer = await world.peer()
    await peer.send(b"SEND\ndestination:/queue/a\n")
    world.host.shift_ms = 60_000
    (error,) = await peer.read_all()
    assert "complete frame" in error.headers["message"]


async def test_c16_heart_beats_over_a_socket(world: World) -> None:
    peer = await world.peer(connect=False)
    await peer.send(b"CONNECT\naccept-version:1.2\nheart-beat:0,100\n\n\0")
    assert (await peer.frame()).headers["heart-beat"] == "100,0"
    assert await asyncio.wait_for(peer.reader.readexactly(2), WAIT_S) == b"\n\n"


async def test_c17_a_peer_that_vanished_is_found_by_keepalive(world: World) -> None:
    await world.peer()
    (client,) = world.server.clients
    raw: socket.socket = client._transport.get_extra_info("socket")
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
    assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "or small replies take 40 ms"


async def test_stop_notifies_the_clients(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        idle, busy = await world.peer(), await world.peer()
        busy.writer.write(b"SEND\ndestination:/queue/a\nreceipt:r\n\n1\0")
        await wait_until(lambda: bool(world.broker.queues()))
        stopping = asyncio.ensure_future(world.server.stop())
        (error,) = await idle.read_all()
        assert error.headers["message"] == "the server is shutting down"
        assert [frame.command for frame in await busy.read_all()] == ["RECEIPT", "ERROR"]
        for peer in (idle, busy):
            peer.writer.close()
        await asyncio.wait_for(stopping, WAIT_S)
        with pytest.raises(OSError):
            await asyncio.open_connection(*world.address)


async def test_reset_connection_requeues_its_deliveries(world: World) -> None:
    rude = await world.peer()
    await rude.send(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client\n\n\0SEND\ndestination:/queue/a\n\n1\0")
    assert (await rude.frame()).command == "MESSAGE"
    raw: socket.socket = rude.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    rude.writer.transport.abort()
    other = await world.peer()
    await other.send(b"SUBSCRIBE\nid:0\ndestination:/queue/a\nack:client\n\n\0")
    message = await other.frame()
    assert (message.headers["x-tries"], message.headers["redelivered"]) == ("1", "true")
