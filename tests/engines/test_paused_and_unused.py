"""The options `paused` and `unused`, on any engine."""

from __future__ import annotations

from typing import Any

from curbstone.core.port import Broker, Queue
from tests.engines.worlds import ModelWorld, NodeWorld, Peer, World


def pause(world: World, queue: Queue, *, on: bool = True, broker: Broker | None = None) -> None:
    (error,) = world.answer(lambda done: (broker or world.broker).declare(queue.name, {"paused": on}, done))
    assert error is None, error


def test_paused_queue_delivers_nothing_until_resumed(world: World) -> None:
    queue = world.queue(paused=True)
    world.publish(queue, "a", "b", "c")
    assert world.pop(queue) is None
    assert world.answer(lambda done: queue.lease(5, 60_000, done)) == ([],)
    waiting: list[Any] = []
    queue.pop(waiting.append, wait_ms=60_000)
    peer = world.peer(queue, window=2)
    world.ready(queue, 3)
    assert not peer.deliveries and not waiting and queue.counts().consumers == 1
    pause(world, queue, on=False)
    world.wait_until(lambda: waiting and len(peer.deliveries) == 2)
    assert sorted([waiting[0].message.body.decode(), *peer.bodies]) == ["a", "b", "c"]


def test_deliveries_before_a_pause_can_be_settled(queue: Queue, world: World) -> None:
    peer = world.peer(queue, window=2)
    world.publish(queue, "a", "b", "c")
    peer.expect("a", "b")
    pause(world, queue)
    peer.settle("ack", "a")
    peer.settle("nack", "b", delay_ms=0)
    world.ready(queue, 2)
    peer.expect("a", "b")
    pause(world, queue, on=False)
    world.wait_until(lambda: len(peer.deliveries) == 4)
    assert sorted(peer.bodies[2:]) == ["b", "c"]


def test_waiting_call_keeps_waiting_while_paused(queue: Queue, world: World) -> None:
    got: list[Any] = []
    queue.lease(5, 60_000, got.append, wait_ms=60_000)
    world.pause()
    pause(world, queue)
    world.publish(queue, "a")
    world.ready(queue, 1)
    assert not got
    pause(world, queue, on=False)
    world.wait_until(lambda: got)
    assert [each.delivery.message.body for each in got[0]] == [b"a"]


def test_a_pause_reaches_the_consumers_of_all_gateways(cluster: ModelWorld | NodeWorld) -> None:
    other = cluster.gateway()
    queue = cluster.queue()
    (error,) = cluster.answer(other.catch_up)
    assert error is None
    same = other.get(queue.name)
    peer = Peer(cluster, same, window=1)
    cluster.publish(queue, "a", "b")
    peer.expect("a")
    pause(cluster, queue)
    cluster.wait_until(lambda: same.options.paused)
    peer.settle("ack", "a")
    cluster.ready(queue, 1)
    peer.expect("a")
    pause(cluster, queue, on=False, broker=other)
    peer.expect("a", "b")
    peer.settle("ack", "b")
    peer.consumer.close()


def exists(world: World, queue: Queue) -> bool:
    return any(each.uid == queue.uid for each in world.broker.queues())


def test_unused_queue_is_deleted(world: World) -> None:
    queue, kept = world.queue(), world.queue()
    peer = world.peer(queue, window=1)
    world.publish(queue, "a", "b")
    peer.expect("a")
    # Not before it has a consumer: where all is slow, half a second may be over before there is one.
    (error,) = world.answer(lambda done: world.broker.declare(queue.name, {"unused": 0.5}, done))
    assert error is None, error
    peer.consumer.close()
    world.wait_until(lambda: not exists(world, queue))
    assert exists(world, kept)


def after(model: ModelWorld, seconds: int, queue: Queue) -> bool:
    """Whether the queue is there so much later."""
    model.pass_time(1000 * seconds)
    return exists(model, queue)


def test_activity_at_any_gateway_keeps_a_queue(model: ModelWorld) -> None:
    other = model.gateway()
    queue = model.queue(unused=10)
    assert after(model, 9, queue)
    same = other.get(queue.name)
    peer = Peer(model, same)
    assert after(model, 60, queue), "a consumer"
    peer.consumer.close()
    assert after(model, 9, queue)
    model.publish(queue, "a")
    model.answer(lambda done: same.lease(1, 40_000, done))
    assert after(model, 39, queue), "a lease"
    assert after(model, 9, queue), "the lease ran out"
    pause(model, queue)
    model.answer(same.refresh)
    waiting = same.pop(lambda _result: None, wait_ms=30_000)
    assert after(model, 29, queue), "a call that waits, also where the queue is paused"
    waiting.cancel()
    assert not after(model, 20, queue)


def test_empty_polls_keep_a_queue(model: ModelWorld) -> None:
    queue = model.queue(unused=10)
    same = model.gateway().get(queue.name)
    for _ in range(5):
        assert after(model, 9, queue)
        assert model.pop(queue) is None
        assert after(model, 9, queue)
        assert model.answer(lambda done: same.lease(1, 40_000, done)) == ([],)
    assert not after(model, 20, queue)


def test_auto_delete_0_waits_a_minute_for_the_first_consumer(model: ModelWorld) -> None:
    queue = model.queue(unused=0)
    assert after(model, 55, queue)
    peer = model.peer(queue)
    assert after(model, 600, queue)
    peer.consumer.close()
    assert not after(model, 10, queue)


def test_queue_is_kept_while_its_consumer_count_is_unknown(model: ModelWorld) -> None:
    queue = model.queue(unused=10)
    model.model.is_down = True
    model.model.lose()
    assert after(model, 120, queue)
    model.model.is_down = False
    assert not after(model, 60, queue)
