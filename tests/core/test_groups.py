"""Groups: independent readers of the same messages."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from tests.kit.lab import Lab, Peer, message, numbered

HOWS = pytest.mark.parametrize("how", ["shutdown", "kill", "power"])


def test_message_without_groups_reaches_the_unnamed_and_all_declared_groups(lab: Lab) -> None:
    queue = lab.queue(groups=["a", "b"])
    lab.publish(queue, "m")
    peers = {group: Peer(lab, queue, group=group) for group in ("", "a", "b", "other")}
    assert {group: peer.bodies for group, peer in peers.items()} == {"": [b"m"], "a": [b"m"], "b": [b"m"], "other": []}


def test_message_with_groups_reaches_only_them(lab: Lab) -> None:
    queue = lab.queue(groups=["a", "b"])
    lab.publish(queue, "m", groups=("b", "c"))
    peers = {group: Peer(lab, queue, group=group) for group in ("", "a", "b", "c")}
    assert {group: len(peer.received) for group, peer in peers.items()} == {"": 0, "a": 0, "b": 1, "c": 1}


def test_message_is_removed_when_every_entitled_group_settled(lab: Lab) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, "m", "n")
    assert lab.pop(queue) == b"m"
    assert lab.bodies(queue) == [b"m", b"n"]
    assert lab.pop(queue, "a") == b"m"
    assert lab.bodies(queue) == [b"n"]


def test_each_group_has_its_own_tries_and_delays(lab: Lab) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, "m")
    unnamed, named = Peer(lab, queue), Peer(lab, queue, group="a")
    named.nack(1)
    named.nack(1, delay_ms=1000)
    assert queue.counts()[:3] == (0, 1, 0) and queue.counts("a")[:3] == (0, 0, 1)
    lab.pass_time(1000)
    assert named.tries == [0, 1, 2] and unnamed.tries == [0]


def test_consumers_share_the_messages_of_their_group_only(lab: Lab) -> None:
    queue = lab.queue(groups=["a"])
    peers = [Peer(lab, queue, group=group) for group in ("a", "a", "")]
    lab.publish(queue, *numbered(4))
    assert [peer.seqs for peer in peers] == [[1, 3], [2, 4], [1, 2, 3, 4]]


def test_later_declared_group_sees_only_later_messages(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "before")
    lab.queue(groups=["a"])
    lab.publish(queue, "after")
    lab.restart()
    queue = lab.reopened(queue)
    assert lab.pop_all(queue, "a") == [b"after"]
    assert lab.pop_all(queue) == [b"before", b"after"]


def test_undeclared_group_does_not_retain_messages(lab: Lab) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, "m")
    assert lab.pop(queue) == b"m"
    assert lab.bodies(queue) == [b"m"]
    lab.queue(groups=[])
    assert lab.bodies(queue) == []
    lab.restart()
    assert lab.bodies(lab.reopened(queue)) == []


@HOWS
def test_settles_per_group_survive_a_restart(lab: Lab, how: str) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, *numbered(6))
    lab.publish(queue, "only b", groups=("b",))
    Peer(lab, queue).ack(1, 3)
    peer = Peer(lab, queue, group="a")
    peer.consumer.hold()
    peer.ack(2, 3)
    peer.nack(4)
    lab.restart(how)
    queue = lab.reopened(queue)
    unnamed, a, b = (Peer(lab, queue, group=group) for group in ("", "a", "b"))
    assert (unnamed.seqs, a.seqs, b.seqs) == ([2, 4, 5, 6], [1, 4, 5, 6], [7])
    assert a.tries == [1, 1, 1, 1]


def make_the_cleaner_work(lab: Lab, name: str = "q") -> int:
    """Publish and settle until the oldest segments have gone; return how many times over the cap went through."""
    queue = lab.broker.queues()[[q.name.queue for q in lab.broker.queues()].index(name)]
    first = queue.log.segments[0].number
    for _ in range(100):
        lab.publish(queue, *[b"x" * 600] * 20, groups=("filler",))
        assert len(lab.pop_all(queue, "filler")) == 20
    return queue.log.segments[0].number - first


@HOWS
def test_group_state_survives_the_cleaner(lab: Lab, how: str) -> None:
    queue = lab.queue(cap=64 * 1024, groups=["a"])
    lab.publish(queue, *numbered(5, 100))
    unnamed, named = Peer(lab, queue), Peer(lab, queue, group="a")
    for peer in (unnamed, named):
        peer.consumer.hold()
    unnamed.ack(2)
    unnamed.nack(3)
    named.ack(3)
    named.nack(4, delay_ms=10_000_000)
    due_ms = lab.host.now_ms() + 10_000_000
    assert make_the_cleaner_work(lab) > 3
    for _ in range(2):
        lab.restart(how)
        queue = lab.reopened(queue)
    assert queue.counts("a")[:3] == (3, 0, 1)
    first, second = Peer(lab, queue), Peer(lab, queue, group="a")
    assert (first.seqs, second.seqs) == ([1, 3, 4, 5], [1, 2, 5])
    assert set(first.tries) == {1}
    lab.pass_time(due_ms - lab.host.now_ms())
    assert second.seqs[3:] == [4] and second.tries[3:] == [1]


def test_named_group_redelivers_held_messages_after_the_cleaner(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    lab.publish(queue, *numbered(3, 100), groups=("a",))
    Peer(lab, queue, group="a")
    lab.pass_time(200)
    make_the_cleaner_work(lab)
    lab.restart()
    assert Peer(lab, lab.reopened(queue), group="a").tries == [1, 1, 1]


def test_unnamed_group_redelivers_held_messages_after_the_cleaner(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    lab.publish(queue, *numbered(3, 100))
    Peer(lab, queue)
    make_the_cleaner_work(lab)
    lab.restart()
    assert Peer(lab, lab.reopened(queue)).tries == [1, 1, 1]


def test_dead_letter_of_one_group_does_not_affect_others(lab: Lab) -> None:
    queue = lab.queue(groups=["a"], dead_letter="dead")
    lab.publish(queue, "m")
    Peer(lab, queue, group="a").reject(1)
    assert lab.pop(queue) == b"m"
    assert lab.bodies(queue) == []


def test_groups_have_separate_leases_and_pops(lab: Lab) -> None:
    queue = lab.queue(groups=["a"])
    lab.publish(queue, "m")
    leases = [lab.lease(queue), lab.lease(queue, group="a")]
    assert [[lease.delivery.message.seq for lease in taken] for taken in leases] == [[1], [1]]
    assert lab.lease(queue, group="a") == []
    assert lab.pop(queue, "a") is None


def test_a_batch_may_name_different_groups(lab: Lab, queue: LocalQueue) -> None:
    messages = [message(b"%d" % number, groups=("a",) * (number % 2)) for number in range(6)]
    lab.publish_messages(queue, messages)
    lab.restart()
    queue = lab.reopened(queue)
    assert lab.pop_all(queue, "a") == [b"1", b"3", b"5"]
    assert lab.pop_all(queue) == [b"0", b"2", b"4"]
