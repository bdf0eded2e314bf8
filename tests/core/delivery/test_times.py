"""Delays, expiry, and clocks that jump."""

from __future__ import annotations

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import BATCH_BYTES, BatchHeader, Flag, encode_batch, encode_entries
from curbstone.core.message import Message
from curbstone.core.orders import Orders
from tests.kit.lab import Lab, Peer, message, numbered

HOUR_MS = 3_600_000
HOWS = pytest.mark.parametrize("how", ["shutdown", "kill", "power"])


def test_delayed_message_is_delivered_when_due(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    lab.publish(queue, "later", delay_ms=1000)
    lab.publish(queue, "now")
    assert queue.counts()[:3] == (0, 1, 1)
    lab.pass_time(999)
    assert peer.bodies == [b"now"]
    lab.pass_time(1)
    assert peer.bodies == [b"now", b"later"] and peer.tries == [0, 0]
    assert peer.received[1].mature_ms == lab.host.wall_ms()


def test_due_message_returns_to_its_seq_order(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1", delay_ms=2000)
    lab.publish(queue, "2", delay_ms=1000)
    lab.publish(queue, "3")
    lab.pass_time(2000)
    assert lab.pop_all(queue) == [b"1", b"2", b"3"]


@HOWS
def test_delay_survives_a_restart(lab: Lab, queue: LocalQueue, how: str) -> None:
    due_ms = lab.host.now_ms() + 10_000
    lab.publish(queue, "a", delay_ms=10_000)
    lab.restart(how, after_ms=4000)
    queue = lab.reopened(queue)
    peer = Peer(lab, queue)
    assert queue.counts()[:3] == (0, 0, 1)
    lab.pass_time(due_ms - lab.host.now_ms() - 1)
    assert not peer.received
    lab.pass_time(1)
    assert peer.tries == [0]


@HOWS
def test_message_due_while_the_server_was_down_is_ready(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "a", delay_ms=10_000)
    lab.publish(queue, "b")
    Peer(lab, queue).nack(2, delay_ms=20_000)
    lab.restart(how, after_ms=60_000)
    queue = lab.reopened(queue)
    assert queue.counts()[:3] == (2, 0, 0)
    assert Peer(lab, queue).tries == [0, 1]


def test_a_delayed_message_can_be_nacked_and_delayed_again(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", delay_ms=100)
    peer = Peer(lab, queue)
    for turn in range(1, 5):
        lab.pass_time(100)
        assert len(peer.received) == turn
        peer.nack(1, delay_ms=100)
    assert queue.counts()[:3] == (0, 0, 1)


# --- expiry


def test_expired_message_is_removed_undelivered(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "short", ttl_ms=1000)
    lab.publish(queue, "long", ttl_ms=5000)
    lab.publish(queue, "for ever")
    lab.pass_time(1000)
    assert lab.bodies(queue) == [b"long", b"for ever"] and queue.stats.expired == 1
    lab.pass_time(4000)
    assert queue.counts()[:3] == (1, 0, 0)
    assert lab.pop_all(queue) == [b"for ever"]


def test_queue_ttl_applies_to_messages_without_one(lab: Lab) -> None:
    queue = lab.queue(ttl=2.5)
    lab.publish(queue, "default")
    lab.publish(queue, "own", ttl_ms=4000)
    lab.pass_time(2499)
    assert len(lab.bodies(queue)) == 2
    lab.pass_time(1)
    assert lab.bodies(queue) == [b"own"]


@HOWS
def test_expiry_continues_over_a_restart(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "a", ttl_ms=5000)
    lab.publish(queue, "b", ttl_ms=50_000)
    lab.restart(how, after_ms=10_000)
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [b"b"]
    lab.pass_time(40_000)
    assert lab.bodies(queue) == []


def test_a_delayed_message_may_expire_before_it_is_due(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", delay_ms=2000, ttl_ms=1000)
    lab.pass_time(5000)
    assert queue.counts()[:3] == (0, 0, 0)


def test_held_message_can_be_settled_after_expiry(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", ttl_ms=1000)
    peer = Peer(lab, queue)
    lab.pass_time(5000)
    assert queue.counts()[:3] == (0, 1, 0)
    peer.ack(1)
    assert queue.counts()[:3] == (0, 0, 0)


def test_message_expired_while_held_is_not_redelivered(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", ttl_ms=1000)
    peer = Peer(lab, queue)
    lab.pass_time(5000)
    peer.nack(1)
    assert peer.seqs == [1] and queue.counts()[:3] == (0, 0, 0)


def test_message_expired_while_held_is_removed_without_demand(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", ttl_ms=1000)
    peer = Peer(lab, queue)
    lab.pass_time(5000)
    peer.close()
    lab.pass_time(60_000)
    assert queue.counts()[:3] == (0, 0, 0)


def test_expired_message_is_dead_lettered(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish_messages(queue, [Message(b"a", orders=Orders(ttl_ms=1000)), Message(b"b", orders=Orders(ttl_ms=1000))])
    lab.pass_time(1000)
    found = lab.peek(lab.named("dead"))
    assert sorted(peeked.message.body for peeked in found) == [b"a", b"b"]
    facts = [dict(headers.decode(peeked.message.headers)) for peeked in found]
    assert {(fact["x-dead-reason"], fact["x-dead-tries"]) for fact in facts} == {("expired", "0")}
    lab.pass_time(HOUR_MS)
    assert len(found) == len(lab.peek(lab.named("dead")))


def test_large_backlog_on_disk_expires() -> None:
    lab = Lab(cap=8 << 20)
    queue = lab.queue()
    lab.publish(queue, *numbered(3000, 1000), ttl_ms=5000)
    lab.publish(queue, "stays")
    lab.restart(after_ms=1000)
    queue = lab.reopened(queue)
    lab.pass_time(5000)
    assert lab.bodies(queue) == [b"stays"] and queue.counts()[:3] == (1, 0, 0)


def test_message_expires_after_its_neighbour_was_copied(lab: Lab, queue: LocalQueue) -> None:
    """The cleaner copied one of three, the other two were about to be settled, and the process was killed."""
    lab.publish(queue, "a", "b", "c", ttl_ms=60_000)
    copy = lab.peek(queue)[1].message
    entries: list[bytes] = []
    encode_entries([copy], copy.seq, entries)
    flags, length = Flag.EXTRAS | Flag.COPY, BATCH_BYTES + len(b"".join(entries))
    header = BatchHeader(length, flags, queue.log.next_batch, 0, copy.seq, 0, 0, 1, 0, 0, 0)
    active = queue.log.active
    batch = b"".join(encode_batch(active.salt, header, entries))
    lab.disk.names[active.path].cache[active.end : active.end + length] = batch
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == [b"a", b"b", b"c"] and not queue.damaged
    lab.pass_time(60_000)
    assert lab.bodies(queue) == []


# --- clocks


@pytest.mark.parametrize("jump_ms", [-10 * 365 * 24 * HOUR_MS, -HOUR_MS, HOUR_MS, 10 * 365 * 24 * HOUR_MS])
def test_a_wall_clock_that_jumps_changes_no_delay_lease_or_expiry(lab: Lab, queue: LocalQueue, jump_ms: int) -> None:
    lab.publish(queue, "delayed", delay_ms=2000)
    lab.publish(queue, "expires", ttl_ms=3000)
    lab.publish(queue, "leased")
    peer = Peer(lab, queue, window=1)
    lab.lease(queue, 1, 4000)
    lab.host.wall_offset_ms += jump_ms
    lab.pass_time(1999)
    assert queue.counts()[:3] == (0, 2, 1)
    lab.pass_time(1)
    assert queue.counts()[:3] == (1, 2, 0)
    lab.pass_time(2000)
    assert queue.counts()[:3] == (2, 1, 0)
    assert peer.bodies == [b"expires"]


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_a_clock_that_was_set_while_the_server_was_down_loses_nothing(
    lab: Lab, queue: LocalQueue, jump_ms: int
) -> None:
    lab.publish(queue, "a", delay_ms=10_000)
    lab.publish(queue, "b")
    Peer(lab, queue).nack(2, delay_ms=5000)
    lab.restart(after_ms=jump_ms)
    queue = lab.reopened(queue)
    assert sum(queue.counts()[:3]) == 2
    lab.publish(queue, "c")
    lab.pass_time(2 * HOUR_MS)
    assert lab.pop_all(queue) == [b"a", b"b", b"c"]


def test_suspend_for_an_hour_is_handled(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue, window=100)
    for number in range(20):
        lab.publish(queue, b"%d" % number, delay_ms=1000 * (20 - number))
    lab.host.pass_time(HOUR_MS)
    lab.settle()
    assert sorted(peer.seqs) == list(range(1, 21)) and queue.counts().delayed == 0


def test_message_expiring_at_a_subscribe_is_dead_lettered_once(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish_messages(queue, [message("m", ttl_ms=500)])
    lab.host.pass_time(500)  # it expires, and its dead letter is on its way
    peer = Peer(lab, queue)
    lab.settle()
    assert peer.received == [] and queue.counts()[:3] == (0, 0, 0)
    assert lab.bodies(lab.queue("dead")) == [b"m"]


def test_message_expiring_before_due_is_counted_correctly(lab: Lab) -> None:
    queue = lab.queue(dead_letter="dead")
    lab.publish_messages(queue, [message("m", ttl_ms=500, delay_ms=5000)])
    assert queue.counts()[:3] == (0, 0, 1)
    lab.host.pass_time(500)
    lab.host.turn()
    assert queue.counts()[:3] == (0, 1, 0)
    lab.settle()
    assert queue.counts()[:3] == (0, 0, 0)


def test_settled_delayed_messages_are_freed(lab: Lab, queue: LocalQueue) -> None:
    """A delay, or a time to live, of a message that was settled or purged was remembered until it would have come."""
    group = queue.index.unnamed
    for _ in range(20):
        seqs = lab.publish(queue, *numbered(50), delay_ms=1_000_000, ttl_ms=3_000_000)
        for seq in seqs[:25]:
            assert lab.answer(lambda done, seq=seq: queue.settle_by_id(seq, done)) == (None, True)  # type: ignore[misc]
        assert lab.purge(queue) == 25
    kept = lab.publish(queue, *numbered(3), delay_ms=500_000, ttl_ms=900_000)
    assert len(group._due) <= 200
    lab.pass_time(499_999)
    assert queue.counts()[:3] == (0, 0, 3)
    lab.pass_time(1)
    assert [lease.delivery.message.seq for lease in lab.lease(queue, 2, 1000)] == kept[:2]
    lab.pass_time(399_999)
    assert queue.counts()[:3] == (3, 0, 0)
    lab.pass_time(1)
    assert queue.counts()[:3] == (0, 0, 0)


def test_empty_queue_frees_its_schedule(lab: Lab, queue: LocalQueue) -> None:
    for _ in range(200):
        lab.publish(queue, "m", ttl_ms=3_000_000)
        lab.lease(queue, 1, 1_000_000)
        lab.publish(queue, *numbered(3), delay_ms=1_000_000, ttl_ms=3_000_000)
    for seq in range(1, queue.state.next_seq):
        lab.answer(lambda done, seq=seq: queue.settle_by_id(seq, done))  # type: ignore[misc]
    lab.pass_time(2000)
    assert len(queue.index.unnamed._due) == len(queue.leases._due) == 0


def test_expiry_times_of_settled_messages_are_freed(lab: Lab, queue: LocalQueue) -> None:
    for _ in range(300):
        lab.publish(queue, "m", ttl_ms=3_000_000)
        assert lab.pop(queue) == b"m"
    lab.publish(queue, "m", ttl_ms=1000)
    assert len(queue.index.expiries._due) <= 100
    lab.pass_time(1000)
    assert lab.bodies(queue) == []
