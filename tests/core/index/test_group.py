"""One reader's books: what it says of its messages is what is known of each, whatever happens to them."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.index.group import CACHED_BYTES_MAX, CACHED_MESSAGES_MAX, Group
from curbstone.core.engine.log.format import TriesRecord
from curbstone.core.engine.log.room import RETRY_BYTES
from curbstone.core.message import Message
from curbstone.core.options import MIB
from curbstone.core.positions import EARLIEST
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.room_check import check_room


def never(_group: str, _message: Message, _tries: int) -> bool:
    return False


def unnamed(queue: LocalQueue) -> Group:
    return queue.index.unnamed


def check_counters(queue: LocalQueue) -> None:
    """Every number that is kept up step by step is what counting gives."""
    groups = queue.index.groups.values()
    for group in groups:
        tracked = group.tracked.values()
        assert group.pending == sum(run.pending(group.name).bit_count() for run in queue.index.runs)
        assert group.delayed == sum(known.due_ms > 0 for known in tracked)
        assert queue.counts(group.name).first_due_ms == min([r.due_ms for r in tracked if r.due_ms], default=0)
        assert group._cached == sum(known.message is not None for known in tracked)
        assert group.rdy >= 0
    check_room(queue)
    for segment in queue.log.segments:
        states = [known for group in groups for known in group.tracked.values() if known.segment is segment]
        assert segment.tries_records == len(states)


@pytest.mark.parametrize("seed", range(8))
def test_counters_are_consistent_after_each_step(seed: int) -> None:
    dice = Random(seed)
    lab = Lab(seed=seed, cap=64 * 1024)
    queue = lab.queue(max_tries=dice.choice([0, 4]), groups=["g"])
    peers = [Peer(lab, queue, window=7), Peer(lab, queue, window=3, group="g")]
    for _ in range(120):
        peer = dice.choice(peers)
        held = list(peer.consumer.unsettled)
        some = dice.sample(held, dice.randrange(len(held) + 1))
        step = dice.randrange(6)
        if step == 0:
            how = {"delay_ms": dice.choice([0, 0, 500]), "ttl_ms": dice.choice([0, 0, 600])}
            lab.publish_answers(queue, [message(body, **how) for body in numbered(5, dice.randrange(900))])
        elif step == 1 and some:
            peer.ack(*some)
        elif step == 2 and some:
            peer.nack(*some, delay_ms=dice.choice([0, 300]))
        elif step == 3:
            lab.pass_time(dice.choice([1, 200, 700]))
        elif step == 4 and queue.state.next_seq > 1:
            lab.answer(partial(queue.settle_by_id, dice.randrange(1, queue.state.next_seq)))
        elif step == 5 and dice.random() < 0.2:
            lab.restart(dice.choice(["shutdown", "kill", "power"]))
            queue = lab.reopened(queue)
            peers = [Peer(lab, queue, window=7), Peer(lab, queue, window=3, group="g")]
        check_counters(queue)


def test_group_declared_while_holding_messages_gets_no_duplicates(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1", groups=("g",))
    peer = Peer(lab, queue, group="g")
    lab.publish(queue, "2", "3")
    assert peer.seqs == [1]
    lab.answer(lambda done: queue.reading.declare("g", EARLIEST, None, done))
    assert peer.seqs == [1, 2, 3]
    check_counters(queue)


def test_requeued_and_settled_message_is_skipped(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1", "2", "3")
    Peer(lab, queue, window=2).close()
    assert lab.answer(lambda done: queue.settle_by_id(1, done)) == (None, True)
    assert Peer(lab, queue).seqs == [2, 3]
    check_counters(queue)


def test_rescheduled_message_ignores_its_first_due_time(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1")
    peer = Peer(lab, queue)
    peer.nack(1, delay_ms=1000)
    lab.pass_time(1000)
    assert peer.seqs == [1, 1]
    peer.nack(1, delay_ms=60_000)
    lab.restart("kill")
    queue = lab.reopened(queue)
    peer = Peer(lab, queue)
    lab.pass_time(50_000)
    assert peer.seqs == [] and queue.counts()[:3] == (0, 0, 1)
    lab.pass_time(10_000)
    assert (peer.seqs, peer.tries) == ([1], [2])
    check_counters(queue)


def test_waiting_messages_in_memory_are_bounded() -> None:
    lab = Lab(cap=8 * MIB)
    queue = lab.queue()
    lab.publish(queue, b"x" * (CACHED_BYTES_MAX + 1), b"y" * CACHED_BYTES_MAX, *numbered(CACHED_MESSAGES_MAX + 5))
    Peer(lab, queue, window=10_000).close()
    tracked = unnamed(queue).tracked
    assert (tracked[1].message is None, tracked[2].message is None) == (True, False)
    assert unnamed(queue)._cached == CACHED_MESSAGES_MAX
    check_counters(queue)
    peer = Peer(lab, queue, window=10_000)
    assert peer.seqs == list(range(1, CACHED_MESSAGES_MAX + 8)) and set(peer.tries) == {1}
    assert unnamed(queue)._cached == 0


def test_equal_states_share_one_log_record(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(6))
    peer = Peer(lab, queue, window=5)
    peer.consumer.hold()
    peer.nack(1, 2, 3)
    peer.nack(5)
    group, segment = unnamed(queue), queue.log.active
    assert group.tries_records_in(segment) == [TriesRecord("", 1, 3, 1, 0), TriesRecord("", 5, 1, 1, 0)]
    assert (queue.log.room.kept, segment.tries_records) == (4 * RETRY_BYTES, 4)  # of six, two records say of four
    group.lose_records(segment)
    assert (queue.log.room.kept, segment.tries_records, group.tries_records_in(segment)) == (6 * RETRY_BYTES, 0, [])


def test_first_pending_is_the_lowest_seq(lab: Lab, queue: LocalQueue) -> None:
    group = unnamed(queue)
    assert group.first_pending(99) == 99
    lab.publish(queue, *numbered(4))
    peer = Peer(lab, queue, window=3)
    assert group.first_pending(99) == 1
    peer.ack(1, 3)
    assert group.first_pending(99) == 2
    peer.ack(2)
    assert group.first_pending(99) == 4
    peer.ack(4)
    assert group.first_pending(99) == 99


@pytest.mark.parametrize(("count", "size", "least", "most"), [(10, 300_000, 4, 4), (3000, 1000, 1000, 2000)])
def test_turn_reads_about_a_mebibyte(count: int, size: int, least: int, most: int) -> None:
    lab = Lab(cap=8 * MIB)
    queue = lab.queue()
    lab.publish(queue, *numbered(count, size))
    assert least <= len(unnamed(queue).take(count, never).deliveries) <= most
    assert len(unnamed(queue).in_flight) == unnamed(queue).pending - unnamed(queue).rdy
    assert unnamed(queue).take(1, never).deliveries[0].message.seq == len(unnamed(queue).in_flight)


def test_requeued_message_dropped_from_memory_is_read_again() -> None:
    lab = Lab(cap=8 * MIB)
    queue = lab.queue()
    bodies = [bytes([65 + number]) * (CACHED_BYTES_MAX + 1) for number in range(5)]
    lab.publish(queue, *bodies)
    Peer(lab, queue).close()
    for run in queue.index.runs:
        queue.index.reader.forget(run)
    peer = Peer(lab, queue)
    assert (peer.bodies, peer.tries) == (bodies, [1] * 5)


def test_redelivery_after_a_restart_has_its_own_record(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1", "2")
    for tries in range(4):
        assert Peer(lab, queue).tries == [tries, tries]
        recorded = [known.tries for known in unnamed(queue).tracked.values() if known.segment is queue.log.active]
        assert recorded == [tries, tries] * (tries > 0)
        check_counters(queue)
        lab.restart("kill")
        queue = lab.reopened(queue)
