"""STOMP over real sockets on the real engine: what was confirmed is there after a restart."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curbstone.access.private_queues import AT_ONCE
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from tests.kit.engine import A, wait_until
from tests.stomp.serving import SUB, World, run

pytestmark = pytest.mark.anyio


def test_confirmed_messages_and_acks_survive_a_restart(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        peer = await world.peer()
        for n in range(10):
            await peer.send(b"SEND\ndestination:/queue/a\nk:v%d\nreceipt:%d\n\nbody %d\0" % (n, n, n))
        assert [(await peer.frame()).headers["receipt-id"] for _ in range(10)] == [str(n) for n in range(10)]
        await peer.send(SUB)
        for _ in range(5):
            message = await peer.frame()
            await peer.send(b"ACK\nid:%b\nreceipt:a\n\n\0" % message.headers["ack"].encode())
        for _ in range(10):
            frame = await peer.frame()
            if frame.command == "RECEIPT":
                assert frame.headers["receipt-id"] == "a"

    async def after(world: World) -> None:
        peer = await world.peer()
        await peer.send(SUB)
        for n in range(5, 10):
            message = await peer.frame()
            assert (message.body, message.headers["k"]) == (b"body %d" % n, f"v{n}")
            assert message.headers["redelivered"] == "true"

    run(tmp_path, before, after)


def test_transaction_over_two_queues_is_atomic(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        peer = await world.peer()
        await peer.send(b"SEND\ndestination:/queue/a\n\nin\0" + SUB)
        message = await peer.frame()
        await peer.send(
            b"BEGIN\ntransaction:t\n\n\0ACK\nid:%b\ntransaction:t\n\n\0"
            b"SEND\ndestination:/queue/b\ntransaction:t\n\nout\0COMMIT\ntransaction:t\nreceipt:c\n\n\0"
            % message.headers["ack"].encode()
        )
        assert (await peer.frame()).headers["receipt-id"] == "c"

    async def after(world: World) -> None:
        assert world.count() == 0
        assert world.count(QueueName("default", "b")) == 1

    run(tmp_path, before, after)


@pytest.mark.parametrize("options", [QueueOptions(cap=64 * 1024)])
async def test_a_full_queue_refuses_with_an_error_and_the_receipt(world: World) -> None:
    peer = await world.peer()
    body = b"x" * 1000
    for n in range(100):
        await peer.send(b"SEND\ndestination:/queue/a\nreceipt:%d\n\n%b\0" % (n, body))
    frames = await peer.read_all()
    assert frames[-1].command == "ERROR"
    assert "cap" in frames[-1].body.decode()
    confirmed = [frame.headers["receipt-id"] for frame in frames[:-1]]
    assert frames[-1].headers["receipt-id"] == str(len(confirmed))
    assert confirmed == [str(n) for n in range(len(confirmed))]
    assert world.count() >= len(confirmed)


async def test_acks_of_a_topic_are_confirmed_although_its_queue_is_deleted(world: World) -> None:
    for goodbye in (b"UNSUBSCRIBE\nid:0\n\n\0", b""):
        peer = await world.peer()
        await peer.send(b"SUBSCRIBE\nid:0\ndestination:/topic/news\nack:client\n\n\0")
        await peer.send(b"SEND\ndestination:/topic/news\n\nhot\0")
        message = await peer.frame()
        ack = b"ACK\nid:%b\nreceipt:a\n\n\0" % message.headers["ack"].encode()
        await peer.send(goodbye + ack + b"DISCONNECT\nreceipt:d\n\n\0")
        assert [frame.headers.get("receipt-id") for frame in await peer.read_all()] == ["a", "d"]
        await wait_until(lambda: not world.broker.private_queues())


async def test_a_deleted_queue_ends_its_subscribers_with_an_error(world: World) -> None:
    peer, producer = await world.peer(), await world.peer()
    await peer.send(SUB.replace(b"\n\n", b"\nreceipt:s\n\n"))
    await peer.frame()
    await producer.send(b"SEND\ndestination:/queue/a\nreceipt:1\n\n1\0")
    await producer.frame()
    assert (await peer.frame()).command == "MESSAGE"
    world.broker.delete(A, lambda _existed: None)
    assert (await peer.read_all())[-1].command == "ERROR"
    await producer.send(b"SEND\ndestination:/queue/a\nreceipt:2\n\n2\0")
    assert (await producer.frame()).headers["receipt-id"] == "2", "created again on the next use"


@pytest.mark.source
def test_the_private_queues_of_a_connection_are_deleted_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World) -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        deleted: list[int] = []

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(next_turn)

        peer = await world.peer()
        frames = [b"SUBSCRIBE\nid:%d\ndestination:/topic/t%d\nreceipt:%d\n\n\0" % (n, n, n) for n in range(100)]
        await peer.send(b"".join(frames))
        for _ in frames:
            await peer.frame()
        delete = world.broker.delete

        def note(*arguments: Any) -> None:
            deleted.append(turn)
            delete(*arguments)

        monkeypatch.setattr(world.broker, "delete", note)
        next_turn()
        await peer.close()
        await wait_until(lambda: not world.broker.private_queues())
        assert len(deleted) == 100 and max(Counter(deleted).values()) <= AT_ONCE

    run(tmp_path, main)
