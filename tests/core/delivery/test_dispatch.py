"""Who gets what: order, windows, round robin, weights, hold and pause."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.consumer import Consumer
from curbstone.core.errors import NoSuchQueue
from curbstone.core.message import Delivery
from tests.kit.lab import Lab, Peer, numbered


def test_a_consumer_gets_messages_in_the_order_of_their_seqs(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(10))
    peer = Peer(lab, queue)
    lab.publish(queue, *numbered(10))
    assert peer.seqs == list(range(1, 21))
    assert peer.tries == [0] * 20 and not any(delivery.redelivered for delivery in peer.received)


@pytest.mark.parametrize("window", [1, 2, 7, 1000])
def test_a_window_is_never_exceeded_and_is_filled_up_again(lab: Lab, queue: LocalQueue, window: int) -> None:
    peer = Peer(lab, queue, window=window)
    lab.publish(queue, *numbered(50))
    while peer.consumer.unsettled:
        assert len(peer.consumer.unsettled) == min(window, 50 - len(peer.received) + len(peer.consumer.unsettled))
        assert queue.counts().wip == len(peer.consumer.unsettled)
        peer.ack(next(iter(peer.consumer.unsettled)))
    assert peer.seqs == list(range(1, 51))


def test_consumers_take_turns(lab: Lab, queue: LocalQueue) -> None:
    peers = [Peer(lab, queue) for _ in range(3)]
    lab.publish(queue, *numbered(9))
    assert [peer.seqs for peer in peers] == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]


def test_round_robin_continues_where_it_ended(lab: Lab, queue: LocalQueue) -> None:
    peers = [Peer(lab, queue) for _ in range(3)]
    for body in numbered(6):
        lab.publish(queue, body)
    assert [peer.seqs for peer in peers] == [[1, 4], [2, 5], [3, 6]]


def test_a_consumer_of_weight_three_gets_three_shares(lab: Lab, queue: LocalQueue) -> None:
    heavy, light = Peer(lab, queue, weight=3), Peer(lab, queue)
    lab.publish(queue, *numbered(40))
    assert (len(heavy.received), len(light.received)) == (30, 10)
    assert queue.counts().consumers == 2


def test_started_share_continues(lab: Lab, queue: LocalQueue) -> None:
    heavy, light = Peer(lab, queue, weight=3), Peer(lab, queue, weight=2)
    for body in numbered(10):
        lab.publish(queue, body)
    assert heavy.seqs == [1, 2, 3, 6, 7, 8] and light.seqs == [4, 5, 9, 10]


def test_round_robin_continues_when_consumers_join_and_leave(lab: Lab, queue: LocalQueue) -> None:
    first, second = Peer(lab, queue, weight=2), Peer(lab, queue)
    lab.publish(queue, "1")
    first.close()
    third = Peer(lab, queue)
    for body in ("2", "3", "4"):
        lab.publish(queue, body)
    assert (second.seqs, third.seqs) == ([1, 2, 4], [3])


def test_a_thousand_consumers_of_the_greatest_weight_join_and_leave(lab: Lab, queue: LocalQueue) -> None:
    """A ring had a place for each point of weight: a million of them took a connection's end 14 seconds, quadratic."""
    peers = [Peer(lab, queue, weight=1000, window=1) for _ in range(1000)]
    lab.publish(queue, *numbered(1000))
    assert [len(peer.received) for peer in peers] == [1] * 1000
    for peer in peers:
        peer.consumer.close()
    lab.settle()
    assert queue.counts()[:3] == (1000, 0, 0)


def test_a_message_costs_the_same_however_many_consumers_there_are(
    lab: Lab, queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was asked for its credit, and notified when nothing was ready."""
    peers = [Peer(lab, queue, window=5) for _ in range(500)]
    credit = Consumer.credit
    asked = 0

    def counted(consumer: Consumer) -> int:
        nonlocal asked
        asked += 1
        return int(credit.__get__(consumer))

    monkeypatch.setattr(Consumer, "credit", property(counted))
    for n in range(1000):
        lab.publish(queue, str(n))
        if n % 2:
            lab.publish(queue, "x", "y")
    assert asked < 6 * 2000
    assert {len(peer.seqs) for peer in peers} == {4}


def test_consumer_without_window_is_skipped(lab: Lab, queue: LocalQueue) -> None:
    small, large = Peer(lab, queue, window=1), Peer(lab, queue)
    lab.publish(queue, *numbered(10))
    assert len(small.received) == 1 and len(large.received) == 9
    small.ack(*small.seqs)
    lab.publish(queue, *numbered(2))
    assert len(small.received) == 2


def test_message_has_at_most_one_live_delivery(lab: Lab, queue: LocalQueue) -> None:
    peers = [Peer(lab, queue, window=3) for _ in range(4)]
    lab.publish(queue, *numbered(50))
    held = [seq for peer in peers for seq in peer.consumer.unsettled]
    assert len(held) == len(set(held)) == 12


def test_a_held_consumer_gets_nothing_until_it_resumes(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue)
    peer.consumer.hold()
    lab.publish(queue, "a", "b")
    assert not peer.received and queue.counts().rdy == 2
    peer.consumer.resume()
    lab.settle()
    assert peer.seqs == [1, 2]


def test_a_held_consumer_leaves_the_others_their_turns(lab: Lab, queue: LocalQueue) -> None:
    held, other = Peer(lab, queue), Peer(lab, queue)
    held.consumer.hold()
    lab.publish(queue, *numbered(5))
    assert other.seqs == [1, 2, 3, 4, 5]


def test_paused_consumer_gets_nothing_and_can_settle(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue, window=3)
    lab.publish(queue, *numbered(6))
    peer.consumer.pause()
    assert queue.counts().consumers == 0
    peer.ack(1)
    peer.reject(3)
    lab.publish(queue, "more")
    assert peer.seqs == [1, 2, 3] and set(peer.consumer.unsettled) == {2}
    assert queue.counts().wip == 1
    peer.close()
    assert queue.counts().wip == 0
    assert lab.pop(queue) == numbered(6)[1]


def test_closed_consumer_requeues_its_messages_in_place(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(6))
    first = Peer(lab, queue, window=4)
    first.ack(2)
    first.close()
    second = Peer(lab, queue)
    assert second.seqs == [1, 3, 4, 5, 6]
    assert second.tries == [1, 1, 1, 1, 0]


def test_closing_twice_is_harmless(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    peer.close()
    peer.close()
    assert queue.counts()[:3] == (1, 0, 0)


def test_automatic_consumer_settles_on_delivery(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue, auto=True, window=0)
    lab.publish(queue, *numbered(2000))
    assert peer.seqs == list(range(1, 2001))
    assert queue.counts()[:3] == (0, 0, 0)
    lab.restart()
    assert lab.bodies(lab.reopened(queue)) == []


def test_an_automatic_consumer_can_be_held_too(lab: Lab, queue: LocalQueue) -> None:
    peer = Peer(lab, queue, auto=True)
    peer.consumer.hold()
    lab.publish(queue, "a")
    assert not peer.received and queue.counts().rdy == 1
    peer.consumer.resume()
    lab.settle()
    assert peer.bodies == [b"a"]


def test_consumer_whose_callback_fails_is_closed(lab: Lab, queue: LocalQueue) -> None:
    def fail(_: list[Delivery]) -> None:
        raise ValueError("a fault of an adapter")

    queue.subscribe(fail, window=10, on_closed=lambda _: None)
    lab.publish(queue, "a")
    assert queue.counts().consumers == 0
    assert Peer(lab, queue).tries == [1]


def test_consumer_can_close_itself_in_its_callback(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(4))
    first = queue.subscribe(lambda _: first.close(), window=2, on_closed=lambda _: None)
    second = Peer(lab, queue)
    assert sorted(second.seqs) == [1, 2, 3, 4]
    assert queue.counts().wip == 4


def test_a_backlog_larger_than_memory_is_read_back_in_order() -> None:
    lab = Lab(cap=16 << 20)
    queue = lab.queue()
    for _ in range(6):
        lab.publish(queue, *[b"x" * 10_000] * 100)
    lab.restart()
    queue = lab.reopened(queue)
    peer = Peer(lab, queue, window=50)
    while peer.consumer.unsettled:
        peer.ack(*peer.consumer.unsettled)
    assert peer.seqs == list(range(1, 601))


def test_watcher_is_notified_once_per_turn_until_removed(lab: Lab, queue: LocalQueue) -> None:
    heard: list[int] = []
    unwatch = queue.watch(lambda: heard.append(queue.counts().rdy))
    lab.publish(queue, *numbered(100))
    assert heard and heard[-1] == 100 and len(heard) <= 3
    assert lab.pop(queue) is not None
    assert heard[-1] == 99
    unwatch()
    unwatch()
    reported = len(heard)
    lab.publish(queue, "a")
    assert len(heard) == reported


def test_consumers_of_a_deleted_queue_are_notified_and_hold_nothing(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(4))
    peers = [Peer(lab, queue, window=2), Peer(lab, queue, window=2, group="g")]
    assert lab.answer(lambda done: lab.broker.delete(queue.name, done)) == (True,)
    for peer in peers:
        assert [type(error) for error in peer.closed_with] == [NoSuchQueue]
        assert not peer.consumer.unsettled
        peer.close()


def test_a_paused_consumer_of_a_deleted_queue_is_notified_too(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a")
    peer = Peer(lab, queue)
    peer.consumer.pause()
    assert lab.answer(lambda done: lab.broker.delete(queue.name, done)) == (True,)
    assert [type(error) for error in peer.closed_with] == [NoSuchQueue]
    assert not peer.consumer.unsettled
