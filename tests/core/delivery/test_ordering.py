"""Ordering keys: of each key one message at a time, in order, whatever becomes of it; keys beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.index import keys
from curbstone.core.message import Message
from curbstone.core.orders import orders_of
from curbstone.core.values import Outcome, UndoRequest
from tests.kit.lab import Lab, Peer


def keyed(key: str, body: str, **extras: Any) -> Message:
    block = headers.encode([("content-type", "text/plain"), (headers.KEY, key)])
    return Message(body.encode(), block, orders_of(**extras))


def publish(lab: Lab, queue: LocalQueue, text: str) -> list[int]:
    """Publish messages that are named by key and number, such as "a1 a2 b1"; one without a key is "-1"."""
    messages = [Message(word.encode()) if word[0] == "-" else keyed(word[0], word) for word in text.split()]
    return lab.publish_messages(queue, messages)


def received_text(peer: Peer) -> str:
    return b" ".join(peer.bodies).decode()


def test_one_message_per_key_is_in_flight_and_keys_are_parallel(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2 b1 -1 a3 b2 -2")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 b1 -1 -2"
    peer.ack(1)
    assert received_text(peer) == "a1 b1 -1 -2 a2"
    peer.ack(3, 2)
    assert received_text(peer) == "a1 b1 -1 -2 a2 a3 b2"


def test_ordering_holds_across_consumers(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2 a3")
    (lease,) = lab.lease(queue, 10)
    peer = Peer(lab, queue)
    assert received_text(peer) == "" and lab.pop(queue) is None and lab.lease(queue, 10) == []
    assert lab.answer(lambda done: queue.settle_leases([lease.token], Outcome.ACK, done)) == (None, 1, [])
    assert received_text(peer) == "a2"


def test_pops_take_a_key_in_order(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 b1 a2 b2 a3")
    assert lab.pop_all(queue) == [b"a1", b"b1", b"a2", b"b2", b"a3"]


def test_requeued_message_keeps_its_order_also_after_a_delay(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2")
    peer = Peer(lab, queue)
    peer.nack(1)
    assert received_text(peer) == "a1 a1"
    peer.nack(1, delay_ms=5000)
    lab.pass_time(4000)
    assert received_text(peer) == "a1 a1"
    lab.pass_time(1000)
    assert received_text(peer) == "a1 a1 a1"
    peer.ack(1)
    assert received_text(peer) == "a1 a1 a1 a2"


def test_delayed_publish_keeps_its_order(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [keyed("a", "a1", delay_ms=3000), keyed("a", "a2"), keyed("a", "a3", delay_ms=9000)])
    peer = Peer(lab, queue)
    assert received_text(peer) == ""
    lab.pass_time(3000)
    peer.ack(1)
    peer.ack(2)
    assert received_text(peer) == "a1 a2"
    lab.pass_time(6000)
    assert received_text(peer) == "a1 a2 a3"


def test_expired_waiting_message_does_not_block_its_key(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [keyed("a", "a1"), keyed("a", "a2", ttl_ms=1000), keyed("a", "a3")])
    peer = Peer(lab, queue)
    lab.pass_time(2000)
    peer.ack(1)
    assert received_text(peer) == "a1 a3"


def test_expired_delayed_message_unblocks_its_key(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [keyed("a", "a1", delay_ms=60_000, ttl_ms=1000), keyed("a", "a2")])
    peer = Peer(lab, queue)
    assert received_text(peer) == ""
    lab.pass_time(2000)
    assert received_text(peer) == "a2"


@pytest.mark.parametrize("dead_letter", ["", "dead"])
def test_dead_message_unblocks_its_key_and_its_dead_letter_keeps_the_key(lab: Lab, dead_letter: str) -> None:
    dead = lab.queue("dead")
    queue = lab.queue(dead_letter=dead_letter, max_tries=2)
    publish(lab, queue, "a1 a2 a3 a4")
    peer = Peer(lab, queue)
    peer.reject(1)
    peer.nack(2)
    peer.nack(2)
    assert received_text(peer) == "a1 a2 a2 a3"
    if dead_letter:
        assert [headers.key_of(found.message.headers) for found in lab.peek(dead)] == [b"a", b"a"]
        letters = Peer(lab, dead)
        assert received_text(letters) == "a1", "the letters of a key are in order, too"


def test_purging_and_cancelling_waiting_and_first_messages(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2 a3 b1 b2")
    peer = Peer(lab, queue)
    assert lab.answer(lambda done: queue.settle_by_id(2, done)) == (None, True)
    assert lab.answer(lambda done: queue.settle_by_id(1, done)) == (None, True)
    assert received_text(peer) == "a1 b1 a3"
    assert lab.purge(queue) == 1
    peer.ack(4)
    publish(lab, queue, "b3 a4")
    assert received_text(peer) == "a1 b1 a3 b3"
    peer.ack(3)
    assert received_text(peer) == "a1 b1 a3 b3 a4"


def test_groups_order_independently(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    publish(lab, queue, "a1 a2")
    one, other = Peer(lab, queue), Peer(lab, queue, group="g")
    one.ack(1)
    assert (received_text(one), received_text(other)) == ("a1 a2", "a1")


def test_later_declared_group_is_ordered(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 b1 a2 b2")
    Peer(lab, queue)
    lab.queue(groups=["g"])
    publish(lab, queue, "a3")
    late = Peer(lab, queue, group="g")
    assert received_text(late) == "a3"


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_keys_and_their_order_survive_a_restart(lab: Lab, queue: LocalQueue, how: str) -> None:
    publish(lab, queue, "a1 a2 b1 a3")
    peer = Peer(lab, queue)
    peer.ack(1)
    assert received_text(peer) == "a1 b1 a2"
    lab.restart(how)
    queue = lab.reopened(queue)
    publish(lab, queue, "a4 b2")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a2 b1" and peer.tries == [1, 1]
    peer.ack(2)
    assert received_text(peer) == "a2 b1 a3" and peer.tries == [1, 1, 0], "what waited had not been handed out"


def test_next_message_is_delivered_after_the_ack_is_durable(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2")
    peer = Peer(lab, queue)
    acked: list[object] = []
    peer.consumer.ack([1], acked.append)
    while lab.host.turn():
        assert received_text(peer) == "a1"
    assert not acked
    lab.settle()
    assert acked == [None] and received_text(peer) == "a1 a2"


def test_failing_disk_holds_the_next_message_until_the_ack_is_written(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2")
    peer = Peer(lab, queue)
    lab.disk.eio_chance = 1
    peer.consumer.ack([1])
    lab.settle()
    assert received_text(peer) == "a1"
    lab.disk.eio_chance = 0
    lab.pass_time(10_000)
    assert received_text(peer) == "a1 a2"


def test_closed_consumer_requeues_the_first_message_of_its_key(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2")
    Peer(lab, queue).close()
    peer = Peer(lab, queue, auto=True)
    assert received_text(peer) == "a1 a2" and peer.tries == [1, 0]


def test_transactional_ack_unblocks_its_key(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2")
    peer = Peer(lab, queue)
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(queue, keyed("a", "a3"))
    assert lab.answer(transaction.commit) == (None,)
    assert received_text(peer) == "a1 a2"
    peer.ack(2)
    assert received_text(peer) == "a1 a2 a3"


def test_cursor_stops_while_too_many_messages_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "ENTRIES_MAX", 3)
    lab = Lab()
    queue = lab.queue()
    publish(lab, queue, "a1 c1 a2 c2 a3 c3 a4 b1")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 c1" and lab.pop(queue) is None
    peer.ack(1)
    assert received_text(peer) == "a1 c1 a2"
    peer.ack(3)
    assert received_text(peer) == "a1 c1 a2 a3 b1"


def test_cursor_stops_at_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    lab = Lab()
    queue = lab.queue()
    publish(lab, queue, "a1 b1 c1 -1 a2")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 b1"
    peer.ack(1)
    assert received_text(peer) == "a1 b1 c1 -1"
    peer.ack(2)
    assert received_text(peer) == "a1 b1 c1 -1 a2"


@pytest.mark.parametrize("delay_ms", [0, 5000])
def test_undo_of_more_than_may_wait_does_not_block_behind_a_requeued_message(
    monkeypatch: pytest.MonkeyPatch, delay_ms: int
) -> None:
    """The cursor starts over, and can't reach that one."""
    monkeypatch.setattr(keys, "ENTRIES_MAX", 1)
    lab = Lab()
    queue = lab.queue(undo=3600)
    publish(lab, queue, "a1 a2 a3 a4 a5")
    for _ in range(4):
        lab.pop(queue)
    peer = Peer(lab, queue)
    assert received_text(peer) == "a5"
    lab.answer(lambda done: queue.undo(UndoRequest(10), done), passing_ms=1000)
    peer.nack(5, delay_ms=delay_ms)
    lab.pass_time(delay_ms)
    for place, seq in enumerate([1, 2, 3, 4, 5]):
        assert received_text(peer) == " ".join(["a5", "a1", "a2", "a3", "a4", "a5"][: place + 2])
        peer.ack(seq)
    assert queue.counts().rdy == queue.counts().wip == 0


def test_waiting_messages_dropped_from_memory_are_read_again(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, "a1 a2 a3")
    lab.restart()
    queue = lab.reopened(queue)
    peer = Peer(lab, queue)
    for run in queue.index.runs:  # as where the memory is needed for others
        queue.index.reader.forget(run)
    peer.ack(1)
    peer.ack(2)
    assert received_text(peer) == "a1 a2 a3"


@pytest.mark.source
def test_finished_keys_are_freed(lab: Lab, queue: LocalQueue) -> None:
    for n in range(200):
        lab.publish_messages(queue, [keyed(f"k{n % 7}", str(n))])
    assert lab.pop_all(queue) == [b"%d" % n for n in range(200)]
    kept = queue.index.unnamed.keys
    assert kept is not None
    left = [kept._table, kept._placed, kept._by_first, kept._entries, kept._throttled, kept._aside]
    assert not any(left), left


@pytest.mark.parametrize(
    "block, key",
    [
        (b"", b""),
        (b"x-key:a\n", b"a"),
        (b"content-type:t\nx-key:a b\nx-key:c\n", b"a b"),
        (b"max-key:a\n", b""),
        (b"n:x-key\\ca\n", b""),
        (b"x-key:a\\cb\\nc\\\\\n", b"a:b\nc\\"),
        (b"x-key:\n", b""),
    ],
)
def test_ordering_key_is_a_header(block: bytes, key: bytes) -> None:
    assert headers.key_of(block) == key
