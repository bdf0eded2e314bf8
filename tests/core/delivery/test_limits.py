"""The options `in_flight`, `rate` and `burst`: how many deliveries a group has at once, and in any span of time."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.delivery.limits import SPARE_MAX, Limits
from curbstone.core.errors import BadRequest
from curbstone.core.options import QueueOptions
from curbstone.core.values import Outcome
from tests.core.test_model import History
from tests.kit.lab import Lab, Peer


def change(lab: Lab, queue: LocalQueue, **options: object) -> None:
    lab.answer(lambda done: lab.broker.declare(queue.name, options, done))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("in_flight", "burst") for value in (-1, 1_000_001, 1.5, True, "1", None)),
        *(("rate", value) for value in (-1, 1_000_000.5, True, "1", float("nan"), float("inf"), 0.0001, 1.0005)),
    ],
)
def test_invalid_limit_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"bad option {name}"):
        QueueOptions().merged({name: value}, "default")


# --- in_flight


@pytest.mark.parametrize("ending", ["ack", "nack", "reject", "close"])
def test_in_flight_limit_is_shared_by_all_consumers(lab: Lab, ending: str) -> None:
    queue = lab.queue(in_flight=3)
    peers = [Peer(lab, queue, window=10) for _ in range(2)]
    lab.publish(queue, *"abcdef")
    assert sum(len(peer.seqs) for peer in peers) == 3
    peer = next(peer for peer in peers if peer.seqs)
    count = len(peer.seqs) if ending == "close" else 1
    if ending == "close":
        peer.close()
    elif ending == "nack":
        peer.nack(peer.seqs[0], delay_ms=60_000)
    else:
        getattr(peer, ending)(peer.seqs[0])
    assert sum(len(peer.seqs) for peer in peers) == 3 + count
    assert queue.counts().wip == 3


@pytest.mark.parametrize("how", ["dead letters", "dead letters with no room", "read on", "settled by id", "lease"])
def test_in_flight_slot_is_freed_however_a_message_ends(lab: Lab, how: str) -> None:
    dead = lab.queue("dead", publish_paused=how == "dead letters with no room")
    queue = lab.queue(in_flight=1, dead_letter="dead", groups=["g"])
    group = "g" if how == "read on" else ""
    lab.publish(queue, "a", "b")
    (lease,) = lab.lease(queue, ms=3000, group=group)
    peer = Peer(lab, queue, window=10, group=group)
    assert peer.seqs == []
    if how == "read on":
        lab.answer(lambda done: queue.reading.ack_to("g", 1, done))
    elif how == "settled by id":
        lab.answer(lambda done: queue.settle_by_id(1, done, lease.owner))
    elif how == "lease":
        lab.pass_time(3000)
        assert peer.seqs == [1]
        return
    else:
        lab.answer(lambda done: queue.settle_leases([lease.token], Outcome.REJECT, done))
        assert dead.counts().rdy == (how == "dead letters")
    assert peer.seqs == [2]


def test_each_group_has_its_own_limit(lab: Lab) -> None:
    queue = lab.queue(in_flight=2, groups=["g"])
    lab.publish(queue, *"abc")
    assert [Peer(lab, queue, group=group).seqs for group in ("", "g")] == [[1, 2], [1, 2]]


def test_lease_is_bounded_by_the_in_flight_limit(lab: Lab) -> None:
    queue = lab.queue(in_flight=2)
    lab.publish(queue, *"abc")
    held = lab.lease(queue, 5)
    assert len(held) == 2 and lab.lease(queue, 5) == [] and lab.pop(queue) is None
    answers: list[object] = []
    queue.lease(1, 5000, lambda found: answers.append(found), wait_ms=10_000)
    lab.settle()
    assert answers == []
    lab.answer(lambda done: queue.settle_leases([held[0].token], Outcome.ACK, done))
    (found,) = answers
    assert [lease.delivery.message.body for lease in found] == [b"c"]  # type: ignore[attr-defined]


def test_changed_limit_applies_from_then_on(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *"abcdef")
    peer = Peer(lab, queue, window=3)
    change(lab, queue, in_flight=2)
    peer.ack(1)
    assert peer.seqs == [1, 2, 3], "two are out"
    change(lab, queue, in_flight=3)
    assert peer.seqs == [1, 2, 3, 4]
    change(lab, queue, in_flight=0)
    peer.ack(2, 3, 4)
    assert peer.seqs == [1, 2, 3, 4, 5, 6]


# --- rate


def test_rate_delivers_a_burst_and_then_at_intervals(lab: Lab) -> None:
    queue = lab.queue(rate=2, burst=3)
    lab.pass_time(60_000)
    peer = Peer(lab, queue)
    lab.publish(queue, *"abcdefg")
    assert len(peer.seqs) == 3
    lab.pass_time(499)
    assert len(peer.seqs) == 3
    lab.pass_time(1)
    assert len(peer.seqs) == 4
    lab.pass_time(1000)
    assert len(peer.seqs) == 6
    change(lab, queue, rate=0)
    assert len(peer.seqs) == 7


def test_restart_begins_with_an_empty_bucket(lab: Lab) -> None:
    queue = lab.queue(rate=0.1, burst=2)
    lab.publish(queue, *"abcdef")
    lab.pass_time(20_000)
    assert len(Peer(lab, queue).seqs) == 2
    lab.restart("kill", after_ms=0)
    queue = lab.reopened(queue)
    peer = Peer(lab, queue)
    assert peer.seqs == []
    lab.pass_time(10_000)
    assert peer.seqs == [1]


def test_undelivered_messages_do_not_consume_the_rate(lab: Lab) -> None:
    queue = lab.queue(rate=0.001, burst=1)
    lab.pass_time(1_000_000)
    lab.publish(queue, "a")
    leases = lab.lease(queue)
    queue.give_back(leases)
    lab.settle()
    assert len(lab.lease(queue)) == 1


def test_rate_limited_pull_returns_nothing_or_waits(lab: Lab) -> None:
    queue = lab.queue(rate=1)
    lab.publish(queue, "a", "b")
    assert lab.pop(queue) is None
    answers: list[object] = []
    queue.pop(answers.append, wait_ms=5000)
    lab.pass_time(1000)
    assert len(answers) == 1 and answers[0] is not None


@pytest.mark.parametrize("seed", range(20))
def test_deliveries_in_any_interval_stay_within_burst_and_rate(seed: int) -> None:
    dice = Random(seed)
    lab = Lab(seed=seed)
    rate, burst = dice.choice([0.3, 1, 7, 50, 999.999]), dice.choice([1, 3, 20])
    queue = lab.queue(rate=rate, burst=burst, in_flight=dice.choice([0, 5]))
    times: list[int] = []
    lab.publish(queue, *[str(number) for number in range(200)])
    peer, seen = Peer(lab, queue, window=30), 0
    for _ in range(40):
        lab.pass_time(dice.choice([1, 10, 300, 2000]))
        fresh, seen = peer.received[seen:], len(peer.received)
        times += [lab.host.now_ms()] * len(fresh)
        for delivery in fresh:
            (peer.ack if dice.random() < 0.7 else partial(peer.nack, delay_ms=0))(delivery.message.seq)
        if dice.random() < 0.1:
            lab.restart(dice.choice(["kill", "shutdown", "power"]), after_ms=0)
            queue = lab.reopened(queue)
            peer, seen = Peer(lab, queue, window=30), 0
    assert times, f"seed {seed}"
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            # All that one step has is noted at its end, and may have been spread over 2 s.
            assert last - first + 1 <= burst + rate * (times[last] - start + 2000) / 1000, f"seed {seed}"


@pytest.mark.parametrize("rate", [0.001, 0.7, 0.99])
def test_a_rate_is_reached_exactly_over_a_long_time(lab: Lab, rate: float) -> None:
    queue = lab.queue(rate=rate, burst=1)
    lab.publish(queue, *[str(number) for number in range(1000)])
    peer = Peer(lab, queue)
    lab.pass_time(1_000_000)
    assert len(peer.seqs) == int(rate * 1000)


def test_a_rate_near_one_in_a_millisecond_is_reached_with_a_burst_of_one(lab: Lab) -> None:
    queue = lab.queue(rate=600, burst=1)
    lab.publish(queue, *[str(number) for number in range(1000)])
    peer = Peer(lab, queue)
    lab.pass_time(1000)
    assert len(peer.seqs) == 600


def test_buckets_of_removed_groups_are_freed(lab: Lab) -> None:
    queue = lab.queue(rate=2, burst=1)
    for number in range(20 * SPARE_MAX):
        lab.publish(queue, *["a"] * 3, groups=(f"g{number}",))
        lab.pass_time(2000)
        peer = Peer(lab, queue, group=f"g{number}")
        lab.pass_time(2000)
        assert len(peer.seqs) == 3
        peer.ack(*peer.seqs)
        peer.close()
    buckets = queue.parts.limits._buckets
    assert buckets is not None and len(buckets) <= 2 * SPARE_MAX


@pytest.mark.source
def test_model_detects_one_too_many_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Limits.allowed

    def one_more(self: Limits, group: str, in_flight: int, most: int) -> int:
        return original(self, group, max(in_flight - 1, 0), most)

    monkeypatch.setattr(Limits, "allowed", one_more)
    with pytest.raises(AssertionError):
        for seed in range(40):
            History(seed).run(150)
