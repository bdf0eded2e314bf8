"""Private queues: a subscriber that takes nothing costs neither the publishers nor the disk."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from curbstone.core.errors import CurbstoneError, NoSuchQueue, QueueFull, Unavailable
from curbstone.core.names import reply_address
from curbstone.core.options import QueueOptions
from curbstone.stomp.limits import Limits
from tests.kit.engine import WAIT_S, wait_until
from tests.kit.lab import Lab
from tests.stomp import serving
from tests.stomp.client import Peer
from tests.stomp.harness import SUB, Client, Refuse, send
from tests.stomp.serving import World

pytestmark = pytest.mark.anyio

LIMITS = Limits(private_cap_min=800_000, body_bytes_max=100_000)
NEWS = b"SEND\ndestination:/topic/news\nreceipt:%d\n\n%b\0"


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def options() -> QueueOptions:
    return QueueOptions(cap=64 * 1024)


async def subscribed(world: World, ack: bytes, destination: bytes = b"/topic/news") -> Peer:
    peer = await world.peer()
    await peer.send(b"SUBSCRIBE\nid:0\ndestination:%b\nack:%b\nreceipt:s\n\n\0" % (destination, ack))
    assert (await peer.frame()).headers["receipt-id"] == "s"
    return peer


@pytest.mark.parametrize("ack", [b"auto", b"client"])
async def test_a_stuck_subscriber_of_a_topic_is_closed_and_the_publishers_continue(world: World, ack: bytes) -> None:
    # One never reads (auto), or never acks (client); the others take everything.
    stuck, quick = await subscribed(world, ack), await subscribed(world, b"auto")
    publisher = await world.peer()
    count, body = 800, b"x" * 20_000
    for n in range(count):
        await publisher.send(NEWS % (n, body))
        assert (await publisher.frame()).headers["receipt-id"] == str(n)
        assert (await quick.frame()).body == body
    await wait_until(lambda: len(world.broker.private_queues()) == 1)
    # What does not fit in a full socket, its ERROR too, is cut off in the end.
    with suppress(ConnectionError):
        await asyncio.wait_for(stuck.reader.read(), WAIT_S)
    await quick.send(b"DISCONNECT\nreceipt:d\n\n\0")
    assert (await quick.frame()).headers["receipt-id"] == "d"


async def test_reason_for_closing_a_slow_subscriber_is_reported(world: World) -> None:
    stuck = await subscribed(world, b"client")
    publisher = await world.peer()
    for n in range(2000):
        await publisher.send(NEWS % (n, b"x" * 500))
        assert (await publisher.frame()).headers["receipt-id"] == str(n)
    error = (await stuck.read_all())[-1]
    assert error.command == "ERROR"
    assert "too slow" in error.headers["message"]


async def test_burst_that_fills_a_private_queue_does_not_fail_its_publisher(world: World) -> None:
    stuck = await subscribed(world, b"client")
    publisher = await world.peer()
    count, body = 60, b"x" * 50_000
    publisher.writer.write(b"".join([NEWS % (n, body) for n in range(count)]))
    got = {(await publisher.frame()).headers["receipt-id"] for _ in range(count)}
    assert got == {str(n) for n in range(count)}
    assert (await stuck.read_all())[-1].command == "ERROR"
    await wait_until(lambda: not world.broker.private_queues())


async def test_stuck_requester_does_not_close_the_responder(world: World) -> None:
    asker = await subscribed(world, b"client", b"/temp-queue/r")
    (name,) = [queue.name for queue in world.broker.private_queues()]
    server = await world.peer()
    count, body = 60, b"x" * 50_000
    reply = b"SEND\ndestination:%b\nreceipt:%d\n\n%b\0"
    server.writer.write(b"".join([reply % (reply_address(name).encode(), n, body) for n in range(count)]))
    got = {(await server.frame()).headers["receipt-id"] for _ in range(count)}
    assert got == {str(n) for n in range(count)}
    assert "too slow" in (await asker.read_all())[-1].headers["message"]


async def test_a_subscriber_with_room_is_never_too_slow(world: World) -> None:
    """One old unsettled message keeps segments alive; that alone is no reason."""
    careful = await subscribed(world, b"client-individual")
    publisher = await world.peer()
    for n in range(200):
        await publisher.send(NEWS % (n, b"x" * 5000))
        assert (await publisher.frame()).headers["receipt-id"] == str(n)
        message = await careful.frame()
        assert message.command == "MESSAGE"
        if n:
            await careful.send(b"ACK\nid:%b\n\n\0" % message.headers["ack"].encode())


@pytest.mark.parametrize(
    ("error", "durable", "fails"),
    [(QueueFull("full"), False, False), (NoSuchQueue("gone"), False, False), (QueueFull("full"), True, True),
     (Unavailable("no disk"), False, True)],
)  # fmt: skip
def test_message_without_room_in_a_private_queue_is_harmless(
    lab: Lab, refuse: Refuse, error: CurbstoneError, durable: bool, fails: bool
) -> None:
    reader, writer = Client(lab, name="s1"), Client(lab, name="s2")
    reader.send("SUBSCRIBE|id:0|destination:/topic/news")
    refusing = lab.queue("kept") if durable else lab.broker.private_queues()[0]
    if durable:
        lab.answer(lambda done: lab.broker.bind("news", refusing.name, done))
    refuse(refusing.name.queue, error)
    (answer,) = writer.send(send("hot", "receipt:r", queue="/topic/news"))
    assert (answer.command, answer.headers["receipt-id"]) == ("ERROR" if fails else "RECEIPT", "r")


def test_subscriber_never_misses_a_message_silently(lab: Lab, refuse: Refuse) -> None:
    reader, writer = Client(lab, name="s1"), Client(lab, name="s2")
    reader.send("SUBSCRIBE|id:0|destination:/topic/news")
    refuse(lab.broker.private_queues()[0].name.queue, QueueFull("full"))
    assert writer.receipts(send("hot", "receipt:r", queue="/topic/news")) == ["r"]
    (reported,) = reader.read()
    assert reported.command == "ERROR" and "too slow" in reported.headers["message"]


def test_transactional_reply_reaches_the_requester_or_nobody(
    refuse: Refuse,
) -> None:
    """The one who asked may be gone, or take nothing: that is no reason not to commit."""
    for state in ("there", "gone", "full"):
        lab = Lab()
        asker, server = Client(lab, name="s1"), Client(lab, name="s2")
        asker.send("SUBSCRIBE|id:r|destination:/temp-queue/r", send("?", "reply-to:/temp-queue/r"))
        (question,) = server.send(SUB)
        if state == "gone":
            asker.session.connection_lost()
            lab.settle()
        elif state == "full":
            refuse(lab.broker.private_queues()[0].name.queue, QueueFull("full"))
        reply = send("!", "transaction:t", queue=question.headers["reply-to"])
        assert server.send("BEGIN|transaction:t", f"ACK|id:{question.headers['ack']}|transaction:t", reply) == []
        assert asker.read() == []
        assert server.receipts("COMMIT|transaction:t|receipt:c") == ["c"]
        assert lab.bodies("a") == [] and not server.session.ending
        got = [frame.command for frame in asker.read()]
        assert got == {"there": ["MESSAGE"], "gone": [], "full": ["ERROR"]}[state]
        assert bool(lab.broker.private_queues()) == (state == "there")


def test_large_messages_pass_a_topic_without_closing_subscribers(tmp_path: Path) -> None:
    """Private queues held 64 MiB whatever a message could have: larger ones were lost behind a RECEIPT."""
    largest = 3_000_000
    body = b"x" * largest

    async def test(world: World) -> None:
        readers = [await subscribed(world, ack) for ack in (b"auto", b"client")]
        publisher = await world.peer()
        for n in range(4):
            await publisher.send(NEWS % (n, body))
            assert (await publisher.frame()).headers["receipt-id"] == str(n)
        for reader in readers:
            for _ in range(4):
                message = await reader.frame()
                assert message.command == "MESSAGE" and message.body == body
            await reader.send(b"DISCONNECT\nreceipt:d\n\n\0")
            assert (await reader.frame()).headers["receipt-id"] == "d"

    async def main() -> None:
        limits = Limits(private_cap_min=100_000, body_bytes_max=largest)
        async with serving.serving(tmp_path, QueueOptions(max_message_size=largest), limits) as world:
            await test(world)

    asyncio.run(main())


async def test_send_creates_the_own_temporary_queue(world: World) -> None:
    """In either case with the cap of a private queue, and gone with its client."""
    peer = await world.peer()
    await peer.send(b"SEND\ndestination:/temp-queue/r\nreceipt:1\n\nnote\0")
    assert (await peer.frame()).headers["receipt-id"] == "1"
    (queue,) = world.broker.private_queues()
    assert queue.options.cap == LIMITS.private_cap
    await peer.send(b"SUBSCRIBE\nid:0\ndestination:/temp-queue/r\n\n\0")
    assert (await peer.frame()).body == b"note"
    await peer.close()
    await wait_until(lambda: not world.broker.private_queues())


def test_internal_marker_is_not_delivered_as_a_header() -> None:
    """It says how the bytes of HTTP headers were read; a STOMP client must neither see it nor set it."""
    from curbstone.core.message import Message

    lab = Lab()
    queue = lab.queue("a")
    block = "x-msg-x-k:grün\nx-http-charset:utf-8\nx-http-charset-not:1\n".encode()
    lab.publish_messages(queue, [Message(b"1", block)])
    for version in ("1.0", "1.1", "1.2"):
        client = Client(lab, version=version)
        (message,) = client.send("SUBSCRIBE|id:0|destination:/queue/a|ack:client-individual")
        assert (message.headers["x-msg-x-k"], message.headers["x-http-charset-not"]) == ("grün", "1")
        assert "x-http-charset" not in message.headers
        client.session.connection_lost()
    Client(lab).send(send("2", "x-http-charset:utf-8", "x-msg-x-k:v", queue="/queue/b"))
    (found,) = lab.peek(lab.named("b"))
    assert found.message.headers == b"x-msg-x-k:v\n"
