"""Looking without changing, settling by id, and emptying."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import NoSuchQueue, StaleDelivery, Unavailable
from curbstone.core.values import Outcome
from tests.kit.lab import Lab, Peer, numbered


def mixed() -> tuple[Lab, LocalQueue]:
    """Seq 1 wip, 2 to 4 rdy, 5 delayed."""
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, *numbered(4))
    lab.publish(queue, "later", delay_ms=1000)
    lab.lease(queue)
    return lab, queue


@pytest.mark.parametrize(
    ("limit", "after", "state", "seqs"),
    [
        (100, 0, "", [1, 2, 3, 4, 5]),
        (2, 0, "", [1, 2]),
        (2, 2, "", [3, 4]),
        (100, 5, "", []),
        (100, 99, "", []),
        (0, 0, "", []),
        (100, 0, "rdy", [2, 3, 4]),
        (2, 2, "rdy", [3, 4]),
        (100, 0, "wip", [1]),
        (100, 0, "delayed", [5]),
        (1, 1, "delayed", [5]),
    ],
)
def test_peek_returns_the_requested_messages_in_order(limit: int, after: int, state: str, seqs: list[int]) -> None:
    lab, queue = mixed()
    before = queue.counts()
    assert [found.message.seq for found in lab.peek(queue, limit, after=after, state=state)] == seqs
    assert queue.counts() == before


def test_peek_shows_state_tries_and_due_time() -> None:
    lab, queue = mixed()
    found = lab.peek(queue)
    assert [peeked.state for peeked in found] == ["wip", "rdy", "rdy", "rdy", "delayed"]
    assert [peeked.tries for peeked in found] == [0] * 5
    assert [peeked.due_ms for peeked in found] == [0, 0, 0, 0, lab.host.now_ms() + 1000]


def test_peek_reads_a_backlog_back_from_disk_and_changes_nothing() -> None:
    lab = Lab(cap=8 << 20)
    queue = lab.queue()
    lab.publish(queue, *numbered(3000, 1000))
    lab.restart()
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == numbered(3000, 1000)
    assert Peer(lab, queue, window=5000).tries == [0] * 3000


def test_counts_of_an_unknown_group_are_zero() -> None:
    lab, queue = mixed()
    assert queue.counts("nobody")[:3] == (0, 0, 0)
    assert lab.peek(queue) != []


def test_byte_count_matches_the_directory(lab: Lab, queue: LocalQueue) -> None:
    for _ in range(20):
        lab.publish(queue, *numbered(50, 500))
        lab.pop_all(queue)
        meta_reserve = queue.counts().bytes - lab.held(queue)
        assert 0 <= meta_reserve <= 32 * 1024


# --- settle by id


def test_any_message_is_settled_by_its_id_in_whatever_state_it_is() -> None:
    lab, queue = mixed()
    for seq in (1, 3, 5):
        assert lab.answer(partial(queue.settle_by_id, seq)) == (None, True)
    assert queue.counts()[:3] == (2, 0, 0)
    lab.pass_time(5000)
    assert lab.pop_all(queue) == [numbered(4)[1], numbered(4)[3]]


def test_settling_an_unknown_id_is_reported() -> None:
    lab, queue = mixed()
    assert lab.pop(queue) == numbered(4)[1]
    for seq in (0, 2, 6, 1 << 70):
        assert lab.answer(partial(queue.settle_by_id, seq)) == (None, False)


def test_a_message_settled_by_id_is_no_longer_held_by_its_consumer(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(3))
    peer = Peer(lab, queue, window=2)
    lab.answer(lambda done: queue.settle_by_id(1, done))
    with pytest.raises(StaleDelivery):
        peer.consumer.ack([1])
    assert peer.seqs == [1, 2, 3]


def test_a_message_settled_by_id_is_no_longer_held_by_a_paused_consumer_either(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(3))
    peer = Peer(lab, queue, window=2)
    peer.consumer.pause()
    lab.answer(lambda done: queue.settle_by_id(1, done))
    with pytest.raises(StaleDelivery):
        peer.consumer.nack([1], delay_ms=1000)
    lab.settle()
    assert queue.counts()[:3] == (1, 1, 0)


# --- purge


def test_purge_removes_ready_and_delayed_and_keeps_unsettled() -> None:
    lab, queue = mixed()
    assert lab.purge(queue) == 4
    assert [found.state for found in lab.peek(queue)] == ["wip"]
    lab.pass_time(60_000)
    assert lab.pop_all(queue) == [numbered(4)[0]]


def test_purge_counts_a_message_once_and_only_if_no_group_holds_it(lab: Lab) -> None:
    queue = lab.queue(groups=["a", "b"])
    lab.publish(queue, *numbered(3))
    lab.lease(queue, group="a")
    assert lab.purge(queue) == 2
    assert [queue.counts(group)[:3] for group in ("", "a", "b")] == [(0, 0, 0), (0, 1, 0), (0, 0, 0)]


def test_purging_an_empty_queue_is_nothing(lab: Lab) -> None:
    assert lab.purge(lab.queue()) == 0


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_purged_messages_do_not_return(lab: Lab, how: str) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, *numbered(100), delay_ms=5000)
    lab.publish(queue, *numbered(100))
    assert lab.purge(queue) == 200
    lab.restart(how)
    queue = lab.reopened(queue)
    lab.pass_time(10_000)
    assert lab.bodies(queue) == [] and queue.counts()[:3] == (0, 0, 0) == queue.counts("a")[:3]


@pytest.mark.parametrize("count", [1, 50, 400])
@pytest.mark.parametrize("wip", [0, 1])
def test_purge_leaves_no_byte_of_a_body_in_any_file(count: int, wip: int) -> None:
    lab = Lab(cap=1 << 20)
    queue = lab.queue()
    lab.publish(queue, *[b"top secret %d" % number * 20 for number in range(count)])
    lab.publish(queue, *[b"top secret %d" % number * 20 for number in range(count)], delay_ms=1000)
    for body in (b"top secret settled", b"top secret dropped"):
        lab.publish(queue, body)
    if wip:
        lab.publish(queue, *numbered(wip))
        leases = lab.lease(queue, 10_000)
        others = [lease.token for lease in leases if b"secret" in lease.delivery.message.body]
        lab.answer(lambda done: queue.settle_leases(others, Outcome.NACK, done))
    assert lab.purge(queue) == 2 * count + 2
    assert not [path for path, data in lab.files(queue).items() if b"secret" in data]
    assert lab.bodies(queue) == numbered(wip)
    lab.disk.crash()
    assert not [path for path, inode in lab.disk.names.items() if b"secret" in inode.cache]


def test_queue_works_after_a_purge(lab: Lab, queue: LocalQueue) -> None:
    for _ in range(5):
        lab.publish(queue, *numbered(100, 100))
        assert lab.purge(queue) == 100
    lab.publish(queue, "a")
    lab.restart()
    assert lab.bodies(lab.reopened(queue)) == [b"a"]


def test_message_published_during_a_purge_is_kept(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(10))
    answers: list[object] = []
    queue.purge(lambda *given: answers.append(given))
    queue.publish([], lambda *_: None)
    lab.publish(queue, "after")
    assert answers == [(None, 10)] and lab.bodies(queue) == [b"after"]


@pytest.mark.parametrize("how", ["delete", "shutdown"])
def test_peek_at_an_ending_queue_is_refused(lab: Lab, how: str) -> None:
    """It was read from the disk again and again, and the answer never came."""
    lab.publish(lab.queue(), "a", "b")
    lab.restart()
    queue = lab.named("q")
    answers: list[object] = []
    queue.peek(10, answers.append)
    lab.end(queue, how)
    (answer,) = answers
    assert isinstance(answer, NoSuchQueue if how == "delete" else Unavailable)
