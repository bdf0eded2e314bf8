"""Redrive: dead letters go home in pieces that fit, and exactly those that moved are gone."""

from __future__ import annotations

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import BadRequest, CurbstoneError, NoSuchQueue, QueueFull, Unavailable
from curbstone.core.message import Message
from curbstone.core.names import parse_queue_name, queue_name
from curbstone.core.values import Redriven
from tests.core.commit.test_faults import FailingSyncs
from tests.kit.lab import Lab, Peer, numbered

NEVER_DIED = "it is no dead letter: its headers name no other queue as its origin"
KIB = 1024


def redrive(lab: Lab, dead: LocalQueue, to: str = "", limit: int = 10_000) -> tuple[CurbstoneError | None, Redriven]:
    target = queue_name(to) if to else None
    error, redriven = lab.answer(lambda done: dead.redrive(target, limit, done), passing_ms=60_000)
    assert isinstance(redriven, Redriven)
    return error, redriven


def died(lab: Lab, queue: LocalQueue, bodies: list[bytes]) -> LocalQueue:
    """Let messages of a queue die; return the queue of its dead letters."""
    for body in bodies:
        lab.publish(queue, body)
        peer = Peer(lab, queue, window=1)
        peer.reject(peer.seqs[0])
        peer.close()
    return lab.broker.get(parse_queue_name(queue.options.dead_letter))


def test_redrive_returns_dead_letters_without_dead_letter_headers(lab: Lab) -> None:
    queues = [lab.queue(name, dead_letter="dead") for name in ("a", "b")]
    for queue in queues:
        lab.publish_messages(queue, [Message(queue.name.queue.encode(), b"k:v\n")])
        Peer(lab, queue).reject(1)
    dead = lab.named("dead")
    assert lab.answer(lambda done: dead.redrive(None, 10, done)) == (None, Redriven(2, {}, False))
    for queue in queues:
        (found,) = lab.peek(queue)
        assert (found.message.body, found.message.headers) == (queue.name.queue.encode(), b"k:v\n")
    assert lab.bodies(dead) == []


def test_redrive_moves_up_to_the_limit_to_the_target_in_order(lab: Lab) -> None:
    dead, _ = lab.queue("dead"), lab.queue("there")
    lab.publish(dead, *numbered(250))
    assert lab.answer(lambda done: dead.redrive(queue_name("there"), 220, done)) == (None, Redriven(220, {}, True))
    assert lab.bodies("there") == numbered(250)[:220]
    assert lab.bodies(dead) == numbered(250)[220:]


def test_redrive_skips_messages_that_are_no_dead_letters(lab: Lab) -> None:
    queue, dead = lab.queue(dead_letter="dead"), lab.queue("dead")
    lab.publish(dead, "never died")
    lab.publish(queue, "died")
    Peer(lab, queue).reject(1)
    lab.publish(dead, "nor did this")
    assert lab.answer(lambda done: dead.redrive(None, 10, done)) == (None, Redriven(1, {NEVER_DIED: 2}, False))
    assert lab.bodies(dead) == [b"never died", b"nor did this"]
    assert [found.tries for found in lab.peek(dead)] == [0, 0]
    assert lab.bodies(queue) == [b"died"]


@pytest.mark.parametrize("to", ["", "a"])
@pytest.mark.parametrize("cap", [64 * KIB, 256 * KIB])
def test_dead_letters_above_half_a_small_cap_are_redriven(cap: int, to: str) -> None:
    """A hundred at once were 413 or 507, and then none ever moved."""
    lab = Lab(cap=cap)
    queue = lab.queue("a", dead_letter="dead", cap=cap)
    bodies = numbered(110, cap // 230)
    dead = died(lab, queue, bodies)
    assert sum(map(len, bodies)) > cap // 3 and dead.counts().rdy == 110
    assert redrive(lab, dead, to) == (None, Redriven(110, {}, False))
    assert (lab.bodies(queue), lab.bodies(dead)) == (bodies, [])
    lab.restart("power")
    assert (lab.bodies(lab.reopened(queue)), lab.bodies(lab.reopened(dead))) == (bodies, [])


@pytest.mark.parametrize("size", [50, 700, 5000])
def test_redrive_moves_what_fits_and_can_be_repeated(size: int) -> None:
    lab = Lab(cap=256 * KIB)
    queue = lab.queue("a", dead_letter="dead", cap=64 * KIB)
    bodies = numbered(100_000 // (size + 100), size)
    dead = died(lab, queue, bodies)
    lab.publish(queue, *[b"x" * 2000] * 8)
    moved: list[bytes] = []
    for _ in range(20):
        error, redriven = redrive(lab, dead, "a")
        here = [body for body in lab.bodies(queue) if body in bodies]
        assert moved + here + lab.bodies(dead) == bodies, "exactly what moved is gone"
        assert redriven.moved == len(here)
        assert error is None if here else isinstance(error, QueueFull)
        moved += here
        lab.pop_all(queue)
        if moved == bodies:
            break
    assert moved == bodies and queue.log.room.reserved == dead.log.room.reserved == 0


def test_redrive_skips_dead_letters_of_a_full_queue() -> None:
    lab = Lab(cap=256 * KIB)
    full, free = [lab.queue(name, dead_letter="dead", cap=64 * KIB) for name in "ab"]
    died(lab, full, [b"1", b"2"])
    dead = died(lab, free, [b"3"])
    for size in (4000, 400, 40, 4, 0):
        with pytest.raises(QueueFull):
            for _ in range(1000):
                lab.publish(full, b"x" * size)
    error, redriven = redrive(lab, dead)
    assert error is None and redriven.moved == 1 and sum(redriven.stayed.values()) == 2
    assert "default/a has too little room left under its cap" in next(iter(redriven.stayed))
    assert (lab.bodies(dead), lab.bodies(free)) == ([b"1", b"2"], [b"3"])
    assert [found.tries for found in lab.peek(dead)] == [0, 0]
    error, redriven = redrive(lab, dead)
    assert isinstance(error, QueueFull) and error.members == {"moved": 0}


def test_redrive_counts_dead_letters_without_a_usable_source(lab: Lab) -> None:
    gone, small = [lab.queue(name, dead_letter="dead") for name in ("gone", "small")]
    died(lab, gone, [b"1", b"2"])
    dead = died(lab, small, [b"long", b"4"])
    lab.answer(lambda done: lab.broker.delete(gone.name, done), passing_ms=100)
    lab.queue("small", max_message_size=2)
    stayed = {"no such queue: default/gone": 2, "larger than the max_message_size of queue default/small": 1}
    assert redrive(lab, dead) == (None, Redriven(1, stayed, False))
    assert lab.bodies(dead) == [b"1", b"2", b"long"] and lab.bodies(small) == [b"4"]
    assert {queue.name.queue for queue in lab.broker.queues()} == {"dead", "small"}
    with pytest.raises(NoSuchQueue, match="default/nowhere"):
        dead.redrive(queue_name("nowhere"), 1, lambda *_: None)
    with pytest.raises(BadRequest, match="in this queue already"):
        dead.redrive(dead.name, 1, lambda *_: None)


def test_redrive_limit_counts_moved_messages(lab: Lab) -> None:
    """Letters that can't move were counted, and with a limit nothing behind them was ever reached."""
    queue, dead = lab.queue("a", dead_letter="dead"), lab.queue("dead")
    lab.publish(dead, *numbered(150))
    died(lab, queue, [b"1", b"2"])
    assert redrive(lab, dead, limit=1) == (None, Redriven(1, {NEVER_DIED: 150}, True))
    assert lab.bodies(queue) == [b"1"]


def test_redrive_reports_progress_before_a_failure() -> None:
    bodies = numbered(130)
    reported: set[int] = set()
    for after in range(12):
        lab = Lab()
        queue = lab.queue("a", dead_letter="dead")
        dead = died(lab, queue, bodies)
        FailingSyncs(lab.disk, 10, after=after)
        error, redriven = redrive(lab, dead)
        if error is not None:
            assert isinstance(error, Unavailable) and error.members == {"moved": redriven.moved}
            reported.add(redriven.moved)
        lab.pass_time(5000)
        assert (lab.bodies(queue), lab.bodies(dead)) == (bodies[: redriven.moved], bodies[redriven.moved :])
    assert len(reported) > 1, "it never failed in the middle"


def one(lab: Lab, dead: LocalQueue, seq: int, to: str = "a") -> tuple[CurbstoneError | None, Redriven]:
    target = queue_name(to) if to else None
    error, redriven = lab.answer(lambda done: dead.redrive(target, 1, done, None, seq), passing_ms=60_000)
    assert isinstance(redriven, Redriven)
    return error, redriven


@pytest.mark.parametrize("taken", [0, 4])
@pytest.mark.parametrize("from_disk", [False, True])
def test_single_dead_letter_is_redriven_without_reordering_others(lab: Lab, taken: int, from_disk: bool) -> None:
    """Also from before the place that was reached, where others were given back."""
    queue, dead = lab.queue("a"), lab.queue("dead")
    lab.publish(dead, *numbered(6))
    if taken:
        peer = Peer(lab, dead, window=taken)
        assert len(peer.seqs) == taken
        peer.close()
    if from_disk:
        lab.restart("power")
        queue, dead = lab.reopened(queue), lab.reopened(dead)
    assert one(lab, dead, 3) == (None, Redriven(1, {}, False))
    assert lab.bodies(queue) == numbered(6)[2:3]
    left = [body for n, body in enumerate(numbered(6)) if n != 2]
    assert lab.bodies(dead) == left
    assert lab.pop_all(dead) == left
    lab.restart("power")
    assert (lab.bodies(lab.reopened(queue)), lab.bodies(lab.reopened(dead))) == (numbered(6)[2:3], [])


def test_single_dead_letter_that_cannot_move_keeps_its_place() -> None:
    lab = Lab(cap=256 * KIB)
    full, dead = lab.queue("a", cap=64 * KIB), lab.queue("dead")
    lab.publish(dead, *numbered(4, 3000))
    for size in (4000, 400, 40, 4, 0):
        with pytest.raises(QueueFull):
            for _ in range(1000):
                lab.publish(full, b"x" * size)
    error, redriven = one(lab, dead, 2)
    assert isinstance(error, QueueFull) and redriven.moved == 0
    assert [found.tries for found in lab.peek(dead)] == [0] * 4
    assert lab.pop_all(dead) == numbered(4, 3000)


def test_held_delayed_or_missing_dead_letter_is_not_redriven(lab: Lab) -> None:
    lab.queue("a")
    dead = lab.queue("dead")
    lab.publish(dead, *numbered(3))
    peer = Peer(lab, dead, window=2)
    assert one(lab, dead, 2) == (None, Redriven(0, {"it was delivered and is not settled": 1}, False))
    peer.consumer.nack([2], 60_000)
    assert one(lab, dead, 2) == (None, Redriven(0, {"it is delayed": 1}, False))
    peer.ack(1)
    for gone in (1, 9):
        assert one(lab, dead, gone) == (None, Redriven(0, {}, False))
    assert one(lab, dead, 3)[1].moved == 0, "it was delivered in place of the others"
    peer.close()
    assert one(lab, dead, 3) == (None, Redriven(1, {}, False))


@pytest.mark.parametrize("how", ["delete", "shutdown"])
def test_redrive_from_an_ending_queue_is_refused(lab: Lab, how: str) -> None:
    """It was read from the disk again and again, and the answer never came."""
    lab.queue("a")
    lab.publish(lab.queue("dead"), *numbered(3))
    lab.restart()
    dead = lab.named("dead")
    answers: list[tuple[CurbstoneError | None, Redriven]] = []
    dead.redrive(queue_name("a"), 1, lambda *given: answers.append(given), None, 2)
    lab.end(dead, how)
    ((error, redriven),) = answers
    assert isinstance(error, NoSuchQueue if how == "delete" else Unavailable)
    assert redriven == Redriven(0, {}, False)


def test_skipped_dead_letters_are_delivered_once(lab: Lab) -> None:
    """One take gave a letter as many times as it had stayed, and an ack of them all was refused."""
    dead = lab.queue("dead")
    lab.publish(dead, *numbered(3))
    Peer(lab, dead).close()
    for seq in (1, 1, 2, 1, 3, 2):
        assert one(lab, dead, seq, "") == (None, Redriven(0, {NEVER_DIED: 1}, False))
    assert dead.counts().rdy == 3
    for taken in (1, 3):
        peer = Peer(lab, dead, window=taken)
        assert peer.seqs == [1, 2, 3][:taken]
        peer.close()
    peer = Peer(lab, dead)
    assert peer.seqs == [1, 2, 3]
    peer.ack(1, 2, 3)
    assert lab.bodies(dead) == []
