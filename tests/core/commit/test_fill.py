"""How full a queue gets before it refuses messages, and what it says of the room that is left."""

from __future__ import annotations

import errno
from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log import room
from curbstone.core.engine.log.commit import Commit, Segment
from curbstone.core.names import queue_name
from tests.core.commit.test_cap import fill, is_accepted
from tests.core.commit.test_faults import used
from tests.kit.lab import Lab, Peer, message

KIB = 1024
MIB = 1024 * KIB


def pending_share(queue: LocalQueue) -> float:
    """Return the part of the cap that pending messages take, as the log stores them."""
    return queue.index.runs.bytes_live / queue.options.cap


@pytest.mark.parametrize("cap", [MIB, 3 * MIB])
@pytest.mark.parametrize("parts", [0, 700, 250, 130, 100], ids=["1 kB", "a 700th", "a 250th", "a 130th", "a 100th"])
def test_pending_messages_take_nine_tenths_of_the_cap_before_one_is_refused(lab: Lab, cap: int, parts: int) -> None:
    queue = lab.queue(cap=cap)
    fill(lab, queue, cap // parts if parts else 1000)
    assert pending_share(queue) >= 0.9
    assert lab.held(queue) <= cap


def test_pending_messages_take_nine_tenths_again_after_settles_in_any_order() -> None:
    dice = Random(5)
    lab = Lab()
    queue = lab.queue(cap=MIB)
    peer = Peer(lab, queue, window=1_000_000)
    for _ in range(3):
        fill(lab, queue, 3000)
        assert pending_share(queue) >= 0.9
        held = list(peer.consumer.unsettled)
        peer.ack(*dice.sample(held, len(held) // 3))
    lab.restart("power")
    queue = lab.reopened(queue)
    fill(lab, queue, 3000)
    assert pending_share(queue) >= 0.9


def test_a_full_queue_has_few_files(lab: Lab) -> None:
    queue = lab.queue(cap=MIB)
    fill(lab, queue, MIB // 120)  # more than half a segment, so that each lies in one of its own
    assert len(lab.files(queue)) <= 130


@pytest.mark.parametrize(("cap", "size"), [(96 * KIB, 2155), (128 * KIB, 2048)])
def test_acks_fit_after_pairs_of_messages_were_copied_into_segments_of_their_own(lab: Lab, cap: int, size: int) -> None:
    """The headers of those segments had taken more than the room for acks, and then more than the cap."""
    queue = lab.queue(cap=cap)
    while not queue.stats.refused:
        lab.publish_answers(queue, [message(b"x" * size), message(b"y" * size)])
    queue.cleaner.erase()
    queue.wakeups.schedule()
    lab.settle()
    assert queue.log.room.left - queue.log.room.kept > -queue.log.room.slack_bytes
    peer = Peer(lab, queue)
    for seq in peer.seqs[::2]:
        peer.ack(seq)
    assert not queue.log.room.excess and lab.held(queue) <= cap


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_a_log_with_larger_segments_of_an_earlier_version_continues(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with monkeypatch.context() as earlier:
        for name, value in (("SEGMENTS_PER_CAP", 16), ("AMPLE", 1), ("SLACKS_PER_CAP", 64)):
            earlier.setattr(room, name, value)
        queue = lab.queue(cap=MIB)
        count = 0
        while is_accepted(lab, queue, 1000):
            count += 1
        assert pending_share(queue) < 0.9 and max(segment.end for segment in queue.log.segments) > 60 * KIB
        lab.restart(how)
    lab.restart(how)
    queue = lab.reopened(queue)
    assert queue.counts().rdy == count and queue.log.room.left >= queue.log.room.kept
    fill(lab, queue, 1000)
    assert pending_share(queue) >= 0.9 and max(segment.end for segment in queue.log.segments) < 17 * KIB
    assert len(lab.pop_all(queue)) > count


def test_reported_largest_message_is_accepted() -> None:
    for seed in range(12):
        dice = Random(seed)
        cap = dice.choice([256, 1024, 2048]) * KIB
        lab = Lab(seed=seed, max_message_size=cap)
        queue = lab.queue(cap=cap)
        size = dice.choice([50, 500, cap // 100, cap // 20])
        full = dice.choice([0.1, 0.5, 0.8, 1])
        while pending_share(queue) < full and is_accepted(lab, queue, size):
            pass
        for _ in range(dice.choice([0, 3, 30])):
            lab.pop(queue)
        most = queue.space().available
        assert not is_accepted(lab, queue, most + 1), f"seed {seed}: more than {most} bytes were taken"
        if (most := queue.space().available) and not is_accepted(lab, queue, most):
            most = queue.space().available  # it counted on cleaning, which brought back less; now it is exact
            assert not most or is_accepted(lab, queue, most), f"seed {seed}: {most} bytes were not taken"


def test_largest_message_is_zero_when_nothing_is_accepted(lab: Lab) -> None:
    queue = lab.queue(cap=MIB, max_message_size=1000)
    assert queue.space().available == 1000
    lab.queue(publish_paused=True)
    assert queue.space().available == 0
    lab.queue(publish_paused=False)
    lab.disk.capacity = used(lab)
    while is_accepted(lab, queue, 900):
        pass
    assert queue.space().available == 0


def test_queue_that_drops_its_oldest_accepts_more(lab: Lab) -> None:
    queue = lab.queue(cap=MIB, overflow="drop-oldest")
    for _ in range(2000):
        lab.publish(queue, b"x" * 1000)
    assert queue.stats.overflowed and not queue.stats.refused
    assert queue.space().available > 100_000


def test_reserved_bytes_are_a_small_part_of_the_cap(lab: Lab) -> None:
    queue = lab.queue(cap=10 * MIB)
    assert queue.space().reserved < 0.04 * 10 * MIB
    lab.publish(queue, *[b"x" * 1000] * 100)
    assert queue.space().reserved < 0.04 * 10 * MIB + 100 * 30


def test_messages_refused_for_room_are_counted(lab: Lab) -> None:
    queue = lab.queue(cap=64 * KIB)
    fill(lab, queue, 5000)
    assert queue.stats.refused == 1
    lab.publish_answers(queue, [message(b"x" * 5000) for _ in range(3)])
    lab.publish_answers(queue, [message(b"x" * 5000) for _ in range(2)], atomic=True)
    assert (queue.stats.refused, queue.space().refused_last_minute) == (6, 6)
    lab.pass_time(40_000)
    lab.publish_answers(queue, [message(b"x" * 5000)])
    lab.pass_time(30_000)
    assert (queue.stats.refused, queue.space().refused_last_minute) == (7, 1)


def test_messages_refused_for_other_reasons_are_not_counted(lab: Lab) -> None:
    queue = lab.queue(cap=64 * KIB, max_message_size=100, publish_paused=True)
    lab.publish_answers(queue, [message(b"x")])
    lab.queue(publish_paused=False)
    lab.publish_answers(queue, [message(b"x" * 200)])
    assert queue.stats.refused == 0


def test_queue_in_creation_reports_its_largest_message(lab: Lab) -> None:
    """GET /v2/stats was answered with 500 meanwhile."""
    queue = lab.broker.ensure(queue_name("new"))
    at_once = queue.space()
    lab.settle()
    assert at_once.available >= 0
    assert queue.space().available > 0


@pytest.mark.parametrize("seed", range(3))
def test_full_segments_that_were_not_truncated_keep_the_cap(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)
    lab = Lab(seed=seed)
    queue = lab.queue(cap=192 * KIB)
    peer = Peer(lab, queue, window=1_000_000)
    cut = Commit._cut

    def failing_cut(self: Commit, old: Segment) -> None:
        if not self._cut_first and rng.random() < 0.7:
            raise OSError(errno.EIO, "Input/output error")
        cut(self, old)

    monkeypatch.setattr(Commit, "_cut", failing_cut)
    for _ in range(20):
        while is_accepted(lab, queue, rng.choice([1000, 2000, 5000])):  # `Lab` itself sees whether the cap is exceeded
            pass
        assert queue.log.room.excess == 0
        held = list(peer.consumer.unsettled)
        peer.ack(*rng.sample(held, rng.randrange(1, len(held))))
