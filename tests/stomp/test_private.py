"""Private queues: a subscriber that takes nothing costs neither the publishers nor the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from curbstone.core.errors import CurbstoneError, NoSuchQueue, QueueFull, Unavailable
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.stomp.limits import Limits
from tests.stomp.client import WAIT_S, Peer, until
from tests.stomp.fake_broker import FakeBroker
from tests.stomp.harness import Client, send
from tests.stomp.test_engine import World, serving

LIMITS = Limits(private_bytes_max=200_000)
NEWS = b"SEND\ndestination:/topic/news\nreceipt:%d\n\n%b\0"


def run(path: Path, test: Callable[[World], Awaitable[None]], limits: Limits = LIMITS) -> None:
    async def main() -> None:
        async with serving(path, QueueOptions(cap=64 * 1024), limits) as world:
            await test(world)

    asyncio.run(main())


async def subscribed(world: World, ack: bytes, destination: bytes = b"/topic/news") -> Peer:
    peer = await world.peer()
    await peer.send(b"SUBSCRIBE\nid:0\ndestination:%b\nack:%b\nreceipt:s\n\n\0" % (destination, ack))
    assert (await peer.frame()).headers["receipt-id"] == "s"
    return peer


@pytest.mark.parametrize("ack", [b"auto", b"client"])
def test_a_stuck_subscriber_of_a_topic_is_closed_and_the_publishers_go_on(tmp_path: Path, ack: bytes) -> None:
    async def test(world: World) -> None:
        # One never reads (auto), or never acks (client); the others take everything.
        stuck, quick = await subscribed(world, ack), await subscribed(world, b"auto")
        publisher = await world.peer()
        count, body = 800, b"x" * 20_000
        for n in range(count):
            await publisher.send(NEWS % (n, body))
            assert (await publisher.frame()).headers["receipt-id"] == str(n)
            assert (await quick.frame()).body == body
        await until(lambda: len(world.broker.queues()) == 1)
        # What does not fit in a full socket, its ERROR too, is cut off in the end.
        with suppress(ConnectionError):
            await asyncio.wait_for(stuck.reader.read(), WAIT_S)
        await quick.send(b"DISCONNECT\nreceipt:d\n\n\0")
        assert (await quick.frame()).headers["receipt-id"] == "d"

    run(tmp_path, test)


def test_it_is_told_why(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        stuck = await subscribed(world, b"client")
        publisher = await world.peer()
        for n in range(2000):
            await publisher.send(NEWS % (n, b"x" * 500))
            assert (await publisher.frame()).headers["receipt-id"] == str(n)
        error = (await stuck.rest())[-1]
        assert error.command == "ERROR"
        assert "too slow" in error.headers["message"]

    run(tmp_path, test)


def test_a_burst_that_fills_the_private_queue_at_once_does_not_fail_its_publisher(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        stuck = await subscribed(world, b"client")
        publisher = await world.peer()
        count, body = 60, b"x" * 50_000
        publisher.writer.write(b"".join([NEWS % (n, body) for n in range(count)]))
        got = {(await publisher.frame()).headers["receipt-id"] for _ in range(count)}
        assert got == {str(n) for n in range(count)}
        assert (await stuck.rest())[-1].command == "ERROR"
        await until(lambda: not world.broker.queues())

    run(tmp_path, test)


def test_a_stuck_reader_of_replies_does_not_end_the_one_who_answers(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        asker = await subscribed(world, b"client", b"/temp-queue/r")
        (name,) = [queue.name for queue in world.broker.queues()]
        server = await world.peer()
        count, body = 60, b"x" * 50_000
        reply = b"SEND\ndestination:/queue/%b\nreceipt:%d\n\n%b\0"
        server.writer.write(b"".join([reply % (str(name).encode(), n, body) for n in range(count)]))
        got = {(await server.frame()).headers["receipt-id"] for _ in range(count)}
        assert got == {str(n) for n in range(count)}
        assert "too slow" in (await asker.rest())[-1].headers["message"]

    run(tmp_path, test)


def test_a_subscriber_with_room_is_never_too_slow(tmp_path: Path) -> None:
    """One old unsettled message keeps segments alive; that alone is no reason."""

    async def test(world: World) -> None:
        careful = await subscribed(world, b"client-individual")
        publisher = await world.peer()
        for n in range(200):
            await publisher.send(NEWS % (n, b"x" * 5000))
            assert (await publisher.frame()).headers["receipt-id"] == str(n)
            message = await careful.frame()
            assert message.command == "MESSAGE"
            if n:
                await careful.send(b"ACK\nid:%b\n\n\0" % message.headers["ack"].encode())

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("error", "durable", "fails"),
    [(QueueFull("full"), False, False), (NoSuchQueue("gone"), False, False), (QueueFull("full"), True, True),
     (Unavailable("no disk"), False, True)],
)  # fmt: skip
def test_only_what_private_queues_alone_refused_is_harmless(error: CurbstoneError, durable: bool, fails: bool) -> None:
    broker = FakeBroker()
    reader, writer = Client(broker, name="s1"), Client(broker, name="s2")
    reader.send("SUBSCRIBE|id:0|destination:/topic/news")
    (private,) = broker.queues()
    private.refuse = error
    if durable:
        kept = broker.ensure(QueueName("default", "kept"))
        kept.refuse = error
        broker.bind("news", kept.name, on_done=lambda _error: None)
    (answer,) = writer.send(send("hot", "receipt:r", queue="/topic/news"))
    assert (answer.command, answer.headers["receipt-id"]) == ("ERROR" if fails else "RECEIPT", "r")


def test_the_mark_that_the_gateway_keeps_in_a_block_is_not_a_header() -> None:
    """It says how the bytes of HTTP headers were read; a STOMP client must neither see it nor set it."""
    from curbstone.core.message import Message

    broker = FakeBroker()
    queue = broker.ensure(QueueName("default", "a"))
    block = "x-msg-x-k:grün\nx-http-charset:utf-8\nx-http-charset-not:1\n".encode()
    queue.publish([Message(b"1", block)], lambda _error, _first, _count: None)
    for version in ("1.0", "1.1", "1.2"):
        client = Client(broker, version=version)
        (message,) = client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:client-individual")
        assert (message.headers["x-msg-x-k"], message.headers["x-http-charset-not"]) == ("grün", "1")
        assert "x-http-charset" not in message.headers
        client.session.lose()
    Client(broker).send(send("2", "x-http-charset:utf-8", "x-msg-x-k:v", queue="/queue/b"))
    item = broker.all[QueueName("default", "b")].items[""][1]
    assert item.message.headers == b"x-msg-x-k:v\n"
