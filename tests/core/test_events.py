"""Events in transactions: the queues bound at the commit get it with all the rest, or nothing happens."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull
from curbstone.core.names import private_name, queue_name
from curbstone.core.transactions.transaction import Transaction
from tests.kit.lab import Lab, Peer, message

PRIVATE = private_name("secret.topic0")


def bound(lab: Lab, *names: str) -> list[LocalQueue]:
    for name in names:
        lab.answer(partial(lab.broker.bind, "order", queue_name(name)))
    return [lab.named(name) for name in names]


def private(lab: Lab, **options: object) -> LocalQueue:
    lab.answer(lambda done: lab.broker.declare(PRIVATE, options, done))
    lab.answer(partial(lab.broker.bind, "order", PRIVATE))
    return lab.broker.get(PRIVATE)


def commit(lab: Lab, transaction: Transaction) -> CurbstoneError | None:
    (error,) = lab.answer(transaction.commit, passing_ms=100)
    assert error is None or isinstance(error, CurbstoneError)
    return error


def fill(lab: Lab, queue: LocalQueue) -> None:
    with pytest.raises(QueueFull):
        for _ in range(1000):
            lab.publish(queue, b"x" * 4000)


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_queues_bound_at_the_commit_receive_the_event(lab: Lab, how: str) -> None:
    other = lab.queue("other")
    lab.publish(other, "held")
    peer = Peer(lab, other)
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message("1"))
    bound(lab, "a", "b")
    transaction.publish(lab.queue("b"), message("2"))
    transaction.publish_event("order", message("3"))
    transaction.publish_event("nobody", message("4"))
    transaction.ack(peer.consumer, [1])
    assert commit(lab, transaction) is None
    lab.restart(how)
    found = {queue.name.queue: lab.bodies(queue) for queue in lab.broker.queues()}
    assert found == {"a": [b"1", b"3"], "b": [b"1", b"2", b"3"], "other": []}


def test_event_without_bindings_is_committed(lab: Lab) -> None:
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message("m"))
    assert commit(lab, transaction) is None


@pytest.mark.parametrize("alone", [True, False])
def test_refusing_bound_queue_refuses_the_transaction(lab: Lab, alone: bool) -> None:
    queues = bound(lab, "a") if alone else bound(lab, "a", "b")
    lab.queue("a", max_message_size=3)
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message("few"))
    transaction.publish_event("order", message("more"))
    error = commit(lab, transaction)
    assert isinstance(error, MessageTooLarge)
    assert [lab.bodies(queue) for queue in queues] == [[]] * len(queues)


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("why", ["full", "gone"])
def test_full_or_closed_subscriber_does_not_block_a_transaction(lab: Lab, why: str, others: int) -> None:
    own = private(lab, cap=64 * 1024)
    queues = bound(lab, *["a", "b"][:others])
    if why == "full":
        fill(lab, own)
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message("m" * 4000))
    answers: list[object] = []
    transaction.commit(answers.append)
    if why == "gone":
        lab.broker.delete(PRIVATE, lambda _existed: None)
    lab.pass_time(100)
    assert answers == [None]
    assert [lab.bodies(queue) for queue in queues] == [[b"m" * 4000]] * others
    assert lab.broker.private_queues() == [], "its subscriber is notified and closed"
    assert all(queue.log.room.reserved == 0 for queue in lab.broker.queues())
    for queue in queues:  # and nothing waits behind the place it had
        lab.publish(queue, "later")


@pytest.mark.parametrize("outcome", ["committed", "refused", "left out"])
def test_transaction_over_queues_is_freed_without_garbage_collection(lab: Lab, outcome: str) -> None:
    """Its parts and its commit referred to each other, so each one stayed until a full collection."""
    queues = bound(lab, "a", "b")
    full = private(lab, cap=64 * 1024) if outcome == "left out" else lab.queue("b", cap=64 * 1024)
    if outcome != "committed":
        fill(lab, full)
    gc.collect()
    gc.disable()
    try:
        transaction = lab.broker.transaction()
        transaction.publish_event("order", message("m" * 4000))
        assert isinstance(commit(lab, transaction), QueueFull) == (outcome == "refused")
        assert lab.bodies(queues[0]) == ([] if outcome == "refused" else [b"m" * 4000])
        dead = weakref.ref(transaction)
        del transaction
        assert dead() is None
    finally:
        gc.enable()


def test_named_private_queue_is_no_subscriber(lab: Lab) -> None:
    own = private(lab, cap=64 * 1024)
    fill(lab, own)
    transaction = lab.broker.transaction()
    transaction.publish(own, message("m" * 4000))
    assert isinstance(commit(lab, transaction), QueueFull)


def test_durable_queue_deleted_during_the_commit_is_unbound(lab: Lab) -> None:
    (first, _) = bound(lab, "a", "b")
    transaction = lab.broker.transaction()
    transaction.publish_event("order", message("m"))
    answers: list[object] = []
    transaction.commit(answers.append)
    lab.broker.delete(queue_name("b"), lambda _existed: None)
    lab.pass_time(100)
    assert answers == [None] and lab.bodies(first) == [b"m"]
