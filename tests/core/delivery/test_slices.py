"""What concerns very many messages at once is done in slices, so that one client can't stop the loop for seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from curbstone.core.admin import peek
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery import leases
from curbstone.core.engine.index import due, group
from curbstone.core.engine.slices import STEPS_AT_ONCE
from tests.kit.lab import Lab, Peer, message, numbered

MANY = 3 * STEPS_AT_ONCE + 7


def filled(count: int = MANY) -> tuple[Lab, LocalQueue]:
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, *numbered(count))
    return lab, queue


def most_in_a_turn(lab: Lab, figure: Callable[[], int]) -> int:
    """Let everything happen; return by how much the figure has fallen in one turn at most."""
    most, before = 0, figure()
    while lab.host.turn() or lab.host.work():
        most, before = max(most, before - figure()), figure()
    return most


def test_closing_consumer_requeues_in_slices_keeping_order() -> None:
    """The client that left with 180,000 messages stopped the server for 0.8 s."""
    lab, queue = filled()
    peer = Peer(lab, queue, window=MANY)
    in_flight = queue.index.unnamed.in_flight
    assert len(in_flight) == MANY
    peer.consumer.close()
    assert len(in_flight) == MANY - STEPS_AT_ONCE
    assert 0 < most_in_a_turn(lab, lambda: len(in_flight)) <= STEPS_AT_ONCE and not in_flight
    other = Peer(lab, queue, window=MANY)
    assert other.seqs == sorted(other.seqs) and len(other.seqs) == MANY and set(other.tries) == {1}


def test_closing_consumers_share_the_turns() -> None:
    lab, queue = filled()
    peers = [Peer(lab, queue, window=100) for _ in range(MANY // 100)]
    in_flight = queue.index.unnamed.in_flight
    held = len(in_flight)
    for peer in peers:
        peer.consumer.close()
    assert len(in_flight) == held - STEPS_AT_ONCE
    lab.settle()
    assert not in_flight and queue.counts().rdy == MANY


@pytest.mark.parametrize("what", ["nack", "reject"])
def test_message_settled_while_waiting_to_be_requeued_stays_settled(what: str) -> None:
    lab, queue = filled()
    peer = Peer(lab, queue, window=MANY)
    answers: list[object] = []
    if what == "nack":
        peer.consumer.nack(peer.seqs, on_done=answers.append)
    else:
        peer.consumer.reject(peer.seqs, "bad", answers.append)
    assert not answers and not peer.consumer.unsettled
    queue.settle_by_id(MANY, lambda *_: None)
    lab.settle()
    assert answers == [None], "it is answered once, when all of them have ended"
    left = range(1, MANY) if what == "nack" else ()
    assert [found.message.seq for found in lab.peek(queue)] == [*left]
    lab.restart("power")
    assert [found.message.seq for found in lab.peek(lab.reopened(queue))] == [*left]


def test_queue_deleted_during_a_requeue_ends() -> None:
    lab, queue = filled()
    peer = Peer(lab, queue, window=MANY)
    answers: list[object] = []
    peer.consumer.nack(peer.seqs[:2000], on_done=answers.append)
    peer.consumer.close()
    lab.end(queue, "delete")
    assert len(answers) == 1


def test_expired_leases_end_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ENDED_AT_ONCE", 10)
    lab, queue = filled(100)
    assert len(lab.lease(queue, 100, 5000)) == 100
    lab.host.pass_time(5000)
    assert 0 < most_in_a_turn(lab, lambda: len(queue.index.unnamed.in_flight)) <= 10
    lab.pass_time(0)
    assert queue.counts().rdy == 100


def test_simultaneous_due_times_and_expiries_are_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MATURE_AT_ONCE", 10)
    monkeypatch.setattr(due, "RUNS_AT_ONCE", 1)
    lab = Lab()
    queue = lab.queue()
    lab.publish_messages(queue, [message("later", delay_ms=5000) for _ in range(50)])
    for _ in range(4):
        lab.publish_messages(queue, [message(b"x" * 60_000, ttl_ms=9000)])
    lab.host.pass_time(5000)
    assert 0 < most_in_a_turn(lab, lambda: queue.counts().delayed) <= 10
    lab.pass_time(0)
    assert queue.counts().delayed == 0
    lab.host.pass_time(4000)
    assert 0 < most_in_a_turn(lab, lambda: queue.counts().rdy) <= 1
    lab.pass_time(0)
    assert queue.counts().rdy == 50


def test_sparse_scan_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peek, "LOOKED_AT_ONCE", 100)
    lab, queue = filled(6000)
    (lease,) = lab.lease(queue)
    looks = 0
    original = peek.Peek._look_at

    def look_at(self: peek.Peek, run: object) -> None:
        nonlocal looks
        looks += 1
        original(self, run)  # type: ignore[arg-type]

    monkeypatch.setattr(peek.Peek, "_look_at", look_at)
    answers: list[object] = []
    queue.peek(10, answers.append, state="wip")
    assert looks == 1
    lab.settle()
    assert looks > 1
    (found,) = answers
    assert isinstance(found, list) and [each.message.seq for each in found] == [lease.delivery.message.seq]
