"""Priorities: the highest first, whatever becomes of a message; and each nth delivery to the oldest, if asked for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import Note
from curbstone.core.errors import BadRequest
from curbstone.core.message import Message
from curbstone.core.orders import level_in, orders_in, orders_of, parse_priority
from curbstone.core.values import UndoRequest
from tests.kit.lab import Lab, Peer

CAP = 64 * 1024 * 1024


def ranked(priority: int | str, body: str = "", key: str = "", **extras: Any) -> Message:
    """Return a message as an adapter makes it."""
    pairs = [("priority", str(priority)), *([(headers.KEY, key)] if key else [])]
    return Message(
        (body or str(priority)).encode(),
        headers.encode(pairs),
        orders_of(level=parse_priority(str(priority)), **extras),
    )


def publish(lab: Lab, queue: LocalQueue, *priorities: int) -> list[int]:
    """Publish messages that say their priority and their number, such as `7.0`."""
    messages = [ranked(priority, f"{priority}.{number}") for number, priority in enumerate(priorities)]
    return lab.publish_messages(queue, messages)


def popped(lab: Lab, queue: LocalQueue) -> str:
    return b" ".join(lab.pop_all(queue)).decode()


@pytest.mark.parametrize("how", ["", "shutdown", "kill", "power"])
def test_highest_priority_first_in_order_within_a_priority(lab: Lab, queue: LocalQueue, how: str) -> None:
    publish(lab, queue, 4, 9, 0, 9, 4, 5, 0, 9)
    if how:
        lab.restart(how)
        queue = lab.reopened(queue)
    assert popped(lab, queue) == "9.1 9.3 9.7 5.5 4.0 4.4 0.2 0.6"


def test_higher_priority_overtakes_waiting_but_not_delivered_messages(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, 4, 4, 4)
    peer = Peer(lab, queue, window=1)
    publish(lab, queue, 9)
    assert peer.seqs == [1]
    peer.ack(1)
    assert peer.seqs == [1, 4]
    peer.ack(4)
    assert peer.seqs == [1, 4, 2]


@pytest.mark.parametrize(("text", "level"), [("0", 1), ("4", 0), ("04", 0), ("9", 10), ("10", 10), ("255", 10)])
def test_priority_above_9_is_9(text: str, level: int) -> None:
    assert parse_priority(text) == level == level_in(b"a:b\npriority:%b\n" % text.encode())


@pytest.mark.parametrize("text", ["", "-1", "256", "1.5", "high", "9999", "٣", " 1"])
def test_invalid_priority_is_refused_and_ignored_in_stored_messages(text: str) -> None:
    with pytest.raises(ValueError, match="it is a whole number from 0 to 9; up to 255 counts as 9"):
        parse_priority(text)
    assert orders_in(headers.encode([("x-priority", "9"), ("priority", text)])) is None


def test_requeued_message_keeps_place_and_priority(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, 9, 4, 9, 7)
    peer = Peer(lab, queue, window=2)
    assert peer.seqs == [1, 3]
    publish(lab, queue, 9)
    peer.nack(1)
    assert peer.seqs[2:] == [1]
    peer.nack(3, delay_ms=5000)
    assert peer.seqs[3:] == [5]
    peer.ack(1)
    assert peer.seqs[4:] == [4]
    lab.pass_time(5000)
    peer.ack(5)
    assert peer.seqs[5:] == [3] and peer.tries[5:] == [1]


def test_delayed_message_has_no_priority_until_due(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [ranked(9, "late", delay_ms=1000), ranked(1, "now")])
    assert popped(lab, queue) == "now"
    publish(lab, queue, 5)
    lab.pass_time(1000)
    assert popped(lab, queue) == "late 5.0"


def test_ordering_key_overrides_priority(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [ranked(0, "a1", "a"), ranked(9, "a2", "a"), ranked(4, "-"), ranked(9, "first")])
    assert popped(lab, queue) == "first a1 a2 -"


def test_each_group_orders_by_priority(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    publish(lab, queue, 4, 9, 0)
    assert lab.pop(queue, "g") == b"9.1"
    publish(lab, queue, 7)
    lab.publish_messages(queue, [ranked(8, "other", groups=("h",))])
    assert b" ".join(lab.pop_all(queue, "g")) == b"7.0 4.0 0.2"
    assert popped(lab, queue) == "9.1 7.0 4.0 0.2"
    assert lab.pop_all(queue, "h") == [b"other"]


def test_dead_letters_and_redriven_messages_keep_their_priority(lab: Lab) -> None:
    dead, queue = lab.queue("dead"), lab.queue(dead_letter="dead")
    seqs = publish(lab, queue, 4, 9)
    peer = Peer(lab, queue)
    peer.reject(*seqs)
    lab.publish(dead, b"between")
    peer.close()
    assert dead.by_priority() == {9: 1, 4: 2}
    error, _ = lab.answer(lambda done: dead.redrive(None, 10, done), passing_ms=1000)
    assert error is None
    assert popped(lab, queue) == "9.1 4.0"


def test_a_transaction_over_two_queues_keeps_priorities_through_a_crash(lab: Lab) -> None:
    queues = lab.queue("a"), lab.queue("b")
    transaction = lab.broker.transaction()
    for queue in queues:
        for priority in (4, 9, 0):
            transaction.publish(queue, ranked(priority))
    assert lab.answer(transaction.commit) == (None,)
    lab.restart("power")
    assert [popped(lab, lab.reopened(queue)) for queue in queues] == ["9 4 0", "9 4 0"]


# --- each nth delivery


def test_every_nth_delivery_takes_the_oldest_message(lab: Lab) -> None:
    queue = lab.queue(oldest_every=3)
    publish(lab, queue, 0, 1, *[9] * 7)
    assert popped(lab, queue) == "9.2 9.3 0.0 9.4 9.5 1.1 9.6 9.7 9.8"


def test_nth_delivery_counts_single_deliveries_of_a_batch(lab: Lab) -> None:
    queue = lab.queue(oldest_every=3)
    publish(lab, queue, 0, 1, *[9] * 7)
    peer = Peer(lab, queue)
    assert peer.bodies == b"9.2 9.3 0.0 9.4 9.5 1.1 9.6 9.7 9.8".split()


def test_oldest_message_skips_delayed_and_delivered_ones(lab: Lab) -> None:
    queue = lab.queue(oldest_every=2)
    lab.publish_messages(queue, [ranked(9, "late", delay_ms=1000)])
    publish(lab, queue, 0, 4, 9, 9, 9)
    peer = Peer(lab, queue, window=4)
    assert peer.bodies == b"9.2 0.0 9.3 4.1".split()
    peer.nack(3)
    peer.ack(2)
    assert peer.bodies[4:] == [b"9.4", b"4.1"]


def test_starving_message_is_delivered_within_a_bound(lab: Lab) -> None:
    queue = lab.queue(oldest_every=5)
    publish(lab, queue, 0, 0, 0)
    found: list[int] = []
    for _ in range(15):
        publish(lab, queue, 9, 9)
        (lease,) = lab.lease(queue)
        found.append(lease.delivery.message.seq)
    assert [found.index(seq) + 1 for seq in (1, 2, 3)] == [5, 10, 15]


def test_search_skips_other_priorities_only_once(lab: Lab) -> None:
    """A queue with a long backlog was searched from its beginning for each nth delivery, and for a new priority."""
    queue = lab.queue(oldest_every=2)
    publish(lab, queue, *[0] * 50)
    peer = Peer(lab, queue, window=1)
    publish(lab, queue, 9)
    levels = {level.number: level for level in queue.index.unnamed.levels}
    assert levels[10].cursor == 51
    for _ in range(4):
        peer.ack(*peer.consumer.unsettled)
    assert peer.seqs == [1, 2, 51, 3, 4]
    assert levels[0].cursor == levels[10].cursor == 52


def test_oldest_every_option_accepts_0_or_at_least_2(lab: Lab) -> None:
    for bad in (1, 1001, -1, True, "2", 2.5):
        with pytest.raises(BadRequest, match="bad option oldest_every: .* is not 0 or a whole number from 2 to 1000"):
            lab.queue(oldest_every=bad)
    assert lab.queue(oldest_every=1000).options.oldest_every == 1000


# --- from the disk


def fill(lab: Lab, queue: LocalQueue, count: int, seed: int) -> list[bytes]:
    """Publish many messages of all priorities; return them in the order in which they are to go."""
    dice = Random(seed)
    messages = [ranked(dice.randrange(10), f"{dice.randrange(10)}") for _ in range(count)]
    for number, message in enumerate(messages):
        priority = dict(headers.decode(message.headers))["priority"]
        message.body = f"{priority}.{number}".encode().ljust(200, b" ")
    for start in range(0, count, 100):
        lab.publish_messages(queue, messages[start : start + 100])
    return sorted([message.body.strip() for message in messages], key=lambda body: -int(body[:1]))


@pytest.mark.parametrize("how", ["", "kill"])
def test_a_backlog_of_all_priorities_is_read_back_in_order(how: str) -> None:
    lab = Lab(cap=CAP)
    queue = lab.queue()
    expected = fill(lab, queue, 3000, 1)
    if how:
        lab.restart(how)
        queue = lab.reopened(queue)
    for run in queue.index.runs:
        queue.index.reader.forget(run)
    peer = Peer(lab, queue, window=100)
    while len(peer.received) < len(expected):
        before = len(peer.received)
        peer.ack(*peer.consumer.unsettled)
        assert len(peer.received) > before
    assert [body.strip() for body in peer.bodies] == expected
    peer.ack(*peer.consumer.unsettled)
    assert lab.broker.shared.cache.bytes == 0, "pages that nobody needs are let go of"


def test_page_is_reread_if_its_run_has_grown(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, 9, 0, 9, 0)
    for run in queue.index.runs:
        queue.index.reader.forget(run)
    peer = Peer(lab, queue, window=1)
    assert peer.bodies == [b"9.0"]
    publish(lab, queue, 9, 9)
    assert len(queue.index.runs) == 1
    for _ in range(5):
        peer.ack(*peer.consumer.unsettled)
    assert peer.bodies == b"9.0 9.2 9.0 9.1 0.1 0.3".split()


def test_page_reads_keep_key_order(lab: Lab, queue: LocalQueue) -> None:
    """Messages of one key that were read as a page went out side by side."""
    lab.publish_messages(queue, [ranked(4, "a1", "a"), ranked(4, "a2", "a"), ranked(0, "last")])
    for run in queue.index.runs:
        queue.index.reader.forget(run)
        run.is_keyed = False
    peer = Peer(lab, queue)
    assert peer.bodies == [b"a1", b"last"]
    peer.ack(1)
    assert peer.bodies[2:] == [b"a2"]


def test_damaged_page_loses_only_damaged_messages(lab: Lab, queue: LocalQueue) -> None:
    seqs = publish(lab, queue, 9, 0)
    publish(lab, queue, 9, 0)
    for run in queue.index.runs:
        queue.index.reader.forget(run)
    path = next(path for path in lab.files(queue) if path.endswith(".seg") or "0000" in path.rsplit("/", 1)[1])
    inode = lab.disk.names[path]
    place = bytes(inode.cache).index(b"9.0")
    inode.cache[place] ^= 1
    assert popped(lab, queue) == "9.0 0.1"
    assert queue.damaged and seqs


# --- what the log says


@pytest.mark.parametrize(("window", "commits"), [(5, 1), (2, 2)])
def test_priorities_are_marked_in_advance_if_there_is_room_for_all(
    lab: Lab, queue: LocalQueue, window: int, commits: int
) -> None:
    publish(lab, queue, 4, 9)  # so that there are these priorities
    lab.pop_all(queue)
    peer = Peer(lab, queue, window=window)
    before = queue.stats.commits
    publish(lab, queue, 4, 9, 4)
    assert queue.stats.commits - before == commits
    assert peer.seqs == [4, 3, 5][:window]
    lab.restart("kill")
    again = Peer(lab, lab.reopened(queue), window=9)
    tried = [int(seq in peer.seqs) for seq in (4, 3, 5)]
    assert list(zip(again.seqs, again.tries, strict=True)) == list(zip((4, 3, 5), tried, strict=True))


def test_only_delivered_priorities_count_as_tried_after_a_crash(lab: Lab, queue: LocalQueue) -> None:
    publish(lab, queue, 4, 9, 4, 0, 9)
    peer = Peer(lab, queue, window=3)
    assert peer.seqs == [2, 5, 1]
    lab.settle()
    lab.restart("power")
    again = Peer(lab, lab.reopened(queue))
    assert list(zip(again.seqs, again.tries, strict=True)) == [(2, 1), (5, 1), (1, 1), (3, 0), (4, 0)]


def test_level_marks_are_rewritten_when_their_segment_is_dropped() -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue()
    publish(lab, queue, 9, 9, 4)
    peer = Peer(lab, queue, window=1)
    assert peer.seqs == [1]
    first = queue.log.segments[0].number
    while queue.log.segments[0].number <= first + 3:  # of the default priority, so no more marks of the other are made
        lab.publish(queue, b"x" * 1000)
        seq = queue.state.next_seq - 1
        lab.answer(lambda done, seq=seq: queue.settle_by_id(seq, done))  # type: ignore[misc]
    assert queue.facts.count(Note.RANK) == 1
    lab.restart("kill")
    again = Peer(lab, lab.reopened(queue))
    assert list(zip(again.seqs, again.tries, strict=True)) == [(1, 1), (2, 0), (3, 0)]


def test_copied_messages_keep_their_priority() -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue()
    publish(lab, queue, 4, 0, 9)
    first = queue.log.segments[0].number
    while queue.log.segments[0].number <= first + 3:
        (seq,) = lab.publish(queue, b"x" * 1000)
        lab.answer(lambda done, seq=seq: queue.settle_by_id(seq, done))  # type: ignore[misc]
    for _ in range(2):
        assert queue.by_priority() == {9: 1, 4: 1, 0: 1}
        lab.restart("power")
        queue = lab.reopened(queue)
    assert popped(lab, queue) == "9.2 4.0 0.1"


def test_undo_restores_the_priority(lab: Lab) -> None:
    queue = lab.queue(undo=3600)
    publish(lab, queue, 4, 9, 0)
    assert popped(lab, queue) == "9.1 4.0 0.2"
    error, undone = lab.answer(lambda done: queue.undo(UndoRequest(10), done), passing_ms=1000)
    assert error is None and undone.restored == 3
    assert popped(lab, queue) == "9.1 4.0 0.2"


def test_empty_priority_levels_are_freed(lab: Lab, queue: LocalQueue) -> None:
    """A level of which nothing was left handed out messages of the default level, in no order of their keys."""
    publish(lab, queue, 2, 9)
    assert popped(lab, queue) == "9.1 2.0"
    assert not queue.index.runs.levels and len(queue.index.unnamed.levels) == 3
    keyed = [Message(body, headers.encode([(headers.KEY, "k")])) for body in (b"1", b"2")]
    lab.publish_messages(queue, keyed)
    peer = Peer(lab, queue)
    assert peer.bodies == [b"1"]
    peer.ack(3)
    assert peer.bodies == [b"1", b"2"]


def test_unsettled_messages_are_counted_by_priority(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    lab.publish(queue, b"plain")
    assert queue.by_priority() == {}
    publish(lab, queue, 9, 9, 0)
    lab.pop(queue)
    assert queue.by_priority() == {9: 1, 4: 1, 0: 1} and queue.by_priority("g") == {9: 2, 4: 1, 0: 1}
