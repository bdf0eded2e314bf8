"""Topics over STOMP: masks, and durable subscriptions, whose queue waits while their subscriber is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions
from curbstone.stomp.limits import Limits
from tests.stomp.client import Peer
from tests.stomp.harness import Client, send
from tests.stomp.serving import World, serving

pytestmark = pytest.mark.anyio

SUBSCRIBE = b"SUBSCRIBE\nid:7\ndestination:/topic/news\nreceipt:s\n%b\n\n\0"
WAYS = {
    b"x-queue-name:mine": "mine",
    b"activemq.subscriptionName:mine": "mine",
    b"durable-subscription-name:mine\ndurable:true": "mine",
    b"durable:true": "7:news",
    b"persistent:true": "7:news",
}


def run(path: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(path, QueueOptions(), Limits()) as world:
            await test(world)

    asyncio.run(main())


async def receipt(peer: Peer, frame: bytes) -> None:
    await peer.send(frame)
    answer = await peer.frame()
    assert (answer.command, answer.headers.get("receipt-id")) == ("RECEIPT", "s"), answer


async def publish(world: World, body: bytes, topic: bytes = b"news") -> None:
    await receipt(await world.peer(), b"SEND\ndestination:/topic/%b\nreceipt:s\n\n%b\0" % (topic, body))


async def leave(peer: Peer) -> None:
    await peer.send(b"DISCONNECT\nreceipt:bye\n\n\0")
    assert (await peer.read_all())[-1].headers["receipt-id"] == "bye"


@pytest.mark.parametrize("way", WAYS)
async def test_messages_published_while_disconnected_are_delivered_on_return(world: World, way: bytes) -> None:
    peer = await world.peer()
    await receipt(peer, SUBSCRIBE % way)
    await publish(world, b"1")
    assert (await peer.frame()).body == b"1"
    await leave(peer)
    await publish(world, b"2")
    (queue,) = world.broker.queues()
    assert queue.name == queue_name(WAYS[way])
    back = await world.peer()
    await receipt(back, SUBSCRIBE % way)
    message = await back.frame()
    assert (message.body, message.headers["destination"]) == (b"2", "/topic/news")


def test_durable_subscription_survives_a_restart(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await receipt(await world.peer(), SUBSCRIBE % b"durable:true\nack:client")

    async def after(world: World) -> None:
        await publish(world, b"1")
        peer = await world.peer()
        await receipt(peer, SUBSCRIBE % b"durable:true")
        assert (await peer.frame()).body == b"1"

    run(tmp_path, before)
    run(tmp_path, after)


async def test_unsubscribe_keeps_it_and_with_durable_deletes_it(world: World) -> None:
    peer = await world.peer()
    await receipt(peer, SUBSCRIBE % b"durable:true")
    await receipt(peer, b"UNSUBSCRIBE\nid:7\nreceipt:s\n\n\0")
    await publish(world, b"1")
    assert world.broker.get(queue_name("7:news")).counts().rdy == 1
    await receipt(peer, SUBSCRIBE % b"durable:true\nack:client")
    assert (await peer.frame()).body == b"1"
    await receipt(peer, b"UNSUBSCRIBE\nid:7\ndurable:true\nreceipt:s\n\n\0")
    assert not world.broker.queues()
    await publish(world, b"2")
    await leave(peer)


async def test_several_topics_can_share_a_named_queue(world: World) -> None:
    peer = await world.peer()
    for number, topic in enumerate([b"a", b"b.*"]):
        frame = b"SUBSCRIBE\nid:%d\ndestination:/topic/%b\nx-queue-name:both\nreceipt:s\n\n\0"
        await receipt(peer, frame % (number, topic))
    await publish(world, b"1", b"a")
    await publish(world, b"2", b"b.x")
    assert [(await peer.frame()).body, (await peer.frame()).body] == [b"1", b"2"]
    assert world.broker.bindings(queue_name("both")).keys() == {"a", "b.*"}


def test_client_id_separates_subscription_names() -> None:
    client = Client(connect="|client-id:alice")
    assert client.receipts("SUBSCRIBE|id:1|destination:/topic/news|durable:true|receipt:r") == ["r"]
    assert client.lab.names() == [queue_name("alice.1")]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("SUBSCRIBE|id:a b|destination:/topic/news|durable:true", "bad queue name"),
        ("SUBSCRIBE|id:1|destination:/topic/news|durable:yes", "true or false"),
        ("SUBSCRIBE|id:1|destination:/queue/a|x-queue-name:b", "for topics"),
    ],
)
def test_invalid_durable_subscription_is_an_error(client: Client, frame: str, said: str) -> None:
    assert said in client.error(frame).headers["message"]
    assert not client.lab.names()


@pytest.mark.parametrize(("connect", "name"), [("|client-id:me", "id:1"), ("", "durable-subscription-name:mine")])
def test_name_is_bound_to_one_topic(connect: str, name: str) -> None:
    client = Client(connect=connect)
    frame = f"SUBSCRIBE|id:1|destination:/topic/%s|durable:true|{name}"
    client.send(frame % "news")
    other = Client(client.lab, connect=connect)
    assert "belongs to the topic news" in other.error(frame % "sports").headers["message"]


def test_without_a_client_id_an_id_is_one_subscription_for_each_topic(client: Client) -> None:
    """Clients number their subscriptions alike: the second client got an ERROR for the topic of the first."""
    frame = "SUBSCRIBE|id:sub-0|destination:/topic/%s|durable:true|receipt:r"
    for topic in ("one", "two", "one"):
        assert Client(client.lab).receipts(frame % topic) == ["r"]
    assert client.lab.names() == [queue_name("sub-0:one"), queue_name("sub-0:two")]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("a:b", "c"), ("a", "b:c")),
        (("a", "b*"), ("a", "b#")),
        (("a", "x" * 199), ("a", "x" * 200)),
        (("i" * 190, "topic-of-one"), ("i" * 190, "topic-of-two")),
        (("a", "b/c"), ("a", "b.c")),
    ],
)
def test_each_id_and_topic_has_its_own_queue(client: Client, one: tuple[str, str], two: tuple[str, str]) -> None:
    for identifier, topic in (one, two):
        frame = f"SUBSCRIBE|id:{identifier}|destination:/topic/{topic}|durable:true|receipt:r"
        assert Client(client.lab).receipts(frame.replace("id:a:b", "id:a\\cb")) == ["r"]
    assert len(client.lab.names()) == 2


async def test_queue_of_an_earlier_version_is_still_used(world: World) -> None:
    peer = await world.peer()
    await receipt(peer, SUBSCRIBE % b"x-queue-name:7")
    await leave(peer)
    await publish(world, b"1")
    back = await world.peer()
    await receipt(back, SUBSCRIBE % b"durable:true\nack:client")
    assert (await back.frame()).body == b"1"
    await receipt(back, b"SUBSCRIBE\nid:8\ndestination:/topic/other\ndurable:true\nreceipt:s\n\n\0")
    assert [queue.name.queue for queue in world.broker.queues()] == ["7", "8:other"]
    await leave(back)
    gone = await world.peer()
    await receipt(gone, b"UNSUBSCRIBE\nid:7\ndurable:true\ndestination:/topic/news\nreceipt:s\n\n\0")
    assert [queue.name.queue for queue in world.broker.queues()] == ["8:other"]


@pytest.mark.parametrize(
    ("connect", "subscribe", "unsubscribe"),
    [
        ("", "durable-subscription-name:mine", "UNSUBSCRIBE|durable-subscription-name:mine"),
        ("", "durable-subscription-name:mine", "UNSUBSCRIBE|id:9|durable-subscription-name:mine"),
        ("|client-id:me", "activemq.subscriptionName:mine", "UNSUBSCRIBE|activemq.subscriptionName:mine"),
        ("", "x-queue-name:mine", "UNSUBSCRIBE|x-queue-name:mine"),
        ("|client-id:me", "durable:true", "UNSUBSCRIBE|id:1|durable:true"),
        ("", "durable:true", "UNSUBSCRIBE|id:1|durable:true|destination:/topic/news"),
    ],
)
@pytest.mark.parametrize("is_here", [False, True])
def test_a_durable_subscription_is_deleted_by_its_name(
    connect: str, subscribe: str, unsubscribe: str, is_here: bool
) -> None:
    """A connection that had not subscribed got "no subscription found", and could not delete it."""
    client = Client(connect=connect)
    assert client.receipts(f"SUBSCRIBE|id:1|destination:/topic/news|{subscribe}|receipt:r") == ["r"]
    other = client
    if not is_here:
        client.send("DISCONNECT")
        other = Client(client.lab, connect=connect)
    assert sorted(other.receipts(f"{unsubscribe}|receipt:r", send("x", "receipt:s"))) == ["r", "s"]
    assert client.lab.names() == [queue_name("a")]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("UNSUBSCRIBE|durable-subscription-name:a", "no durable subscription [default/a] found"),
        ("UNSUBSCRIBE|durable-subscription-name:other", "no durable subscription [default/other] found"),
        ("UNSUBSCRIBE|id:1|durable:true", "missing mandatory header [destination]"),
        ("UNSUBSCRIBE|durable:true", "missing mandatory header [id]"),
        ("UNSUBSCRIBE|id:1|durable:true|destination:/topic/news", "no durable subscription [default/1:news] found"),
        ("UNSUBSCRIBE|id:1", "no subscription [1] found"),
    ],
)
def test_non_durable_queue_is_not_deleted(client: Client, frame: str, said: str) -> None:
    client.send(send("x"))
    assert said in client.error(frame).headers["message"]
    assert client.lab.names() == [queue_name("a")]


async def test_a_subscriber_by_mask_gets_each_message_once(world: World) -> None:
    peer = await world.peer()
    for number, mask in enumerate([b"order.*.paid", b"order.>", b"#.never"]):
        await receipt(peer, b"SUBSCRIBE\nid:%d\ndestination:/topic/%b\nreceipt:s\n\n\0" % (number, mask))
    await publish(world, b"1", b"order.7.paid")
    await publish(world, b"2", b"order")
    found = {(frame.headers["subscription"], frame.body) for frame in [await peer.frame() for _ in range(3)]}
    assert found == {("0", b"1"), ("1", b"1"), ("1", b"2")}
    await receipt(peer, b"UNSUBSCRIBE\nid:1\nreceipt:s\n\n\0")
    await publish(world, b"3", b"order.8.paid")
    assert (await peer.frame()).headers["subscription"] == "0"


@pytest.mark.parametrize("topic", ["a.*", "#", "a.>"])
def test_send_to_a_mask_is_refused(client: Client, topic: str) -> None:
    assert "is for SUBSCRIBE" in client.error(send("x", "receipt:r", queue=f"/topic/{topic}")).headers["message"]


def test_a_durable_subscription_keeps_its_selector_and_another_one_replaces_it(tmp_path: Path) -> None:
    """What waits from before stays: in JMS another selector ends the subscription with all its messages."""

    async def publish_all(world: World) -> None:
        for kind in (b"a", b"b"):
            sent = b"SEND\ndestination:/topic/news\nkind:%b\nreceipt:s\n\n%b\0" % (kind, kind)
            await receipt(await world.peer(), sent)

    async def test(world: World) -> None:
        for wanted in (b"kind = 'a'", b"kind = 'b'", b""):
            peer = await world.peer()
            await receipt(peer, SUBSCRIBE % (b"x-queue-name:mine\nack:client\nselector:" + wanted))
            await leave(peer)
            assert world.broker.bindings(queue_name("mine")) == {"news": wanted.decode()}
            await publish_all(world)
        peer = await world.peer()
        await receipt(peer, SUBSCRIBE % b"x-queue-name:mine")
        assert [(await peer.frame()).body for _ in range(4)] == [b"a", b"b", b"a", b"b"]

    run(tmp_path, test)
