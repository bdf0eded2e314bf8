"""What a queue takes in, on any engine: its schema, the option `publish_paused`, and what gives way at its cap."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.core.errors import (
    BadRequest,
    Conflict,
    CurbstoneError,
    NotSupported,
    PublishPaused,
    QueueFull,
    SchemaViolation,
)
from curbstone.core.message import Message
from curbstone.core.orders import orders_in
from curbstone.core.port import Broker, Queue
from curbstone.rabbit.queue import Queue as ClusterQueue
from curbstone.rabbit.shared.mapping import priority_in, properties_of
from tests.engines.worlds import ModelWorld, NodeWorld, World

SCHEMA = {"type": "object", "required": ["id"]}
GOOD, BAD = '{"id":1}', '{"no":1}'


def reported(world: World, queue: Queue, *bodies: str, atomic: bool = False) -> list[tuple[CurbstoneError | None, int]]:
    """Publish together, and return what is said of how many, in order."""
    answers: list[tuple[CurbstoneError | None, int]] = []
    messages = [Message(body.encode()) for body in bodies]
    queue.publish(messages, lambda error, _first, count: answers.append((error, count)), atomic=atomic)
    world.wait_until(lambda: sum(count for _error, count in answers) == len(bodies))
    return answers


def declare(world: World, queue: Queue, broker: Broker | None = None, **options: Any) -> None:
    (error,) = world.answer(lambda done: (broker or world.broker).declare(queue.name, options, done))
    assert error is None, error


def committed(world: World, queue: Queue, *bodies: str) -> CurbstoneError | None:
    transaction = world.broker.transaction()
    for body in bodies:
        transaction.publish(queue, Message(body.encode()))
    (error,) = world.answer(transaction.commit)
    assert error is None or isinstance(error, CurbstoneError)
    return error


def test_schema_violation_is_refused_with_its_place(world: World) -> None:
    queue = world.queue(schema=SCHEMA)
    answers = reported(world, queue, GOOD, BAD, GOOD, "no json")
    assert [(type(error), count) for error, count in answers] == [
        (type(None), 1),
        (SchemaViolation, 1),
        (type(None), 1),
        (SchemaViolation, 1),
    ]
    refused = answers[1][0]
    assert refused is not None and refused.members == {"pointer": "", "rule": "/required"}
    assert world.bodies(queue, 2) == [GOOD, GOOD]


def test_schema_violation_refuses_the_whole_batch_or_transaction(world: World) -> None:
    queue = world.queue(schema=SCHEMA)
    ((refused, _count),) = reported(world, queue, GOOD, BAD, atomic=True)
    assert isinstance(refused, SchemaViolation)
    for bodies in ((GOOD, BAD), (BAD,)):
        assert isinstance(committed(world, queue, *bodies), SchemaViolation)
    assert committed(world, queue, GOOD, GOOD) is None
    assert world.bodies(queue, 2) == [GOOD, GOOD]


def test_schema_can_be_changed_and_removed(world: World) -> None:
    queue = world.queue(schema=SCHEMA)
    with pytest.raises(BadRequest, match="bad option schema"):
        world.broker.declare(queue.name, {"schema": {"$ref": "#/nowhere"}}, lambda _error: None)
    declare(world, queue, schema={"type": "object", "required": ["no"]})
    assert [type(error) for error, _count in reported(world, queue, GOOD, BAD)] == [SchemaViolation, type(None)]
    declare(world, queue, schema=None)
    assert reported(world, queue, "a") == [(None, 1)]
    assert world.bodies(queue, 2) == [BAD, "a"]


def test_publish_paused_queue_still_delivers(queue: Queue, world: World) -> None:
    world.publish(queue, "a")
    declare(world, queue, publish_paused=True)
    ((refused, count),) = reported(world, queue, "b", "c")
    assert isinstance(refused, PublishPaused) and count == 2
    for bodies in (("b",), ("b", "c")):
        assert isinstance(committed(world, queue, *bodies), PublishPaused)
    assert world.bodies(queue, 1) == ["a"]
    declare(world, queue, publish_paused=False)
    assert reported(world, queue, "d") == [(None, 1)]
    assert world.bodies(queue, 1) == ["d"]


def test_dead_letters_wait_while_the_dead_letter_queue_is_publish_paused(world: World) -> None:
    letters = world.queue(publish_paused=True)
    queue = world.queue(dead_letter=str(letters.name))
    world.publish(queue, "a")
    peer = world.peer(queue)
    peer.expect("a")
    peer.consumer.reject(peer.seqs("a"))
    assert world.pop(letters, wait_ms=100) is None
    declare(world, letters, publish_paused=False)
    assert world.bodies(letters, 1) == ["a"]


def test_publish_pause_reaches_all_gateways(cluster: ModelWorld | NodeWorld) -> None:
    other = cluster.gateway()
    queue = cluster.queue(schema=SCHEMA)
    assert cluster.answer(other.catch_up) == (None,)
    same = other.get(queue.name)
    assert [type(error) for error, _count in reported(cluster, same, BAD)] == [SchemaViolation]
    declare(cluster, queue, publish_paused=True)
    assert cluster.answer(other.catch_up) == (None,)
    assert [type(error) for error, _count in reported(cluster, same, GOOD)] == [PublishPaused]


@pytest.mark.parametrize("guard", [{"schema": SCHEMA}, {"publish_paused": True}])
def test_on_a_cluster_a_guarded_queue_has_no_events(cluster: ModelWorld | NodeWorld, guard: dict[str, Any]) -> None:
    """The copies of an event pass no gateway on their way into a queue."""
    guarded, bound = cluster.queue(**guard), cluster.queue()
    assert cluster.answer(lambda done: cluster.broker.bind("news", bound.name, done)) == (None,)
    with pytest.raises(Conflict, match="bound to events"):
        cluster.broker.bind("news", guarded.name, lambda _error: None)
    with pytest.raises(Conflict, match="bound to events"):
        cluster.broker.declare(bound.name, guard, lambda _error: None)
    assert cluster.answer(lambda done: cluster.broker.unbind("news", bound.name, done)) == (None,)
    declare(cluster, bound, **guard)
    declare(cluster, guarded, schema=None, publish_paused=False)
    assert cluster.answer(lambda done: cluster.broker.bind("news", guarded.name, done)) == (None,)


def test_oldest_messages_are_dropped_for_new_ones(world: World) -> None:
    queue = world.queue(cap="64KiB", overflow="drop-oldest")
    bodies = [f"{number:03}" + "x" * 2000 for number in range(100)]
    assert {error for body in bodies for error, _count in reported(world, queue, body)} == {None}
    left = world.bodies(queue, 10)
    assert left == bodies[-len(left) :] and 10 <= len(left) < 40


def test_dropped_messages_are_no_dead_letters_unlike_rejected_ones(world: World) -> None:
    letters = world.queue()
    queue = world.queue(cap="64KiB", overflow="drop-oldest", dead_letter=str(letters.name))
    peer = world.peer(queue, window=1)
    bodies = [f"{number:03}" + "x" * 5000 for number in range(40)]
    world.publish(queue, bodies[0])
    peer.expect(bodies[0])
    world.publish(queue, *bodies[1:])
    peer.settle("reject", bodies[0])
    assert world.bodies(letters, 1) == [bodies[0]]


def test_queue_with_overflow_refuse_still_refuses(world: World) -> None:
    queue = world.queue(cap="64KiB")
    answers = [reported(world, queue, "x" * 30_000)[0][0] for _ in range(4)]
    assert any(isinstance(error, QueueFull) for error in answers)


def test_overflow_option_is_fixed_at_creation_on_a_cluster(cluster: ModelWorld | NodeWorld) -> None:
    queue = cluster.queue()
    with pytest.raises(
        Conflict, match="the overflow of queue .* is refuse: on a cluster it can't change after the creation"
    ):
        cluster.broker.declare(queue.name, {"overflow": "drop-oldest"}, lambda _error: None)


def test_cluster_refuses_an_idempotency_window(
    cluster: ModelWorld | NodeWorld,
) -> None:
    """Gateways of earlier versions would refuse the whole entry of an option that they don't know."""
    queue = cluster.queue(idempotency_window=300, ttl=5)
    with pytest.raises(NotSupported, match="a cluster keeps no keys"):
        cluster.broker.declare(queue.name, {"idempotency_window": 301}, print)
    assert isinstance(queue, ClusterQueue)
    registered = queue.definition.as_entry()["options"]
    assert registered["ttl"] == 5 and "idempotency_window" not in registered


@pytest.mark.parametrize(
    "option", [{"key_limit": 5}, {"key_limit": 0}, {"key_rate": 1}, {"key_burst": 2}, {"fair": True}]
)
def test_cluster_refuses_key_limits(cluster: ModelWorld | NodeWorld, option: dict[str, object]) -> None:
    queue = cluster.queue(key_limit=1, fair=False)
    with pytest.raises(NotSupported, match="key_limit, key_rate and fair need the local engine"):
        cluster.broker.declare(queue.name, option, print)
    assert isinstance(queue, ClusterQueue)
    assert not {"key_limit", "fair"} & {*queue.definition.as_entry()["options"]}
    with pytest.raises(NotSupported, match="a cluster does not read the keys of messages"):
        queue.keys(20, print)


def test_cluster_orders_by_priority_in_rabbitmq_only(cluster: ModelWorld | NodeWorld) -> None:
    queue = cluster.queue(oldest_every=0)
    with pytest.raises(NotSupported, match="on a cluster RabbitMQ selects the next message"):
        cluster.broker.declare(queue.name, {"oldest_every": 5}, print)
    assert isinstance(queue, ClusterQueue)
    assert "oldest_every" not in queue.definition.as_entry()["options"] and queue.by_priority() == {}
    sent = [Message(b"x", block) for block in (b"priority:7\n", b"priority:12\n", b"priority:4\n", b"")]
    assert [properties_of(each, "q-1", now_ms=0).priority for each in sent] == [7, 9, None, None]
    assert cluster.broker.engine.priority == priority_in(cluster.broker.engine.version)
    versions = ("3.12.1", "4.0.0-rc.1", "4.2.5", "4.3.0", "5.0", "")
    assert [priority_in(each) for each in versions] == ["none", "two-levels", "two-levels", "strict", "strict", "none"]


def test_cluster_refuses_unique_names_with_a_reason(cluster: ModelWorld | NodeWorld) -> None:
    queue = cluster.queue()
    block = b"x-unique:a\n"
    message = Message(b"x", block, orders_in(block))
    with pytest.raises(NotSupported, match="Unique names, and messages that replace others, need the local engine"):
        queue.publish([message], lambda *_: None)
    (error, _, _) = cluster.answer(lambda done: cluster.broker.publish_event("e", [message], done))
    assert isinstance(error, NotSupported)
