"""`publish_paused`: a queue that hands out what it holds and takes nothing in, however it would come."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import EventRefused, PublishPaused, QueueFull
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from tests.kit.lab import Lab, Peer


def paused(lab: Lab, name: str = "a", *, on: bool = True) -> LocalQueue:
    queue = lab.queue(name)
    lab.answer(lambda done: lab.broker.declare(queue.name, {"publish_paused": on}, done))
    return queue


def test_publish_paused_queue_delivers_and_refuses_publishes_over_a_restart(lab: Lab) -> None:
    lab.publish(lab.queue("a"), "1")
    queue = paused(lab)
    for _ in range(2):
        with pytest.raises(PublishPaused, match="publish_paused"):
            lab.publish(queue, "2")
        lab.restart("power")
        queue = lab.reopened(queue)
    assert lab.pop_all(queue) == [b"1"]
    lab.publish(paused(lab, on=False), "3")
    assert lab.bodies(queue) == [b"3"]


def test_transaction_publishing_to_a_paused_queue_is_refused(lab: Lab) -> None:
    other = lab.queue("b")
    lab.publish(lab.queue("a"), "1")
    queue = paused(lab)
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.publish(other, Message(b"x"))
    transaction.publish(queue, Message(b"x"))
    (error,) = lab.answer(transaction.commit)
    assert isinstance(error, PublishPaused)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, peer.seqs)
    transaction.publish(other, Message(b"y"))
    assert lab.answer(transaction.commit) == (None,)
    assert (lab.bodies(queue), lab.bodies(other)) == ([], [b"y"])


def test_event_skips_a_publish_paused_queue(lab: Lab) -> None:
    queue, other = paused(lab), lab.queue("b")
    for name in (queue.name, other.name):
        lab.answer(partial(lab.broker.bind, "e", name))
    (error, _, _) = lab.answer(lambda done: lab.broker.publish_event("e", [Message(b"x")], done))
    assert isinstance(error, EventRefused) and list(error.refused) == [queue.name]
    assert (lab.bodies(queue), lab.bodies(other)) == ([], [b"x"])


def test_dead_letters_wait_for_a_publish_paused_queue_and_redrive_reports_it(lab: Lab) -> None:
    queue = lab.queue("a", dead_letter="dead")
    dead = paused(lab, "dead")
    lab.publish(queue, "1")
    peer = Peer(lab, queue)
    (error,) = lab.answer(lambda done: peer.consumer.reject([1], "bad", done))
    assert isinstance(error, PublishPaused), "the letter is in no queue but its own"
    peer.close()
    lab.pass_time(60_000)
    assert (lab.bodies(queue), lab.bodies(dead)) == ([b"1"], [])
    paused(lab, "dead", on=False)
    lab.pass_time(60_000)
    assert (lab.bodies(queue), lab.bodies(dead)) == ([], [b"1"])
    paused(lab)
    error, redriven = lab.answer(lambda done: dead.redrive(queue_name("a"), 1, done), passing_ms=1000)
    assert isinstance(error, QueueFull) and redriven.moved == 0
    assert lab.bodies(dead) == [b"1"]
