"""Transactions of several messages on a cluster: all of them are stored, or none is, whatever is lost meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from curbstone.core.errors import CurbstoneError, MessageTooLarge, NoSuchQueue, NotSupported, QueueFull, Unavailable
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.orders import Orders
from curbstone.core.port import Queue
from curbstone.rabbit.amqp.port import AmqpError
from curbstone.rabbit.engine import Engine
from curbstone.rabbit.publishing.unit import UNIT_BYTES_MAX, Addressed, Unit, decode, encode
from curbstone.rabbit.shared.ids import time_of
from tests.engines.model import ModelBroker, ModelConnection
from tests.engines.worlds import DEFAULTS, ModelWorld, NodeWorld, World


def committed(world: World, *publishes: tuple[Queue, Message]) -> CurbstoneError | None:
    transaction = world.broker.transaction()
    for queue, message in publishes:
        transaction.publish(queue, message)
    (error,) = world.answer(transaction.commit)
    assert error is None or isinstance(error, CurbstoneError)
    return error


def test_transaction_messages_arrive_in_order_with_their_options(world: World) -> None:
    first, second = world.queue(groups=["g"]), world.queue()
    (error,) = world.answer(lambda done: world.broker.bind("news", second.name, done, second.name.project))
    assert error is None
    transaction = world.broker.transaction()
    for body in "ab":
        transaction.publish(first, Message(body.encode(), b"x-msg-x:1\n", orders=Orders(groups=("", "g"))))
    transaction.publish(first, Message(b"late", orders=Orders(delay_ms=200)))
    transaction.publish(second, Message(b"c", orders=Orders(ttl_ms=60_000)))
    transaction.publish_event("news", Message(b"event"), second.name.project)
    assert world.answer(transaction.commit) == (None,)
    assert sorted(world.bodies(second, 2)) == ["c", "event"]
    for group in ("", "g"):
        peer = world.peer(first, group=group)
        peer.expect("a", "b", "late")
        assert [b"x-msg-x:1\n" in each.message.headers for each in peer.deliveries] == [True, True, False]
        peer.settle("ack", "a", "b", "late")


def test_one_invalid_message_refuses_the_whole_transaction(cluster: ModelWorld | NodeWorld) -> None:
    source, good, gone = (cluster.queue() for _ in range(3))
    peer = cluster.peer(source)
    cluster.publish(source, "a")
    peer.expect("a")
    (deleted,) = cluster.answer(lambda done: cluster.broker.delete(gone.name, done))
    assert deleted is True
    too_long = Message(b"x" * (DEFAULTS.max_message_size + 1))
    wrong: list[tuple[Queue, Message, type[CurbstoneError]]] = [
        (good, too_long, MessageTooLarge),
        (gone, Message(b"b"), NoSuchQueue),
    ]
    for queue, message, kind in wrong:
        transaction = cluster.broker.transaction()
        transaction.publish(good, Message(b"a"))
        transaction.publish(queue, message)
        transaction.ack(peer.consumer, peer.seqs("a"))
        (error,) = cluster.answer(transaction.commit)
        assert isinstance(error, kind), error
    assert cluster.bodies(good, wait_ms=100) == []
    peer.settle("ack", "a")
    big = Message(b"x" * DEFAULTS.max_message_size)
    error = committed(cluster, *[(good, big)] * (UNIT_BYTES_MAX // DEFAULTS.max_message_size + 1))
    assert isinstance(error, MessageTooLarge) and "a transaction or batch has at most" in str(error)
    transaction = cluster.broker.transaction()
    transaction.publish(good, Message(b"a"))
    transaction.publish_event("news", Message(b"a", orders=Orders(delay_ms=10)))
    (error,) = cluster.answer(transaction.commit)
    assert isinstance(error, NotSupported)
    assert cluster.bodies(good, wait_ms=100) == []


def test_transaction_acks_take_effect_after_commit(cluster: ModelWorld | NodeWorld) -> None:
    source, target = cluster.queue(), cluster.queue()
    peer = cluster.peer(source)
    cluster.publish(source, "a", "b")
    peer.expect("a", "b")
    transaction = cluster.broker.transaction()
    for body in "xy":
        transaction.publish(target, Message(body.encode()))
    transaction.ack(peer.consumer, peer.seqs("a"))
    assert cluster.answer(transaction.commit) == (None,)
    peer.consumer.close()
    assert (cluster.bodies(target), cluster.bodies(source, 1)) == (["x", "y"], ["b"])


def test_another_gateway_completes_unfinished_transactions(cluster: ModelWorld | NodeWorld) -> None:
    """Each tells the one that the transaction came from: nobody waits until the time is up."""
    target = cluster.queue()
    other = cluster.gateway()
    (error,) = cluster.answer(other.catch_up)
    assert error is None
    for engine in (cluster.engine, other):
        queue = engine.get(target.name)
        for body in "xy":
            transaction = engine.transaction()
            transaction.publish(queue, Message(body.encode()))
            transaction.publish(queue, Message(body.encode()))
            began_ms = cluster.now_ms()
            assert cluster.answer(transaction.commit) == (None,)
            if isinstance(cluster, ModelWorld):
                assert cluster.now_ms() - began_ms < 1000
    assert cluster.bodies(target, 8, wait_ms=200) == list("xxyyxxyy")


def test_full_queue_gets_the_committed_message_when_it_has_room(model: ModelWorld) -> None:
    full, other = model.queue(cap="64KiB"), model.queue()
    model.publish(full, "x" * 60_000)
    assert committed(model, (other, Message(b"a")), (full, Message(b"y" * 10_000))) is None
    assert model.bodies(other) == ["a"]
    model.pass_time(1500)
    refused = committed(model, (other, Message(b"b")), (full, Message(b"z")))
    assert isinstance(refused, QueueFull) and model.bodies(other) == []
    assert model.bodies(full, wait_ms=5000) == ["x" * 60_000, "y" * 10_000]
    model.pass_time(5000)
    assert committed(model, (other, Message(b"b")), (full, Message(b"z"))) is None
    assert (model.bodies(other), model.bodies(full, 1)) == (["b"], ["z"])


def test_queue_deleted_after_the_commit_drops_its_message(model: ModelWorld) -> None:
    full, other = model.queue(cap="64KiB"), model.queue()
    model.publish(full, "x" * 60_000)
    answers: list[Any] = []
    transaction = model.broker.transaction()
    transaction.publish(full, Message(b"y" * 10_000))
    transaction.publish(other, Message(b"a"))
    transaction.commit(answers.append)
    model.pass_time(1000)
    (deleted,) = model.answer(lambda done: model.broker.delete(full.name, done))
    assert deleted is True
    model.wait_until(lambda: answers)
    assert answers == [None] and model.bodies(other) == ["a"]
    model.ready(other, 0)


@pytest.mark.parametrize("seed", range(25))
def test_connection_loss_leaves_transactions_atomic(model: ModelWorld, seed: int) -> None:
    random = Random(seed)
    print("seed", seed)
    queues = [model.queue() for _ in range(3)]
    outcomes: dict[str, list[CurbstoneError | None]] = {}
    for number in range(6):
        transaction = model.broker.transaction()
        for queue in queues:
            transaction.publish(queue, Message(b"%d" % number))
        transaction.commit(outcomes.setdefault(str(number), []).append)
        for _ in range(random.randrange(6)):
            model.host.settle() if random.random() < 0.3 else model.pass_time(random.randrange(4))
        if random.random() < 0.5:
            model.model.loses_confirms = random.random() < 0.5
            model.model.lose(random.choice(["", "publishing", "consuming", "control"]))
    model.model.loses_confirms = False
    model.model.lose("")
    model.wait_until(lambda: all(outcomes.values()))
    model.pass_time(10_000)
    there = [set(model.bodies(queue, wait_ms=100)) for queue in queues]
    assert there[0] == there[1] == there[2], "half of a transaction"
    for body, (error,) in outcomes.items():
        assert error is None or isinstance(error, Unavailable)
        assert error is not None or body in there[0], "committed and lost"


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_transaction_completes_after_losing_only_its_channel(model: ModelWorld, how: str) -> None:
    """It was acked as known when it came again over the next channel, and its messages were nowhere."""
    full, other = model.queue(cap="64KiB"), model.queue()
    model.publish(full, "x" * 60_000)
    assert committed(model, (other, Message(b"a")), (full, Message(b"y" * 10_000))) is None
    (consumer,) = model.model.queues[model.engine.names.transactions].consumers
    if how == "cancelled":
        model.model.queues[model.engine.names.transactions].consumers.remove(consumer)
        consumer.channel.cancelled(consumer.tag)
    else:
        consumer.channel.end(AmqpError(406, "the delivery was not acknowledged in time"))
    model.pass_time(2000)
    assert model.bodies(full, wait_ms=5000) == ["x" * 60_000, "y" * 10_000]
    assert set(model.bodies(other)) == {"a"}, "twice at most, and not never"
    model.pass_time(2000)
    assert model.bodies(full) == [] and not model.model.queues[model.engine.names.transactions].ready


class KillableConnector:
    """A connector for a gateway that can die as of kill -9: it sends and receives nothing any more."""

    def __init__(self, model: ModelBroker) -> None:
        self._model = model
        self.connections: list[ModelConnection] = []
        self.is_dead = False

    def connect(self, name: str, on_open: Any, on_lost: Callable[[str], None], on_blocked: Any) -> None:
        def opened(connection: ModelConnection) -> None:
            self.connections.append(connection)
            on_open(connection)

        if not self.is_dead:
            self._model.connect(name, opened, lambda why: None if self.is_dead else on_lost(why), on_blocked)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_gateway_death_leaves_transactions_atomic(model: ModelWorld, seed: int) -> None:
    """Its connections end one after the other, each with what is on its way there."""
    random = Random(seed)
    print("seed", seed)
    connector = KillableConnector(model.model)
    doomed = Engine(model.host, connector, defaults=DEFAULTS, first_number=9)
    ready: list[bool] = []
    doomed.start(lambda: ready.append(True))
    model.wait_until(lambda: ready)
    queues = [model.queue() for _ in range(4)]
    (error,) = model.answer(doomed.catch_up)
    assert error is None
    outcomes: list[CurbstoneError | None] = []
    for number in range(3):
        transaction = doomed.transaction()
        for queue in queues:
            transaction.publish(doomed.get(queue.name), Message(b"%d" % number))
        transaction.commit(outcomes.append)
    for _ in range(random.randrange(20)):
        model.host.turn()
    connector.is_dead = True
    random.shuffle(connector.connections)
    for connection in connector.connections:
        connection.end("killed")
        for _ in range(random.randrange(3)):
            model.host.turn()
    model.pass_time(10_000)
    there = [set(model.bodies(queue, wait_ms=100)) for queue in queues]
    assert there[0] == there[1] == there[2] == there[3], "half of a transaction"
    assert len(there[0]) >= len(outcomes), "committed and lost"
    assert set(outcomes) <= {None}


def test_transaction_encoding_round_trips_and_rejects_garbage() -> None:
    number = 12 << 22
    message = Message(b"body", b"a:b\n", orders=Orders(groups=("g",)))
    message.seq, message.timestamp_ms, message.expires_ms = number, time_of(number), 5
    event = Message(b"")
    event.seq = number + 1
    unit = Unit("7-abc", 99, [Addressed(QueueName("p", "q"), "uid", message, 17), Addressed(None, "p.e", event)])
    again = decode(encode(unit))
    assert again.origin == "7-abc" and again.number == 99
    for before, after in zip(unit.messages, again.messages, strict=True):
        assert (after.name, after.place, after.due_ms) == (before.name, before.place, before.due_ms)
        for member in ("body", "headers", "groups", "seq", "expires_ms"):
            assert getattr(after.message, member) == getattr(before.message, member)
    data = encode(unit)
    for wrong in (b"", b"nonsense", data[:-1], data + b"x", b"\0\0\0\2[]", b"\0\0\0\1{"):
        with pytest.raises(ValueError):
            decode(wrong)
