"""Messages in, messages out: the same of every engine."""

from __future__ import annotations

from functools import partial

import pytest

from curbstone.core.errors import MessageTooLarge, NoSuchQueue, QueueFull, StaleDelivery
from curbstone.core.message import Message
from curbstone.core.options import KIB
from curbstone.core.port import Queue
from curbstone.core.values import UNKNOWN, ClientInfo, Holder
from tests.engines.worlds import PATIENCE_MS, World

TRACEPARENT = b"traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"
BLOCK = b"content-type:text/plain\n" + TRACEPARENT + b"x:1\ny:a\\cb\nx:2\n\xc3\xa4:\xc3\xb6\n"


def test_messages_are_delivered_in_order_and_unchanged(queue: Queue, world: World) -> None:
    seqs = world.publish(queue, "a", "b", "c", headers=BLOCK)
    assert seqs == list(range(seqs[0], seqs[0] + 3))
    first = world.pop(queue)
    assert first is not None
    assert (first.message.body, first.tries, first.message.seq) == (b"a", 0, seqs[0])
    assert first.message.headers == BLOCK
    assert abs(first.message.timestamp_ms - world.now_ms()) < 60_000
    assert queue.parse_id(queue.message_id(seqs[0])) == seqs[0]
    assert world.bodies(queue) == ["b", "c"]


def test_pop_of_an_empty_queue_returns_nothing_or_waits(queue: Queue, world: World) -> None:
    assert world.pop(queue) is None
    assert world.pop(queue, wait_ms=30) is None
    got: list[object] = []
    queue.pop(got.append, wait_ms=PATIENCE_MS // 2)
    world.publish(queue, "late")
    world.wait_until(lambda: got)
    assert got[0].message.body == b"late"  # type: ignore[attr-defined]
    assert world.pop(queue) is None


def test_cancelled_pop_takes_nothing(queue: Queue, world: World) -> None:
    got: list[object] = []
    waiter = queue.pop(got.append, wait_ms=PATIENCE_MS // 2)
    world.pause()
    assert waiter.cancel() and not waiter.cancel()
    world.publish(queue, "a")
    assert world.pop(queue, is_wanted=lambda: False) is None
    assert world.bodies(queue, 1, wait_ms=100) == ["a"] and not got


def test_window_limits_deliveries_until_acked(queue: Queue, world: World) -> None:
    peer = world.peer(queue, window=2)
    world.publish(queue, *"abcde")
    peer.expect("a", "b")
    world.pause()
    peer.expect("a", "b")
    peer.settle("ack", "a", "b")
    peer.expect("a", "b", "c", "d")
    assert list(peer.consumer.unsettled) == peer.seqs("c", "d")
    with pytest.raises(StaleDelivery):
        peer.consumer.ack(peer.seqs("a"))
    peer.consumer.close()
    again = world.peer(queue)
    world.wait_until(lambda: len(again.deliveries) == 3)
    assert sorted(again.bodies) == ["c", "d", "e"]
    assert [each.tries for each in again.deliveries if each.message.body in (b"c", b"d")] == [1, 1]


def test_requeued_message_is_redelivered_with_one_more_try(queue: Queue, world: World) -> None:
    peer = world.peer(queue, window=1)
    seqs = world.publish(queue, "a", "b", headers=BLOCK)
    peer.expect("a")
    peer.settle("nack", "a")
    peer.expect("a", "a")
    assert [delivery.tries for delivery in peer.deliveries] == [0, 1]
    assert peer.deliveries[1].message.headers == BLOCK
    assert peer.deliveries[1].message.seq == seqs[0]
    peer.settle("ack", "a")
    peer.expect("a", "a", "b")


def test_a_delay_is_never_shortened(queue: Queue, world: World) -> None:
    peer = world.peer(queue)
    began_ms = world.now_ms()
    world.publish(queue, "later", delay_ms=300)
    world.publish(queue, "now")
    world.wait_until(lambda: len(peer.deliveries) == 2)
    assert peer.bodies == ["now", "later"]
    assert world.now_ms() - began_ms >= 300
    assert peer.deliveries[1].tries == 0
    began_ms = world.now_ms()
    peer.settle("nack", "now", delay_ms=200)
    peer.expect("now", "later", "now")
    assert world.now_ms() - began_ms >= 200
    assert peer.deliveries[2].tries == 1 and peer.deliveries[2].message.seq == peer.deliveries[0].message.seq


def test_automatic_delivery_settles_the_message(queue: Queue, world: World) -> None:
    peer = world.peer(queue, auto=True)
    world.publish(queue, *"abc")
    peer.expect("a", "b", "c")
    assert not peer.consumer.unsettled
    peer.consumer.close()
    world.ready(queue, 0)


def test_held_consumer_gets_nothing_and_paused_one_can_settle(queue: Queue, world: World) -> None:
    peer = world.peer(queue)
    peer.consumer.hold()
    world.publish(queue, "a")
    world.pause()
    assert not peer.deliveries
    peer.consumer.resume()
    peer.expect("a")
    peer.consumer.pause()
    world.publish(queue, "b")
    world.ready(queue, 1)
    peer.expect("a")
    peer.settle("ack", "a")
    assert world.bodies(queue) == ["b"]


def test_consumers_of_a_queue_and_holder_of_a_message_are_reported(queue: Queue, world: World) -> None:
    ann, bob = ClientInfo("stomp", "10.0.0.1", 5, "ann"), ClientInfo("http", "::1", 6, "bob")
    assert (ann.peer, bob.peer, UNKNOWN.peer) == ("10.0.0.1:5", "[::1]:6", "")
    peer = world.peer(queue, window=2, client_info=ann)
    first, second, third = world.publish(queue, *"abc")
    peer.expect("a", "b")
    (leases,) = world.answer(lambda done: queue.lease(1, 30_000, done, wait_ms=PATIENCE_MS // 2, client_info=bob))
    consumer, leased = queue.holders()
    assert (consumer.client_info, consumer.unsettled, consumer.state) == (ann, 2, "full")
    assert (leased.client_info, leased.unsettled, leased.until_ms) == (bob, 1, leases[0].expires_ms)
    assert abs(consumer.oldest_ms - world.now_ms()) < 60_000 > abs(leased.oldest_ms - world.now_ms())
    assert [each.client_info for each in queue.holders(second)] == [ann] and queue.holders(second)[0].unsettled == 1
    assert [each.client_info for each in queue.holders(third)] == [bob] and not queue.holders(third + 1_000_000)
    peer.consumer.pause()
    assert [each.state for each in queue.holders(first)] == ["leaving"]
    peer.settle("ack", "a", "b")
    assert [each.client_info for each in queue.holders()] == [bob]


def test_waiting_call_is_a_consumer_without_messages(queue: Queue, world: World) -> None:
    """An event stream that waited was not listed, as if nobody took from the queue."""
    bob = ClientInfo("sse", "::1", 6, "bob")
    answers: list[object] = []
    queue.lease(3, 30_000, answers.append, wait_ms=30_000, client_info=bob)
    assert queue.holders() == [Holder("consumer", "", 3, 0, "ready", 0, 0, bob)]
    (seq,) = world.publish(queue, "a")
    world.wait_until(lambda: answers)
    assert [(each.kind, each.client_info) for each in queue.holders()] == [("leases", bob)]
    pop = queue.pop(answers.append, wait_ms=30_000)
    assert [(each.kind, each.window, each.client_info) for each in queue.holders()] == [
        *(("consumer", 1, UNKNOWN), ("leases", 0, bob)),
    ]
    assert [each.kind for each in queue.holders(seq)] == ["leases"]
    assert pop.cancel()
    assert [each.kind for each in queue.holders()] == ["leases"]


def test_consumer_states_are_reported(queue: Queue, world: World) -> None:
    windowed, auto = world.peer(queue, window=1), world.peer(queue, auto=True)

    def said() -> list[tuple[int, str]]:
        return [(each.window, each.state) for each in queue.holders()]

    assert said() == [(1, "ready"), (0, "ready")]
    for each in (windowed, auto):
        each.consumer.hold()
    assert said() == [(1, "held"), (0, "held")]
    windowed.consumer.resume()
    world.publish(queue, "a")
    windowed.expect("a")
    assert said() == [(1, "full"), (0, "held")]
    windowed.consumer.resize(2)
    assert said() == [(2, "ready"), (0, "held")]
    for each in (windowed, auto):
        each.consumer.pause()
    assert said() == [(2, "leaving")], "of those who leave, only who still holds something"


def test_two_consumers_share_a_queue(queue: Queue, world: World) -> None:
    peers = [world.peer(queue, window=5) for _ in range(2)]
    world.publish(queue, *map(str, range(10)))
    world.wait_until(lambda: sum(len(peer.deliveries) for peer in peers) == 10)
    assert all(len(peer.deliveries) == 5 for peer in peers)


def test_counts_show_ready_and_unsettled_messages(queue: Queue, world: World) -> None:
    world.publish(queue, *"abc")
    world.ready(queue, 3)
    peer = world.peer(queue, window=2)
    peer.expect("a", "b")
    world.ready(queue, 1)
    assert (queue.counts().wip, queue.counts().consumers) == (2, 1)


def test_watcher_is_notified_of_changes(queue: Queue, world: World) -> None:
    heard: list[int] = []
    unwatch = queue.watch(lambda: heard.append(queue.counts().rdy))
    world.publish(queue, "a", "b")
    world.wait_until(lambda: heard and heard[-1] == 2)
    unwatch()


def test_too_large_message_is_refused_alone(world: World) -> None:
    queue = world.queue(max_message_size=10)
    reported: list[tuple[object, int]] = []
    messages = [Message(b"small"), Message(b"x" * 11), Message(b"small")]
    queue.publish(messages, lambda error, _first, count: reported.append((type(error), count)))
    world.wait_until(lambda: sum(count for _, count in reported) == 3)
    assert reported == [(type(None), 1), (MessageTooLarge, 1), (type(None), 1)]
    assert world.bodies(queue) == ["small", "small"]


def test_full_queue_refuses_until_there_is_room(world: World) -> None:
    queue = world.queue(cap=64 * KIB)
    stored = 0
    error: object = None

    def done(failed: object, _first: int, count: int) -> None:
        nonlocal stored, error
        stored += 0 if failed else count
        error = error or failed

    for _ in range(40):
        if error is None:
            answered = stored
            queue.publish([Message(b"x" * 8 * KIB)], done)
            world.wait_until(lambda answered=answered: error or stored > answered)  # type: ignore[misc]
    assert isinstance(error, QueueFull) and stored >= 3
    for _ in range(stored):
        assert world.pop(queue) is not None
    assert world.publish(queue, "again")


def test_deleted_queue_ends_consumers_and_is_recreated_empty(queue: Queue, world: World) -> None:
    peer = world.peer(queue)
    peer.consumer.pause()
    world.publish(queue, "a")
    assert world.answer(lambda done: world.broker.delete(queue.name, done)) == (True,)
    world.wait_until(lambda: peer.errors)
    assert isinstance(peer.errors[0], NoSuchQueue)
    with pytest.raises(NoSuchQueue):
        world.broker.get(queue.name)
    reported: list[object] = []
    queue.publish([Message(b"b")], lambda error, _first, _count: reported.append(error))
    world.wait_until(lambda: reported)
    assert isinstance(reported[0], NoSuchQueue)
    assert world.answer(lambda done: world.broker.delete(queue.name, done)) == (False,)
    again = world.broker.ensure(queue.name)
    world.publish(again, "c")
    assert again.uid != queue.uid and world.bodies(again) == ["c"]


def test_purge_removes_ready_and_delayed_messages(queue: Queue, world: World) -> None:
    world.publish(queue, *"abc")
    world.publish(queue, "later", delay_ms=200)
    error, count = world.answer(queue.purge)
    assert error is None and count >= 3
    world.publish(queue, "after", delay_ms=300)
    assert world.bodies(queue, 1, wait_ms=1500) == ["after"]


def test_groups_get_all_messages_or_those_naming_them(world: World) -> None:
    queue = world.queue(groups=["audit", "mail"])
    world.publish(queue, "all")
    world.publish(queue, "some", groups=("mail", "other"))
    assert world.bodies(queue) == ["all"]
    assert world.bodies(queue, group="audit") == ["all"]
    assert world.bodies(queue, group="mail") == ["all", "some"]
    peer = world.peer(queue, group="other")
    peer.expect("some")
    peer.settle("nack", "some", delay_ms=50)
    peer.expect("some", "some")
    (error,) = world.answer(lambda done: world.broker.declare(queue.name, {"groups": ["audit"]}, done))
    assert error is None
    world.publish(queue, "more")
    assert world.bodies(queue, group="audit") == ["more"]


def test_an_event_reaches_the_queues_that_are_bound_to_it(world: World) -> None:
    queues = [world.queue() for _ in range(2)]
    event = f"order.{queues[0].name.queue}"
    for queue in queues:
        assert world.answer(lambda done, queue=queue: world.broker.bind(event, queue.name, done)) == (None,)  # type: ignore[misc]
    assert world.broker.bindings(queues[0].name).keys() == {event}

    def publish(body: str) -> None:
        answer = world.answer(lambda done: world.broker.publish_event(event, [Message(body.encode())], done))
        assert (answer[0], answer[2]) == (None, 1)

    publish("both")
    assert world.answer(lambda done: world.broker.unbind(event, queues[1].name, done)) == (None,)
    publish("first")
    assert [world.bodies(queue) for queue in queues] == [["both", "first"], ["both"]]
    assert world.answer(lambda done: world.broker.occupy(queues[1].name, frozenset([event]), 600.0, done)) == (None,)
    publish("again")
    assert world.broker.unused_s(queues[1].name) == 600
    assert world.bodies(queues[1]) == ["again"]


def test_mask_matches_events_by_words(queue: Queue, world: World) -> None:
    word = queue.name.queue.replace(".", "-")
    bound = {f"{word}.*.paid", f"{word}.new.>", f"{word}.#.end"}
    assert world.answer(lambda done: world.broker.rebind(queue.name, frozenset(bound), done)) == (None,)
    events = [f"{word}.7.paid", f"{word}.7.8.paid", f"{word}.new", f"{word}.new.a.b", f"{word}.end", f"{word}.new.end"]
    reached = []
    for event in events:
        messages = [Message(event.partition(".")[2].encode())]
        error, queues, _ = world.answer(partial(world.broker.publish_event, event, messages))
        assert error is None
        reached.append(queues)
    assert world.bodies(queue) == ["7.paid", "new", "new.a.b", "end", "new.end"]
    assert reached == [1, 0, 1, 1, 1, 1]


def test_a_window_may_grow_and_shrink(queue: Queue, world: World) -> None:
    peer = world.peer(queue, window=1)
    world.publish(queue, *"abcdef")
    peer.expect("a")
    peer.consumer.resize(3)
    peer.expect("a", "b", "c")
    peer.consumer.resize(1)
    peer.settle("ack", "a", "b")
    world.pause()
    peer.expect("a", "b", "c")
    peer.settle("ack", "c")
    peer.expect("a", "b", "c", "d")


def test_a_transaction_publishes_and_settles(world: World) -> None:
    source, target = world.queue(), world.queue()
    peer = world.peer(source)
    world.publish(source, "a", "b", "c")
    peer.expect("a", "b", "c")
    transaction = world.broker.transaction()
    transaction.publish(target, Message(b"result"))
    transaction.ack(peer.consumer, peer.seqs("a"))
    transaction.nack(peer.consumer, peer.seqs("b"))
    with pytest.raises(StaleDelivery):
        transaction.ack(peer.consumer, peer.seqs("a"))
    assert world.answer(transaction.commit) == (None,)
    peer.expect("a", "b", "c", "b")
    assert world.bodies(target) == ["result"]
    peer.consumer.close()
    assert sorted(world.bodies(source, 2)) == ["b", "c"]


@pytest.mark.parametrize("kind", ["ack", "nack", "reject"])
def test_transaction_settles_the_named_delivery_and_no_later_one(world: World, kind: str) -> None:
    """A message that was given back before the commit was settled by it when it had come again."""
    source, target = world.queue(), world.queue()
    peer = world.peer(source, window=1)
    world.publish(source, "a")
    peer.expect("a")
    seqs = peer.seqs("a")
    transaction = world.broker.transaction()
    transaction.publish(target, Message(b"result"))
    getattr(transaction, kind)(peer.consumer, seqs)
    peer.settle("nack", "a")
    peer.expect("a", "a")
    getattr(transaction, kind)(peer.consumer, seqs)  # which is another delivery
    (stale,) = world.answer(transaction.commit)
    assert isinstance(stale, StaleDelivery)
    assert str(stale) == f"message {seqs[0]} is not unsettled here any more"
    assert list(peer.consumer.unsettled) == seqs, "none of it happened"
    world.pause()
    assert source.counts().wip == 1 and target.counts().rdy == 0
    peer.settle("ack", "a")


def test_a_dropped_transaction_did_nothing(queue: Queue, world: World) -> None:
    peer = world.peer(queue)
    world.publish(queue, "a")
    peer.expect("a")
    transaction = world.broker.transaction()
    transaction.publish(queue, Message(b"never"))
    transaction.ack(peer.consumer, peer.seqs("a"))
    del transaction
    peer.settle("ack", "a")
    assert world.bodies(queue) == []
