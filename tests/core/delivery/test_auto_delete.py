"""Queues that go when nobody uses them, queues that are paused, and retries that back off."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import NoSuchQueue
from curbstone.core.names import queue_name
from curbstone.core.values import Outcome
from tests.kit.lab import Lab, Peer

Q = queue_name("q")


def exists(lab: Lab) -> bool:
    return Q in [queue.name for queue in lab.broker.queues()]


def test_unused_queue_is_deleted_after_its_time(lab: Lab) -> None:
    queue = lab.queue(unused=60)
    lab.pass_time(59_999)
    lab.publish(queue, "publishing is no use")
    assert exists(lab)
    lab.pass_time(1)
    assert not exists(lab)
    lab.restart("power")
    assert not exists(lab)


@pytest.mark.parametrize("how", ["pop", "lease"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_polled_empty_queue_is_kept(lab: Lab, how: str, is_paused: bool) -> None:
    """It was deleted, with its bindings, so that messages to its event were lost without an error."""
    queue = lab.queue(unused=60, paused=is_paused)
    for _ in range(10):
        lab.pass_time(50_000)
        assert lab.answer(queue.pop if how == "pop" else partial(queue.lease, 1, 30_000)) in ((None,), ([],))
    lab.pass_time(59_999)
    assert exists(lab)
    lab.pass_time(1)
    assert not exists(lab)


@pytest.mark.parametrize("how", ["consumer", "pop", "lease", "wait"])
def test_auto_delete_time_starts_at_the_last_use(lab: Lab, how: str) -> None:
    queue = lab.queue(unused=60)
    lab.publish(queue, "1")
    lab.pass_time(50_000)
    end_ms = use(lab, queue, how)
    lab.pass_time(end_ms + 59_999)
    assert exists(lab)
    lab.pass_time(1)
    assert not exists(lab)


def use(lab: Lab, queue: LocalQueue, how: str) -> int:
    """Use the queue; return how much longer that lasts."""
    if how == "consumer":
        peer = Peer(lab, queue)
        lab.pass_time(100_000)
        assert exists(lab)
        peer.consumer.close()
    elif how == "pop":
        lab.answer(queue.pop)
    elif how == "lease":
        lab.answer(partial(queue.lease, 1, 30_000))
        return 30_000
    else:
        lab.answer(queue.pop)
        queue.pop(lambda _delivery: None, wait_ms=20_000)
        lab.settle()
        return 20_000
    lab.settle()
    return 0


def test_auto_delete_0_follows_the_last_consumer_or_a_minute(lab: Lab) -> None:
    queue = lab.queue(unused=0)
    first, second = Peer(lab, queue), Peer(lab, queue)
    lab.pass_time(100_000)
    first.consumer.close()
    lab.pass_time(100_000)
    assert exists(lab)
    second.consumer.close()
    lab.pass_time(1)
    assert not exists(lab)
    queue = lab.queue(unused=0)
    lab.pass_time(50_000)
    assert lab.answer(queue.pop) == (None,)
    lab.pass_time(59_999)
    assert exists(lab)
    lab.pass_time(1)
    assert not exists(lab)


def test_auto_delete_0_counts_a_consumer_closed_during_creation(lab: Lab) -> None:
    lab.broker.declare(Q, {"unused": 0}, lambda _error: None)
    queue = lab.broker.get(Q)
    assert queue is not None
    queue.subscribe(lambda _deliveries: None, window=1, on_closed=lambda _error: None).close()
    lab.pass_time(1000)
    assert not exists(lab)


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_auto_delete_time_restarts_with_the_server(lab: Lab, how: str) -> None:
    lab.queue(unused=60)
    lab.pass_time(50_000)
    lab.restart(how)
    lab.pass_time(50_000)
    assert exists(lab)
    lab.pass_time(10_000)
    assert not exists(lab)


def test_auto_delete_can_be_changed_on_an_existing_queue(lab: Lab) -> None:
    lab.queue(unused=60)
    lab.queue(unused=None)
    lab.pass_time(100_000)
    assert exists(lab)
    lab.queue(unused=60)
    lab.pass_time(59_999)
    assert exists(lab)
    lab.pass_time(1)
    assert not exists(lab)


def test_deleted_unused_queue_is_not_found(lab: Lab) -> None:
    lab.queue(unused=1)
    lab.pass_time(1000)
    with pytest.raises(NoSuchQueue):
        lab.broker.get(Q)


def test_paused_queue_accepts_messages_and_delivers_none(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    lab.publish(queue, "1")
    lab.queue(paused=True)
    lab.publish(queue, "2")
    assert peer.bodies == [b"1"]
    assert lab.answer(queue.pop) == (None,)
    assert lab.answer(partial(queue.lease, 1, 1000)) == ([],)
    peer.consumer.ack([1])
    lab.restart()
    queue = lab.broker.get(Q)
    peer = Peer(lab, queue)
    assert not peer.received and queue.counts().rdy == 1
    lab.queue(paused=False)
    assert peer.bodies == [b"2"]


def test_a_nack_without_a_delay_waits_longer_with_each_try(lab: Lab) -> None:
    queue = lab.queue(nack_delay=1, nack_delay_max=4)
    lab.publish(queue, "1")
    for whole_ms in (1000, 2000, 4000, 4000):
        ((lease,),) = lab.answer(partial(queue.lease, 1, 1_000_000))
        lab.answer(partial(queue.settle_leases, [lease.token], Outcome.NACK))
        lab.pass_time(round(0.84 * whole_ms))
        assert lab.answer(partial(queue.lease, 1, 1_000_000)) == ([],), whole_ms
        lab.pass_time(round(0.32 * whole_ms))
        assert queue.counts().rdy == 1
    ((lease,),) = lab.answer(partial(queue.lease, 1, 1_000_000))
    lab.answer(partial(queue.settle_leases, [lease.token], Outcome.NACK, delay_ms=10))
    lab.pass_time(10)
    assert queue.counts().rdy == 1, "a delay of its own is kept"
