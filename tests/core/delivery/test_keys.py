"""How many messages of a key are in flight, how many a second are delivered, and which key is next in a fair queue."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from curbstone.core import headers
from curbstone.core.engine.index import keys, level, runs
from curbstone.core.errors import BadRequest
from curbstone.core.message import Delivery, Message
from curbstone.core.options import MIB, QueueOptions
from curbstone.core.orders import orders_of
from curbstone.core.values import UndoRequest
from tests.core.delivery.test_ordering import keyed, publish, received_text
from tests.kit.lab import Lab, Peer, message


def ranked(word: str, priority: int) -> Message:
    block = headers.encode([(headers.KEY, word[0]), ("priority", str(priority))])
    return Message(word.encode(), block, orders_of(level=priority + 1))


# --- key_limit


def test_key_limit_bounds_messages_in_flight_in_order(lab: Lab) -> None:
    queue = lab.queue(key_limit=2)
    publish(lab, queue, "a1 a2 a3 b1 a4 -1")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 a2 b1 -1"
    peer.ack(2)
    assert received_text(peer) == "a1 a2 b1 -1 a3"
    peer.ack(1, 3)
    assert received_text(peer) == "a1 a2 b1 -1 a3 a4"


def test_without_a_limit_keys_do_not_order(lab: Lab) -> None:
    queue = lab.queue(key_limit=0)
    publish(lab, queue, "a1 a2 b1 a3")
    assert received_text(Peer(lab, queue)) == "a1 a2 b1 a3"
    assert queue.index.unnamed.keys is None


def test_delayed_and_requeued_messages_do_not_count_for_the_key_limit(lab: Lab) -> None:
    queue = lab.queue(key_limit=2)
    lab.publish_messages(queue, [keyed("a", "a1", delay_ms=5000), *[keyed("a", f"a{n}") for n in range(2, 6)]])
    peer = Peer(lab, queue)
    assert received_text(peer) == "a2 a3"
    peer.nack(2, delay_ms=9000)
    assert received_text(peer) == "a2 a3 a4"
    lab.pass_time(5000)
    assert received_text(peer) == "a2 a3 a4", "it waits for a place"
    peer.ack(3)
    assert received_text(peer) == "a2 a3 a4 a1", "and is the first then"
    lab.pass_time(4000)
    peer.ack(4)
    assert received_text(peer) == "a2 a3 a4 a1 a2"
    peer.nack(1)
    assert received_text(peer) == "a2 a3 a4 a1 a2 a1", "it has its place again before a5"
    peer.ack(1, 2)
    assert received_text(peer).endswith("a1 a5")


def test_settle_by_id_expiry_and_purge_free_the_key_limit(lab: Lab) -> None:
    queue = lab.queue(key_limit=1 + 1)
    lab.publish_messages(queue, [keyed("a", "a1"), keyed("a", "a2"), keyed("a", "a3", ttl_ms=1000)])
    publish(lab, queue, "a4 a5 a6 a7")
    peer = Peer(lab, queue)
    lab.pass_time(2000)
    assert lab.answer(lambda done: queue.settle_by_id(4, done)) == (None, True)
    assert lab.answer(lambda done: queue.settle_by_id(1, done)) == (None, True)
    assert received_text(peer) == "a1 a2 a5"
    assert lab.purge(queue) == 2
    publish(lab, queue, "a8")
    peer.ack(2)
    assert received_text(peer) == "a1 a2 a5 a8"


def test_changed_key_limit_applies_to_the_next_delivery(lab: Lab) -> None:
    queue = lab.queue(key_limit=0)
    publish(lab, queue, "a1 a2 a3")
    peer = Peer(lab, queue)
    lab.queue(key_limit=2)
    publish(lab, queue, "a4 a5 b1")
    assert received_text(peer) == "a1 a2 a3 b1"
    peer.ack(1)
    assert received_text(peer) == "a1 a2 a3 b1"
    peer.ack(2)
    assert received_text(peer) == "a1 a2 a3 b1 a4"
    lab.queue(key_limit=1)
    peer.ack(3)
    assert received_text(peer) == "a1 a2 a3 b1 a4"
    peer.ack(4)
    assert received_text(peer) == "a1 a2 a3 b1 a4 a5"
    publish(lab, queue, "a7")
    lab.queue(key_limit=5)
    assert received_text(peer) == "a1 a2 a3 b1 a4 a5 a7"


def test_messages_of_a_limited_key_follow_priorities(lab: Lab) -> None:
    queue = lab.queue(key_limit=2)
    lab.publish_messages(queue, [ranked(word, int(word[1])) for word in ["a4", "a5", "a9", "b1", "a0"]])
    peer = Peer(lab, queue)
    assert received_text(peer) == "a9 a5 b1"
    lab.publish_messages(queue, [ranked("a7", 7)])
    peer.ack(3)
    assert received_text(peer) == "a9 a5 b1 a7"
    peer.ack(2)
    assert received_text(peer) == "a9 a5 b1 a7 a4"


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_only_delivered_messages_count_as_tried_after_a_crash(lab: Lab, how: str) -> None:
    queue = lab.queue(key_limit=2)
    publish(lab, queue, "a1 a2 a3 a4 b1 a5 b2")
    Peer(lab, queue)
    publish(lab, queue, "-1 b3")
    lab.restart(how)
    queue = lab.reopened(queue)
    assert {found.message.body: found.tries for found in lab.peek(queue)} == {
        **{b"a1": 1, b"a2": 1, b"a3": 0, b"a4": 0, b"b1": 1, b"a5": 0, b"b2": 1, b"-1": 1, b"b3": 0}
    }
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 a2 b1 b2 -1" and peer.tries == [1] * 5
    peer.ack(1, 5)
    assert received_text(peer) == "a1 a2 b1 b2 -1 a3 b3" and peer.tries[5:] == [0, 0]


# --- key_rate


def test_key_rate_limits_deliveries_per_second(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, key_rate=2, key_burst=1)
    lab.pass_time(10_000)
    publish(lab, queue, "a1 a2 b1 a3 -1 -2")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 b1 -1 -2"
    lab.pass_time(499)
    assert received_text(peer) == "a1 b1 -1 -2"
    lab.pass_time(2)
    assert received_text(peer) == "a1 b1 -1 -2 a2"
    lab.pass_time(500)
    assert received_text(peer) == "a1 b1 -1 -2 a2 a3"


def test_the_rate_of_a_key_holds_beside_its_order_and_over_a_restart(lab: Lab) -> None:
    queue = lab.queue(key_rate=1)
    lab.pass_time(5000)
    publish(lab, queue, "a1 a2 a3 b1")
    peer = Peer(lab, queue, auto=True)
    assert received_text(peer) == "a1 b1"
    lab.pass_time(1001)
    assert received_text(peer) == "a1 b1 a2"
    lab.restart()
    peer = Peer(lab, lab.reopened(queue), auto=True)
    assert received_text(peer) == ""
    lab.pass_time(1001)
    assert received_text(peer) == "a3"


def test_redeliveries_count_for_the_key_rate_but_undelivered_messages_do_not(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, key_rate=1)
    lab.pass_time(5000)
    publish(lab, queue, "a1 a2")
    peer = Peer(lab, queue)
    peer.nack(1)
    assert received_text(peer) == "a1"
    lab.pass_time(1001)
    assert received_text(peer) == "a1 a1"
    peer.ack(1)
    peer.close()
    lab.pass_time(1001)
    queue.pop(lambda *_answer: None, is_wanted=lambda: False)
    lab.settle()
    assert received_text(Peer(lab, queue)) == "a2"


@pytest.mark.source
def test_keys_are_dropped_when_their_rate_has_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "SPARE_MAX", 4)
    monkeypatch.setattr(keys, "SWEEP_MS", 1)
    lab = Lab()
    queue = lab.queue(key_limit=0, key_rate=1000)
    lab.pass_time(5000)
    peer = Peer(lab, queue, auto=True)
    for n in range(100):
        lab.publish_messages(queue, [keyed(f"k{n}", str(n))])
        lab.pass_time(2)
    assert len(peer.bodies) == 100
    assert queue.index.unnamed.keys is not None and len(queue.index.unnamed.keys._table) < 10


# --- fair


def test_the_key_with_the_fewest_in_flight_is_next(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, fair=True)
    publish(lab, queue, "a1 a2 a3 a4 a5 a6 b1 c1 c2 -1 -2")
    peer = Peer(lab, queue, window=5)
    assert received_text(peer) == "a1 b1 c1 -1 a2"
    peer.ack(7)
    assert received_text(peer) == "a1 b1 c1 -1 a2 c2", "a has 2 in flight, and -2 came to its number later"
    peer.ack(10)
    assert received_text(peer).endswith("c2 -2")
    peer.ack(1)
    peer.ack(2)
    assert received_text(peer).endswith("c2 -2 a3 a4")


def test_a_noisy_tenant_does_not_delay_a_quiet_one(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, fair=True, cap=64 << 20)
    for _ in range(100):
        lab.publish_messages(queue, [keyed("noisy", "n") for _ in range(100)])
    peer = Peer(lab, queue, window=10)
    lab.publish_messages(queue, [keyed("quiet", "q")])
    assert b"q" not in peer.bodies
    peer.ack(1)
    assert peer.bodies[-1] == b"q", "it is the next"
    lab.restart()
    queue = lab.reopened(queue)
    lab.publish_messages(queue, [keyed("other", "o")])
    peer = Peer(lab, queue, window=10)
    seqs = 0
    while b"o" not in peer.bodies and seqs < 200:
        peer.ack(peer.seqs[seqs])
        seqs += 1
    assert b"q" in peer.bodies and seqs < 120, f"after {seqs}: one run is read in a turn"


def test_messages_beyond_memory_are_entered_when_published(monkeypatch: pytest.MonkeyPatch) -> None:
    from curbstone.core.engine.index import reader

    monkeypatch.setattr(reader, "TAIL_BYTES_MAX", 4000)
    lab = Lab()
    queue = lab.queue(key_limit=0, fair=True)
    for n in range(20):
        lab.publish_messages(queue, [keyed("noisy", f"n{n}" + "x" * 500)])
    publish(lab, queue, "q1 q2")
    peer = Peer(lab, queue, window=3)
    assert [body[:2] for body in peer.bodies] == [b"n0", b"q1", b"n1"]
    everything = Peer(lab, queue, window=50)
    assert sorted([*peer.bodies, *everything.bodies])[-2:] == [b"q1", b"q2"] and len(everything.bodies) == 19


def test_messages_are_read_back_while_other_keys_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys wait for reads of two runs; only the first read was begun while others were served."""
    monkeypatch.setattr(runs, "RUN_SPAN_MAX", 1)
    lab = Lab()
    queue = lab.queue(key_limit=0, fair=True)
    publish(lab, queue, "a1 b1")
    for run in queue.index.runs:
        queue.index.reader.forget(run)
    lab.publish_messages(queue, [keyed("c", f"c{n}") for n in range(1, 9)])
    peer = Peer(lab, queue, window=2)
    for n in range(6):
        peer.ack(peer.seqs[n])
    assert {"a1", "b1"} < set(received_text(peer).split())


def test_a_fair_queue_keeps_the_order_of_keys_their_limits_and_priorities(lab: Lab) -> None:
    queue = lab.queue(fair=True)
    publish(lab, queue, "a1 a2 b1 -1 -2 a3")
    peer = Peer(lab, queue)
    assert received_text(peer) == "a1 b1 -1 -2"
    peer.nack(1, delay_ms=1000)
    assert received_text(peer) == "a1 b1 -1 -2"
    lab.pass_time(1000)
    peer.ack(1)
    assert received_text(peer) == "a1 b1 -1 -2 a1 a2"
    lab.queue(key_limit=2)
    lab.publish_messages(queue, [ranked(word, 9) for word in ["c9", "b9", "b8", "c8"]])
    assert received_text(peer).endswith("a1 a2 a3 c9 b9 c8"), "b has two in flight"


def test_expiry_purge_and_undo_work_in_a_fair_queue(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, fair=True, undo=3600)
    lab.publish_messages(queue, [keyed("a", "a1", ttl_ms=1000), keyed("a", "a2", delay_ms=2000), keyed("b", "b1")])
    lab.pass_time(1500)
    publish(lab, queue, "a3 b2")
    assert lab.pop(queue) is not None, "a3"
    peer = Peer(lab, queue)
    assert received_text(peer) == "b1 b2"
    lab.pass_time(1000)
    assert received_text(peer) == "b1 b2 a2"
    lab.answer(lambda done: queue.undo(UndoRequest(10), done), passing_ms=1000)
    assert received_text(peer) == "b1 b2 a2 a3"
    peer.ack(2, 3, 4, 5)
    publish(lab, queue, "a4")
    assert received_text(peer) == "b1 b2 a2 a3 a4"


def test_every_nth_delivery_ignores_priority(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, fair=True, oldest_every=3)
    publish(lab, queue, "a1 a2 b1")
    lab.publish_messages(queue, [ranked(word, 9) for word in ["a9", "a9", "a9", "b9"]])
    assert received_text(Peer(lab, queue)) == "a9 b9 a1 a9 a9 b1 a2"


def test_a_group_and_a_restart_have_their_own_keys(lab: Lab) -> None:
    queue = lab.queue(key_limit=0, fair=True, groups=["g"])
    publish(lab, queue, "a1 a2 b1")
    one, other = Peer(lab, queue, window=2), Peer(lab, queue, group="g", window=1)
    assert (received_text(one), received_text(other)) == ("a1 b1", "a1")
    lab.restart("kill")
    queue = lab.reopened(queue)
    one, other = Peer(lab, queue, window=2), Peer(lab, queue, group="g", window=1)
    assert (received_text(one), one.tries, received_text(other), other.tries) == ("a1 b1", [1, 1], "a1", [1])


def test_too_many_entries_stop_only_later_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ENTRIES_MAX", 3)
    lab = Lab()
    queue = lab.queue(key_limit=0, fair=True)
    publish(lab, queue, "a1 b1 a2 b2 c1")
    peer = Peer(lab, queue, window=1)
    for seq in (1, 2, 3, 4):
        peer.ack(seq)
    assert received_text(peer) == "a1 b1 a2 c1 b2" or sorted(received_text(peer).split()) == [
        "a1",
        "a2",
        "b1",
        "b2",
        "c1",
    ]


@pytest.mark.parametrize(("priority", "every"), [(4, 0), (1, 0), (7, 0), (7, 2)])
def test_messages_behind_settled_entries_are_delivered(
    monkeypatch: pytest.MonkeyPatch, priority: int, every: int
) -> None:
    """All entries were used up by messages that were settled before anybody received; then nothing was delivered."""
    monkeypatch.setattr(keys, "ENTRIES_MAX", 3)
    lab = Lab()
    queue = lab.queue(key_limit=0, fair=True, oldest_every=every)
    first = keyed("a", "a1") if priority == 4 else ranked("a1", priority)
    lab.publish_messages(queue, [first])
    publish(lab, queue, "b1 a2 b2 c1")
    for seq in (1, 2, 3):
        assert lab.answer(partial(queue.settle_by_id, seq)) == (None, True)
    assert [lease.delivery.message.body for lease in lab.lease(queue)] == [b"b2"]
    taken: list[Delivery] = []
    queue.subscribe(taken.extend, window=10, on_closed=lambda _: None)
    assert _turns(lab) < 20
    assert [delivery.message.body for delivery in taken] == [b"c1"]


def test_message_without_room_for_its_key_is_delivered_after_others_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else happens then: only the buckets of the other keys fill."""
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    lab = Lab()
    queue = lab.queue(key_limit=0, fair=True, key_rate=1)
    publish(lab, queue, "a1 b1 c1")
    peer = Peer(lab, queue, auto=True)
    lab.pass_time(1000)
    assert received_text(peer) == "a1 b1"
    lab.pass_time(3000)
    assert received_text(peer) == "a1 b1 c1"
    assert _turns(lab) < 20


def test_a_rate_that_ends_leaves_room_for_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of which nothing waited were kept for ever, because their buckets were not full when the rate ended."""
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    lab = Lab()
    queue = lab.queue(key_limit=0, fair=True, key_rate=1)
    publish(lab, queue, "a1 b1")
    peer = Peer(lab, queue, auto=True)
    lab.pass_time(1000)
    assert received_text(peer) == "a1 b1"
    lab.answer(lambda done: lab.broker.declare(queue.name, {"key_rate": 0}, done))
    publish(lab, queue, "c1")
    assert received_text(peer) == "a1 b1 c1"


def test_messages_without_room_are_not_reread_for_key_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "ENTRIES_MAX", 1)
    lab = Lab()
    queue = lab.queue(fair=True, key_limit=0, key_rate=0.001)
    for number in range(10):
        lab.publish_messages(queue, [ranked(f"{number}1", number), message(b"x" * 60_000)])
    lab.restart()
    queue = lab.reopened(queue)
    lab.broker.shared.cache.bytes_max = 0
    queue.subscribe(lambda _: None, window=1, on_closed=lambda _: None)
    assert _turns(lab) < 1000


@pytest.mark.parametrize("fair", [True, False])
def test_many_messages_are_entered_over_several_turns(monkeypatch: pytest.MonkeyPatch, fair: bool) -> None:
    """All that were in memory were entered at once, which took half a second for 100,000."""
    monkeypatch.setattr(level, "STEPS_AT_ONCE", 5)
    lab = Lab()
    queue = lab.queue()
    publish(lab, queue, "a1 " + " ".join([f"a{number % 9 + 1} b{number % 9 + 1}" for number in range(50)]))
    lab.answer(lambda done: lab.broker.declare(queue.name, {"fair": fair}, done))
    consumer = queue.subscribe(lambda _: None, window=1, on_closed=lambda _: None)
    entered = [0]
    while lab.host.turn() or lab.host.work():
        cursor = queue.index.unnamed.level.cursor
        assert cursor <= entered[-1] + 7, "the first seq is 1, and what is delivered does not count"
        entered.append(cursor)
    assert entered[-1] == (102 if fair else 2)
    consumer.resize(10)
    lab.settle()
    assert len(consumer.unsettled) == 2 and queue.index.unnamed.level.cursor == 102


def _turns(lab: Lab) -> int:
    """Let everything happen that is to happen now; return in how many turns it did, at most 1000."""
    turns = 0
    while turns < 1000 and (lab.host.turn() or lab.host.work()):
        turns += 1
    return turns


# --- options


@pytest.mark.parametrize(
    "wrong",
    [{"key_limit": -1}, {"key_limit": 1.5}, {"key_rate": -1}, {"key_rate": 0.0001}, {"key_burst": -1}, {"fair": 1}],
)
def test_invalid_option_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        QueueOptions().merged(wrong, "default")


@pytest.mark.source
def test_priorities_without_room_for_keys_do_not_reread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "KEYS_MAX", 2)
    lab = Lab(cap=64 * MIB)
    queue = lab.queue(fair=True, key_limit=3)
    for number in range(20):
        head = b"x-key:k%d\n" % number
        lab.publish_messages(
            queue, [message(b"x" * 60_000, headers=head, level=1 + number % 10), message("fills a run")]
        )
    lab.restart()
    queue = lab.reopened(queue)
    lab.broker.shared.cache.bytes_max = 0
    taken: list[Delivery] = []
    consumer = queue.subscribe(taken.extend, window=100, on_closed=lambda _: None)
    for _ in range(40):
        steps = 0
        while lab.host.turn() or lab.host.work():
            steps += 1
            assert steps < 2000, "it turns for ever"
        consumer.ack(list(consumer.unsettled), lambda _error: None)
    assert sorted({each.message.seq for each in taken}) == list(range(1, 41))
