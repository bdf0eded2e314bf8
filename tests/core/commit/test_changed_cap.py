"""A cap that changes: raised, lowered, or smaller than what a start finds."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import Conflict, QueueFull, Unavailable
from curbstone.core.options import QueueOptions
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.simulated import Crash

KIB = 1024
SMALL, LARGE = 64 * KIB, 256 * KIB
Change = dict[str, object]


def fill(lab: Lab, queue: LocalQueue, size: int = 1000) -> int:
    """Publish until the queue is full; return how many messages fit."""
    count = 0
    while lab.publish_answers(queue, [message(b"%d:" % count + b"x" * size)])[0][0] is None:
        count += 1
    return count


def shrunk(how: str = "kill") -> tuple[Lab, LocalQueue, int]:
    """Return a queue that was filled under a large default cap, after a restart with a small one."""
    lab = Lab(cap=LARGE, max_message_size=SMALL // 4)
    queue = lab.queue()
    lab.queue("other")
    count = fill(lab, queue)
    lab.defaults = QueueOptions(cap=SMALL, max_message_size=SMALL // 4)
    lab.disk.caps = lambda _directory: LARGE
    lab.restart(how)
    return lab, lab.reopened(queue), count


# --- raised


@pytest.mark.parametrize("how", ["kill", "power"])
def test_raised_cap_applies_when_durable(how: str) -> None:
    """The log grew at once; a crash left more than the old cap, which `meta` still named, and nothing went any more."""
    for crash_in in range(30):
        lab = Lab(seed=crash_in, cap=SMALL, max_message_size=SMALL // 4)
        queue = lab.queue()
        lab.disk.caps = lambda _directory: None
        fill(lab, queue)
        raised: list[Any] = []
        lab.broker.declare(queue.name, {"cap": LARGE}, raised.append)
        queue.publish([message(b"x" * 1000) for _ in range(100)], lambda *_: None)
        lab.disk.crash_in = crash_in
        try:
            while lab.host.turn() or lab.host.work():
                if not raised:
                    assert lab.held(queue) <= SMALL
        except Crash:
            pass
        lab.disk.crash_in = -1
        lab.restart(how)
        queue = lab.reopened(queue)
        assert lab.held(queue) <= queue.options.cap
        assert raised != [None] or queue.options.cap == LARGE
        assert lab.pop(queue) is not None


def test_raised_cap_makes_room_once_confirmed() -> None:
    lab = Lab(cap=SMALL, max_message_size=SMALL // 4)
    queue = lab.queue()
    before = fill(lab, queue)
    assert lab.answer(partial(lab.broker.declare, queue.name, {"cap": LARGE})) == (None,)
    assert fill(lab, queue) > 2 * before


def test_cap_that_failed_to_store_does_not_apply_and_can_be_retried() -> None:
    """The second call found nothing to change, and confirmed what was not on disk."""
    lab = Lab(cap=SMALL, max_message_size=SMALL // 4)
    queue = lab.queue()
    fill(lab, queue)
    lab.disk.eio_chance = 1.0
    (refused,) = lab.answer(partial(lab.broker.declare, queue.name, {"cap": LARGE}))
    assert isinstance(refused, Unavailable)
    lab.disk.eio_chance = 0.0
    assert fill(lab, queue) == 0
    assert lab.answer(partial(lab.broker.declare, queue.name, {"cap": LARGE})) == (None,)
    assert fill(lab, queue) > 0
    lab.restart("power")
    assert lab.reopened(queue).options.cap == LARGE


# --- lowered


def test_cap_can_be_lowered_to_what_the_queue_needs() -> None:
    lab = Lab(cap=LARGE, max_message_size=SMALL // 4)
    queue = lab.queue()
    lab.publish(queue, *numbered(60, 1000))
    caps = [cap for cap in range(SMALL, LARGE, 4 * KIB) if is_lowered(lab, queue, {"cap": cap, "lease": cap / 1000})]
    assert caps and min(caps) > 60_000
    peer = Peer(lab, queue)
    peer.nack(*peer.seqs)
    peer.ack(*set(peer.seqs))  # the simulated disk compares each write with the cap
    assert lab.held(queue) <= min(caps)


@pytest.mark.parametrize("size", [300, 500, 800])
@pytest.mark.parametrize("more", [10, 60, 100])
def test_cap_is_not_lowered_below_a_running_commit(size: int, more: int) -> None:
    """What it added to the reserve was not counted: the queue held more than its cap when that was confirmed."""
    lab = Lab(cap=LARGE, max_message_size=SMALL // 4)
    queue = lab.queue()
    for _ in range(6):
        lab.publish(queue, *numbered(20, size))
    queue.publish([message(body) for body in numbered(more, 40)], lambda *_: None)
    lab.host.turn()
    assert queue.writer.is_busy
    answers: list[tuple[Any, ...]] = []
    for cap in range(SMALL, LARGE, 256):
        try:
            lab.broker.declare(queue.name, {"cap": cap}, lambda *given: answers.append(given))
            break
        except Conflict:
            pass
    lab.settle()  # it compares all that the directory holds with the cap
    assert answers == [(None,)]


@pytest.mark.parametrize("how", ["kill", "power"])
def test_cap_is_not_lowered_below_what_a_crash_may_restore(how: str) -> None:
    """A commit that failed was found after a crash, and cleaning it took more than the smaller cap."""
    lab = Lab(cap=96 * KIB, max_message_size=SMALL // 4)
    queue = lab.queue()
    lab.publish(queue, *numbered(8, 1000))
    lab.disk.eio_chance = 1.0
    ((error, _, _),) = lab.publish_answers(queue, [message(b"x" * 1500) for _ in range(20)], atomic=True)
    assert isinstance(error, Unavailable)
    lab.disk.eio_chance = 0.0
    with pytest.raises(Conflict, match="cap"):
        lab.broker.declare(queue.name, {"cap": SMALL}, lambda _error: None)
    lab.pass_time(2000)  # it tries again by itself: what failed is no part of the log now
    assert lab.answer(partial(lab.broker.declare, queue.name, {"cap": SMALL})) == (None,)
    lab.restart(how)
    assert lab.pop_all(lab.reopened(queue)) == numbered(8, 1000)


def is_lowered(lab: Lab, queue: LocalQueue, changes: Change) -> bool:
    """Return whether a cap is accepted; if so raise it again."""
    try:
        answer = lab.answer(partial(lab.broker.declare, queue.name, changes))
    except Conflict:
        return False
    assert answer == (None,)
    fill(lab, queue)
    peer = Peer(lab, queue)
    peer.ack(*peer.seqs[60:])
    peer.close()
    assert lab.answer(partial(lab.broker.declare, queue.name, {"cap": LARGE})) == (None,)
    return True


# --- found too small


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_queue_above_its_cap_recovers_by_settling_and_cleaning(how: str) -> None:
    """Every commit failed in it, and those of other queues waited."""
    lab, queue, count = shrunk(how)
    held = lab.held(queue)
    assert held > SMALL and any("more than its cap of 65536" in reason for reason in lab.broker.health().reasons)
    with pytest.raises(QueueFull, match=r"queue default/q holds \d+ bytes, more than its cap of 65536 bytes"):
        lab.publish(queue, "new")
    lab.publish(lab.queue("other"), "another queue continues")
    peer = Peer(lab, queue, window=10)
    settled = 0
    while lab.held(queue) > SMALL:
        peer.ack(*list(peer.consumer.unsettled))
        settled += 1
        assert lab.held(queue) <= held + 8 * KIB, "it takes a little more to settle and to clean, and no more"
    assert 0 < settled * 10 < count
    while lab.publish_answers(queue, [message("new")])[0][0] is not None:
        peer.ack(*list(peer.consumer.unsettled))
    assert not any("more than its cap" in reason for reason in lab.broker.health().reasons)
    left = len(lab.bodies(queue))
    lab.disk.caps = lambda _directory: SMALL
    lab.restart(how)
    assert len(lab.bodies(lab.reopened(queue))) == left
    fill(lab, lab.reopened(queue))


def test_confirms_of_a_queue_above_its_cap_survive_a_crash() -> None:
    for seed in range(0, 10, 3):
        lab, queue, count = shrunk()
        lab.rng.seed(seed)
        left = set(range(count))
        for number in range(count // 2):
            body = lab.pop(queue)
            assert body is not None
            left.discard(int(body.partition(b":")[0]))
            if number % 40 == seed:
                lab.restart(("kill", "power")[seed % 2])
                queue = lab.reopened(queue)
                assert {int(body.partition(b":")[0]) for body in lab.bodies(queue)} == left


def test_a_purge_brings_a_queue_under_its_cap() -> None:
    lab, queue, count = shrunk()
    assert lab.purge(queue) == count
    lab.pass_time(1000)
    assert lab.held(queue) <= SMALL
    lab.publish(queue, "new")


def test_releases_and_deletions_continue_above_the_cap() -> None:
    lab, queue, _ = shrunk()
    peer = Peer(lab, queue, window=20)
    peer.nack(*peer.seqs[:10])
    peer.reject(*peer.seqs[10:20])
    assert lab.answer(partial(lab.broker.delete, queue.name)) == (True,)
