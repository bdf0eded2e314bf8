"""Declared groups that keep a position: where they begin, cumulative acks, and what they lose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.meta import Meta
from curbstone.core.errors import (
    BadRequest,
    Conflict,
    CurbstoneError,
    NoSuchGroup,
    OtherReader,
    QueueFull,
    StaleDelivery,
)
from curbstone.core.options import MIB
from curbstone.core.positions import EARLIEST, LATEST, GroupInfo, Since, Start
from tests.kit.lab import Lab, Peer, message, numbered

HOWS = pytest.mark.parametrize("how", ["shutdown", "kill", "power"])


def declare(
    lab: Lab, queue: LocalQueue, name: str = "g", start: Start = EARLIEST, skips: bool | None = None
) -> GroupInfo:
    return informed(lab, lambda done: queue.reading.declare(name, start, skips, done))


def ack_to(lab: Lab, queue: LocalQueue, seq: int, name: str = "g") -> GroupInfo:
    return informed(lab, lambda done: queue.reading.ack_to(name, seq, done))


def informed(lab: Lab, call: Callable[[Callable[..., None]], object]) -> GroupInfo:
    error, info = lab.answer(call)
    if isinstance(error, CurbstoneError):
        raise error
    assert isinstance(info, GroupInfo)
    return info


def informed_later(lab: Lab, call: Callable[[Callable[..., None]], object]) -> GroupInfo:
    """The same, where the cleaner takes its time."""
    error, info = lab.answer(call, passing_ms=1000)
    if isinstance(error, CurbstoneError):
        raise error
    assert isinstance(info, GroupInfo)
    return info


def seen(queue: LocalQueue, name: str = "g") -> list[int]:
    """Return what is pending in a group, from the index itself."""
    return [run.first + i for run in queue.index.runs for i in range(20_000) if run.pending(name) >> i & 1]


def mixed(lab: Lab) -> LocalQueue:
    """Live are 3 (delayed anew), 5 (delayed), 6, 8 and 9; 7 names a group, and 4 and 10 are gone."""
    queue = lab.queue()
    lab.publish(queue, *numbered(4))
    lab.publish(queue, "5", delay_ms=60_000)
    lab.publish(queue, "6")
    lab.publish(queue, "7", groups=("other",))
    lab.publish(queue, "8", "9")
    lab.publish(queue, "10", ttl_ms=5)
    peer = Peer(lab, queue, window=4)
    peer.ack(1, 2, 4)
    peer.nack(3, delay_ms=30_000)
    peer.close()
    lab.pass_time(10)
    return queue


@HOWS
def test_group_from_the_earliest_position_sees_live_messages(lab: Lab, how: str) -> None:
    queue = mixed(lab)
    assert declare(lab, queue) == GroupInfo("g", queue.uid, 3, 11, 0, "hold", 0, 5)
    assert seen(queue) == [3, 5, 6, 8, 9]
    lab.publish(queue, "11")
    for _ in range(2):
        lab.restart(how)
        queue = lab.reopened(queue)
        assert seen(queue) == [3, 5, 6, 8, 9, 11]
        assert queue.options.groups == ("g",)
        assert Peer(lab, queue, group="g").seqs == [3, 5, 6, 8, 9, 11]


@HOWS
@pytest.mark.parametrize(("start", "found"), [(LATEST, []), (6, [6, 8, 9]), (1, [3, 5, 6, 8, 9]), (11, [])])
def test_group_can_start_at_any_position(lab: Lab, start: Start, found: list[int], how: str) -> None:
    queue = mixed(lab)
    declare(lab, queue, start=start)
    assert seen(queue) == found
    lab.publish(queue, "11")
    lab.restart(how)
    assert seen(lab.reopened(queue)) == [*found, 11]


def test_group_can_start_at_a_time() -> None:
    lab = Lab(cap=16 * MIB)
    queue = lab.queue()
    times = []
    for number in range(5):
        times.append(lab.host.wall_ms())
        lab.publish(queue, *numbered(3 if number % 2 else 4000))
        lab.pass_time(1000)
    firsts = [1, 4001, 4004, 8004, 8007]
    for number, (first, time_ms) in enumerate(zip(firsts, times, strict=True)):
        assert declare(lab, queue, f"at{number}", Since(time_ms)).position == first
        assert declare(lab, queue, f"after{number}", Since(time_ms + 1)).position == [*firsts, 12007][number + 1]
    lab.restart()
    queue = lab.reopened(queue)
    assert declare(lab, queue, "again", Since(times[3])).position == 8004
    assert queue.reading.position("at2") == 4004


def test_start_beyond_the_end_is_refused(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "m")
    with pytest.raises(BadRequest, match="next message is 2"):
        declare(lab, queue, start=3)
    assert queue.options.groups == ()


def test_declaring_again_changes_only_the_overflow_option(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(5))
    declare(lab, queue)
    ack_to(lab, queue, 3)
    assert declare(lab, queue, start=LATEST).position == 4
    assert declare(lab, queue).on_full == "hold"
    assert declare(lab, queue, skips=True).on_full == "skip"
    assert declare(lab, queue).on_full == "skip"
    lab.restart()
    queue = lab.reopened(queue)
    assert queue.reading.info("g")[2:8] == (4, 6, 0, "skip", 0, 2)
    assert declare(lab, queue, skips=False).on_full == "hold"


@HOWS
def test_redeclared_group_starts_anew(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, *numbered(6))
    declare(lab, queue, skips=True)
    peer = Peer(lab, queue, group="g")
    peer.nack(6)
    peer.ack(6)
    ack_to(lab, queue, 2)
    lab.queue(groups=[])
    assert seen(queue) == [] and not peer.consumer.unsettled
    Peer(lab, queue, window=1).ack(1)
    assert declare(lab, queue) == GroupInfo("g", queue.uid, 2, 7, 0, "hold", 0, 5)
    assert peer.seqs[-5:] == [2, 3, 4, 5, 6]
    peer.ack(3)
    lab.restart(how)
    queue = lab.reopened(queue)
    assert seen(queue) == [2, 4, 5, 6]
    assert Peer(lab, queue, group="g").seqs == [2, 4, 5, 6]


@HOWS
def test_messages_settled_before_a_declaration_stay_settled(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, "1", "2", "3", groups=("g",))
    lab.publish(queue, "4")
    Peer(lab, queue, group="g").ack(2)
    declare(lab, queue)
    assert seen(queue) == [1, 3, 4]
    lab.restart(how)
    assert seen(lab.reopened(queue)) == [1, 3, 4]


def test_messages_in_flight_at_a_declaration_are_not_delivered_twice(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1")
    lab.publish(queue, "2", "3", groups=("g",))
    peer = Peer(lab, queue, group="g", window=10)
    assert peer.seqs == [2, 3]
    peer.nack(2)
    declare(lab, queue)
    assert peer.seqs == [2, 3, 2, 1]
    peer.nack(3)
    assert peer.seqs == [2, 3, 2, 1, 3]
    assert queue.counts("g")[:2] == (0, 3)


@HOWS
def test_a_cumulative_ack_settles_all_below_and_survives(lab: Lab, queue: LocalQueue, how: str) -> None:
    lab.publish(queue, *numbered(10))
    declare(lab, queue)
    assert ack_to(lab, queue, 4)[2:8] == (5, 11, 0, "hold", 0, 6)
    assert ack_to(lab, queue, 2).position == 5
    assert ack_to(lab, queue, 10)[2:8] == (11, 11, 0, "hold", 0, 0)
    assert ack_to(lab, queue, 10).position == 11
    lab.restart(how)
    queue = lab.reopened(queue)
    assert queue.reading.info("g")[2:8] == (11, 11, 0, "hold", 0, 0)
    assert lab.pop_all(queue) == numbered(10)


@HOWS
def test_outdated_reader_position_is_reported_after_restarts_and_drops(
    lab: Lab,
    how: str,
) -> None:
    """The ids of readers were all that was known of acks, in memory: after a restart an old position passed."""
    queue = lab.queue(cap=256 * 1024)
    declare(lab, queue)
    lab.publish(queue, *numbered(30))
    ack_to(lab, queue, 20)
    noted = queue.log.active.number
    for _ in range(2):
        lab.restart(how)
        queue = lab.reopened(queue)
        with pytest.raises(OtherReader) as caught:
            informed(lab, partial(queue.reading.ack_to, "g", 19, reader="old"))
        assert caught.value.members == {"other_reader": True, "acked": 20}
        while queue.log.segments[0].number <= noted:
            lab.publish(queue, "x" * 10_000)
            lab.purge(queue)
    informed(lab, partial(queue.reading.ack_to, "g", 20, reader="new"))
    lab.queue(groups=[])
    declare(lab, queue)
    informed(lab, partial(queue.reading.ack_to, "g", 1, reader="first"))


def test_ack_beyond_the_end_is_refused(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "m")
    declare(lab, queue)
    with pytest.raises(BadRequest, match="next message is 2"):
        ack_to(lab, queue, 2)
    with pytest.raises(NoSuchGroup):
        ack_to(lab, queue, 1, "other")
    with pytest.raises(Conflict):
        queue.reading.check_epoch("000000000000")
    assert queue.reading.position("g") == 1


def test_a_cumulative_ack_makes_deliveries_and_leases_stale(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(6))
    declare(lab, queue)
    peer = Peer(lab, queue, group="g", window=2)
    other = Peer(lab, queue, window=2)
    leases = lab.lease(queue, group="g")
    ack_to(lab, queue, 4)
    assert peer.seqs == [1, 2, 5, 6] and other.seqs == [1, 2]
    with pytest.raises(StaleDelivery):
        peer.consumer.ack([1])
    assert lab.extend(queue, [leases[0].token], 1000) == [leases[0].token]
    peer.ack(5, 6)
    assert queue.counts("g")[:3] == (0, 0, 0)
    assert queue.reading.info("g").pending == 0


def test_acks_of_a_group_free_the_log() -> None:
    lab = Lab(cap=128 * 1024)
    queue = lab.queue()
    declare(lab, queue)
    with pytest.raises(QueueFull):
        while True:
            lab.publish(queue, *numbered(10, 500))
            lab.pop_all(queue)
    held = queue.reading.info("g")
    assert held.position == 1 and held.lost == 0
    ack_to(lab, queue, held.next - 1)
    count = 0
    with pytest.raises(QueueFull):
        while True:
            count += len(lab.publish(queue, *numbered(10, 500)))
            lab.pop_all(queue)
    assert count >= held.next // 2


@HOWS
def test_skipping_group_loses_only_the_oldest_needed(how: str) -> None:
    lab = Lab(cap=256 * 1024)
    queue = lab.queue()
    declare(lab, queue, skips=True)
    declare(lab, queue, "late", skips=True)
    position = 1
    for turn in range(100):
        lab.publish(queue, *numbered(10, 500))
        lab.pop_all(queue)
        if turn == 50:
            ack_to(lab, queue, queue.reading.next - 20, "late")
        info = queue.reading.info("g")
        assert position <= info.position == max(info.floor, 1)
        assert info.lost == info.position - 1
        assert info.pending == info.next - info.position
        position = info.position
    assert position > 400
    assert info.pending * 550 > 256 * 1024 // 2, "much more was given up than a segment"
    late = queue.reading.info("late")
    assert 0 < late.lost < info.lost
    lab.restart(how)
    queue = lab.reopened(queue)
    assert queue.reading.info("g") == info
    assert queue.reading.info("late") == late
    assert lab.held(queue) <= queue.options.cap


@pytest.mark.parametrize("how", ["kill", "power"])
def test_skipped_messages_are_no_gap_after_a_crash(lab: Lab, queue: LocalQueue, how: str) -> None:
    """Settles waited for room while their messages were cleaned away: some returned, and others between did not."""
    declare(lab, queue, skips=True)
    lab.publish(queue, *numbered(20))
    lost = queue.index.clear_below(queue.index.group("g"), 11)
    queue.facts.lose("g", lost, 11)
    lab.publish(queue, "the note is in this commit")
    before = queue.reading.info("g")
    assert (before.lost, before.floor, seen(queue)) == (10, 11, list(range(11, 22)))
    lab.restart(how)
    queue = lab.reopened(queue)
    assert seen(queue) == list(range(11, 22))
    assert queue.reading.info("g") == before


def test_skipping_group_makes_room_for_a_large_list() -> None:
    lab = Lab(cap=512 * 1024)
    queue = lab.queue()
    declare(lab, queue, skips=True)
    for _ in range(5):
        ((error, _, _),) = lab.publish_answers(queue, [message(b"x" * 255) for _ in range(500)], atomic=True)
        assert error is None
        lab.pop_all(queue)
    info = queue.reading.info("g")
    assert info.lost == info.position - 1 == 2000


def test_messages_pending_in_other_groups_are_not_skipped() -> None:
    lab = Lab(cap=128 * 1024)
    queue = lab.queue()
    declare(lab, queue, skips=True)
    with pytest.raises(QueueFull):
        while True:
            lab.publish(queue, *numbered(10, 500))
    assert queue.reading.info("g").lost == 0


@HOWS
def test_purge_counts_as_a_loss(lab: Lab, queue: LocalQueue, how: str) -> None:
    declare(lab, queue)
    lab.publish(queue, *numbered(5))
    ack_to(lab, queue, 2)
    lab.purge(queue)
    lab.publish(queue, "6")
    assert queue.reading.info("g")[2:8] == (6, 7, 3, "hold", 6, 1)
    for _ in range(20):
        lab.restart(how)
        queue = lab.reopened(queue)
        lab.purge(queue)
        lab.publish(queue, "m")
    assert queue.reading.info("g").lost == 23


@HOWS
def test_redeclared_group_has_no_losses(lab: Lab, queue: LocalQueue, how: str) -> None:
    declare(lab, queue)
    lab.publish(queue, *numbered(5))
    lab.purge(queue)
    assert queue.reading.info("g").lost == 5
    lab.queue(groups=[])
    assert (declare(lab, queue, start=LATEST).lost, queue.reading.info("g").floor) == (0, 0)
    lab.restart(how)
    queue = lab.reopened(queue)
    assert (queue.reading.info("g").lost, queue.reading.info("g").floor) == (0, 0)
    lab.publish(queue, "6")
    lab.purge(queue)
    assert queue.reading.info("g").lost == 1


def test_options_and_groups_stay_consistent(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "1")
    declare(lab, queue, skips=True)
    lab.queue(groups=["g", "h"])
    assert [queue.reading.info(name)[:3] for name in ("g", "h")] == [("g", queue.uid, 1), ("h", queue.uid, 2)]
    assert queue.reading.info("g").on_full == "skip" and queue.reading.info("h").on_full == "hold"
    lab.queue(groups=["h"])
    assert queue.reading.names() == ["h"]
    with pytest.raises(NoSuchGroup):
        queue.reading.info("g")
    lab.queue(groups=["g", "h"])
    assert queue.reading.info("g")[2:8] == (2, 2, 0, "hold", 0, 0)


def test_groups_are_limited() -> None:
    lab = Lab(cap=4 * 1024 * 1024)
    queue = lab.queue(groups=[f"g{number}" for number in range(32)])
    with pytest.raises(BadRequest, match="more than 32 groups"):
        declare(lab, queue)


def test_full_queue_refuses_a_new_group_and_can_be_emptied() -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue()
    with pytest.raises(QueueFull):
        while True:
            lab.publish(queue, *numbered(10, 50))
    count = queue.reading.next - 1
    with pytest.raises(QueueFull, match="no room for one more group"):
        informed_later(lab, lambda done: queue.reading.declare("g", EARLIEST, None, done))
    assert queue.reading.names() == []
    declare(lab, queue, start=LATEST)
    assert len(lab.pop_all(queue)) == count
    declare(lab, queue, "h")


def test_cleaner_makes_room_for_a_group() -> None:
    lab = Lab(cap=64 * 1024)
    queue = lab.queue()
    peer = Peer(lab, queue, window=10_000)
    with pytest.raises(QueueFull):
        while True:
            lab.publish(queue, *numbered(10, 50))
    peer.ack(*[seq for seq in list(peer.consumer.unsettled) if seq % 3])
    count = len(peer.consumer.unsettled)
    info = informed_later(lab, lambda done: queue.reading.declare("g", EARLIEST, None, done))
    assert info.pending == count
    lab.restart("kill")
    assert lab.reopened(queue).reading.info("g").pending == count


def test_failed_declaration_is_not_confirmed_and_can_be_retried(lab: Lab) -> None:
    queue = mixed(lab)
    lab.disk.eio_chance = 1
    with pytest.raises(CurbstoneError):
        declare(lab, queue)
    lab.disk.eio_chance = 0
    lab.pass_time(3000)
    declare(lab, queue)
    lab.restart("power")
    assert seen(lab.reopened(queue)) == [3, 5, 6, 8, 9]


def test_crash_during_a_declaration_leaves_all_or_nothing() -> None:
    for ops in range(0, 14):
        lab = Lab(seed=ops)
        queue = mixed(lab)
        answers: list[Any] = []
        queue.reading.declare("g", EARLIEST, None, partial(_keep, answers))
        for _ in range(ops):
            lab.host.turn()
            lab.host.work()
        lab.restart("power")
        queue = lab.reopened(queue)
        assert bool(queue.options.groups) >= bool(answers)
        assert seen(queue) == ([3, 5, 6, 8, 9] if queue.options.groups else [])


def _keep(answers: list[Any], *given: Any) -> None:
    answers.append(given)


def test_groups_of_an_earlier_meta_format_hold(lab: Lab) -> None:
    meta = lab.queue(groups=["a"]).meta
    assert b"since" not in meta.encode() and b"skips" not in meta.encode()
    again = Meta.decode(meta.encode(), "meta", lab.defaults)
    assert again == meta and again.skips == frozenset()
    assert lab.named("q").reading.info("a").on_full == "hold"
