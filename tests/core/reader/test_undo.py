"""Undo: what was acked, popped or purged returns with its id and its place, once, and stays across a crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import Conflict, CurbstoneError, QueueFull
from curbstone.core.options import MIB
from curbstone.core.values import Undone, UndoRequest
from tests.core.reader.test_damage import bad_sector, flipped_bit
from tests.kit.inode import Inode
from tests.kit.lab import Lab, Peer, message, numbered

KIB = 1024


def undo(
    lab: Lab, queue: LocalQueue, *, limit: int = 1000, within_ms: int = 0, seq: int = 0, group: str = ""
) -> tuple[CurbstoneError | None, Undone]:
    error, undone = lab.answer(lambda done: queue.undo(UndoRequest(limit, within_ms, seq, group), done))
    assert isinstance(undone, Undone)
    return error, undone


def back(lab: Lab, queue: LocalQueue, **wanted: int | str) -> int:
    """Undo, and return how many messages returned."""
    error, undone = undo(lab, queue, **wanted)  # type: ignore[arg-type]
    assert error is None
    return undone.restored


def purge_to_keep(lab: Lab, queue: LocalQueue) -> int:
    error, count = lab.answer(lambda done: queue.purge(done, keep=True))
    assert error is None
    return int(count)


def settle(lab: Lab, queue: LocalQueue, how: str) -> None:
    """Settle all that is in a queue."""
    if how == "popped":
        lab.pop_all(queue)
    elif how == "purged":
        purge_to_keep(lab, queue)
    elif how == "deleted by id":
        for found in lab.peek(queue):
            assert lab.answer(partial(queue.settle_by_id, found.message.seq)) == (None, True)
    else:
        peer = Peer(lab, queue, auto=how == "auto")
        if how == "acked":
            peer.ack(*peer.seqs)
        peer.close()


@pytest.mark.parametrize("end", ["", "shutdown", "kill", "power"])
@pytest.mark.parametrize("how", ["acked", "auto", "deleted by id", "popped", "purged"])
def test_undo_restores_settled_messages_in_place_untried(lab: Lab, queue: LocalQueue, how: str, end: str) -> None:
    seqs = lab.publish(queue, *numbered(5))
    settle(lab, queue, how)
    later = lab.publish(queue, "later")
    assert back(lab, queue) == 5
    if end:
        lab.restart(end)
        queue = lab.reopened(queue)
    assert [(found.message.seq, found.message.body, found.tries) for found in lab.peek(queue)] == [
        *[(seq, body, 0) for seq, body in zip(seqs, numbered(5), strict=True)],
        (later[0], b"later", 0),
    ]
    assert Peer(lab, queue).bodies == [*numbered(5), b"later"]


def test_restored_message_is_delivered_once_and_can_be_undone_again(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(3))
    settle(lab, queue, "acked")
    assert [back(lab, queue), back(lab, queue)] == [3, 0]
    peer = Peer(lab, queue)
    assert back(lab, queue) == 0, "what somebody holds is not settled"
    peer.ack(*peer.seqs)
    peer.close()
    assert [back(lab, queue), back(lab, queue)] == [3, 0]
    assert lab.pop_all(queue) == numbered(3)


def test_undo_by_count_time_or_id(lab: Lab, queue: LocalQueue) -> None:
    seqs = lab.publish(queue, *numbered(10))
    for _ in range(10):
        lab.pop(queue)
        lab.pass_time(1000)
    error, undone = undo(lab, queue, limit=3)
    assert (error, undone) == (None, Undone(3, 0, 0, more=True))
    assert lab.bodies(queue) == numbered(10)[7:]
    assert back(lab, queue, within_ms=5500) == 2
    assert back(lab, queue, seq=seqs[1]) == 1
    assert lab.bodies(queue) == [numbered(10)[1], *numbered(10)[5:]]


@pytest.mark.parametrize("harm", [flipped_bit, bad_sector])
def test_undo_stops_at_damage_and_reports_it(
    lab: Lab, queue: LocalQueue, harm: Callable[[Inode, int, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left that out without a word, and with it what was settled behind, up to the end of the segment."""
    for body in ("before", "damaged", "behind"):
        lab.publish(queue, body.ljust(5000))
        lab.pop(queue)
    (inode,) = [lab.disk.names[segment.path] for segment in queue.log.segments]
    harm(inode, inode.cache.index(b"damaged"), monkeypatch)
    assert undo(lab, queue) == (None, Undone(1, 1, 0, more=False, damaged=True))
    assert lab.bodies(queue) == [b"behind".ljust(5000)]


def test_rejected_expired_and_redriven_messages_are_not_restored(lab: Lab) -> None:
    queue, dead = lab.queue("a", dead_letter="dead"), lab.queue("dead")
    lab.publish(queue, "rejected")
    peer = Peer(lab, queue)
    peer.reject(*peer.seqs)
    peer.close()
    assert back(lab, queue) == 0
    assert lab.bodies(dead) == [b"rejected"]
    assert lab.answer(lambda done: dead.redrive(None, 10, done))[0] is None
    assert back(lab, dead) == 0, "it is home, and was twice there"
    assert lab.bodies(queue) == [b"rejected"]
    lab.publish(queue, "expires", ttl_ms=1000)
    lab.pop_all(queue)
    lab.pass_time(2000)
    assert undo(lab, queue) == (None, Undone(1, 0, 1, more=False))


def test_message_dead_lettered_after_an_undo_is_not_restored(lab: Lab) -> None:
    queue, dead = lab.queue("a", dead_letter="dead"), lab.queue("dead")
    (seq,) = lab.publish(queue, "a")
    lab.pop(queue)
    assert back(lab, queue) == 1
    Peer(lab, queue).reject(seq)
    assert back(lab, queue) == 0
    assert (lab.bodies(queue), lab.bodies(dead)) == ([], [b"a"])


def test_undo_affects_only_the_named_group(lab: Lab) -> None:
    queue = lab.queue(groups=["declared"])
    lab.publish(queue, "for all")
    lab.publish(queue, "for two", groups=("g", "h"))
    assert lab.pop_all(queue) == [b"for all"]
    assert lab.pop_all(queue, "g") == lab.pop_all(queue, "h") == [b"for two"]
    assert [back(lab, queue, group="g"), back(lab, queue)] == [1, 1]
    error, _ = undo(lab, queue, group="declared")
    assert isinstance(error, Conflict)
    for _ in range(2):
        assert [queue.counts(group).rdy for group in ("", "g", "h", "declared")] == [1, 1, 0, 1]
        lab.restart("power")
        queue = lab.reopened(queue)


@pytest.mark.parametrize("end", ["", "power"])
def test_restored_messages_keep_their_order(lab: Lab, queue: LocalQueue, end: str) -> None:
    """Its run is cut into stretches, and every one can be read."""
    bodies = numbered(40, 300)
    lab.publish(queue, *bodies)
    peer = Peer(lab, queue)
    peer.ack(*peer.seqs[1::3])
    assert back(lab, queue) == 13
    peer.ack(*peer.seqs[:1])
    assert peer.bodies[40:] == bodies[1::3], "it is there for the consumer that has the others"
    peer.close()
    if end:
        lab.restart(end)
        queue = lab.reopened(queue)
    queue.index.reader.close()
    queue.index.reader._is_closed = False  # none of it is in memory
    assert lab.pop_all(queue) == bodies[1:]
    assert queue.damaged == []


def test_ordering_keys_hold_for_restored_messages(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(4), headers=b"x-key:k\n")
    bodies = [lab.pop(queue), lab.pop(queue)]
    peer = Peer(lab, queue)
    assert back(lab, queue) == 2
    assert peer.bodies == [b"2:"], "one of a key is under way"
    for _ in range(3):
        peer.ack(*peer.seqs[-1:])
    assert peer.bodies == [b"2:", *bodies, b"3:"]


def test_erasing_purge_cannot_be_undone(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *["secret"] * 5)
    lab.pop(queue)
    assert lab.purge(queue) == 4
    assert back(lab, queue) == 0
    assert not any(b"secret" in data for data in lab.files(queue).values())


def test_purge_aborts_and_blocks_undo(lab: Lab) -> None:
    queue = lab.queue(cap=64 * MIB)
    lab.publish(queue, *numbered(300, 4000))
    lab.pop_all(queue)
    for turns in range(0, 40, 2):
        answers: list[CurbstoneError | None] = []
        restored: list[int] = []
        purged: list[CurbstoneError | None] = []

        def undone(error: CurbstoneError | None, undone: Undone) -> None:
            answers.append(error)  # noqa: B023
            restored.append(undone.restored)  # noqa: B023

        queue.undo(UndoRequest(1000), undone)
        for _ in range(turns):
            lab.host.work()
            lab.host.turn()
        queue.purge(lambda error, _count: purged.append(error))  # noqa: B023
        queue.undo(UndoRequest(1000), lambda error, _undone: answers.append(error))  # noqa: B023
        lab.settle()
        assert purged == [None] and len(answers) == 2
        assert any(isinstance(answer, Conflict) for answer in answers)
        assert back(lab, queue) == 0 and lab.bodies(queue) == []
        lab.publish(queue, *numbered(300, 4000))
        lab.pop_all(queue)


def test_undo_restores_what_fits_and_reports_the_count(lab: Lab) -> None:
    queue = lab.queue(cap=256 * KIB)
    bodies = numbered(40, 1000)
    lab.publish(queue, "stays, and all behind it", *bodies)
    while lab.publish_answers(queue, [message(b"f" * 700)])[0][0] is None:
        pass
    peer = Peer(lab, queue, window=41)
    peer.ack(*peer.seqs[1:])
    peer.close()
    error, undone = undo(lab, queue)
    assert isinstance(error, QueueFull)
    assert undone.restored < 40
    assert error.members["restored"] == undone.restored
    assert [body for body in lab.bodies(queue) if body in bodies] == bodies[: undone.restored]
    lab.restart("power")
    assert [body for body in lab.bodies(lab.reopened(queue)) if body in bodies] == bodies[: undone.restored]


@pytest.mark.parametrize("seconds", [0, 60])
def test_retention_option_keeps_settled_messages_for_its_time(seconds: int) -> None:
    lab = Lab(cap=8 * MIB)
    queue = lab.queue(undo=seconds)
    bodies = numbered(60, 50_000)
    lab.publish(queue, *bodies)
    lab.pop_all(queue)
    lab.pass_time(50_000)
    assert undo(lab, queue)[1].restored == (60 if seconds else 0)
    lab.pop_all(queue)
    lab.restart("power")
    queue = lab.reopened(queue)
    lab.pass_time(50_000)
    assert undo(lab, queue)[1].restored == (60 if seconds else 0)
    lab.pop_all(queue)
    lab.pass_time(65_000)
    assert lab.held(queue) <= 64 * KIB
    assert undo(lab, queue)[1].restored == 0
    commits = queue.stats.commits
    lab.pass_time(600_000)
    assert queue.stats.commits == commits, "and then it rests"


def test_retained_messages_are_dropped_in_a_queue_that_is_not_empty() -> None:
    lab = Lab(cap=8 * MIB)
    queue = lab.queue(undo=60)
    lab.publish(queue, *numbered(60, 50_000))
    for _ in range(59):
        lab.pop(queue)
    assert lab.held(queue) > 2 * MIB
    lab.pass_time(61_000)
    assert lab.held(queue) < 2 * MIB
    assert len(queue.log.segments) == 1


def test_retained_messages_take_no_room_from_publishes(lab: Lab) -> None:
    """A queue that keeps it takes all that one without the option does."""
    queues = [lab.queue(f"q{seconds}", cap=MIB, undo=seconds) for seconds in (0, 3600)]
    taken = []
    for queue in queues:
        for _ in range(20):
            lab.publish(queue, *numbered(20, 10_000))
            lab.pop_all(queue)
        answers = lab.publish_answers(queue, [message(body) for body in numbered(100, 10_000)])
        taken.append([count for error, _, count in answers if error is None])
        lab.pop_all(queue)
        (atomic,) = lab.publish_answers(queue, [message(body) for body in numbered(40, 10_000)], atomic=True)
        assert atomic[0] is None
    assert sum(taken[0]) == sum(taken[1]) > 50


def test_purge_erases_retained_messages(lab: Lab) -> None:
    queue = lab.queue(undo=3600)
    lab.publish(queue, *[b"secret" * 2000] * 20)
    for _ in range(10):
        lab.pop(queue)
    assert lab.purge(queue) == 10
    assert not any(b"secret" in data for data in lab.files(queue).values())


def test_publish_waiting_for_the_cleaner_succeeds_after_an_undo_splits_its_stretch(lab: Lab) -> None:
    """The list of what was to be copied had nothing left in it, and the publish waited until something else came."""
    queue = lab.queue(cap=256 * KIB, undo=3600, max_message_size=32 * KIB)
    lab.publish(queue, *numbered(4, size=KIB))
    peer = Peer(lab, queue)
    first = peer.seqs[0]
    peer.ack(first)
    while queue.log.room.budget > 30_000:
        for seq in lab.publish(queue, b"x" * 8000):
            peer.ack(seq)
    for run in list(queue.index.runs):
        queue.index.reader.forget(run)
    queue.cleaner.relocation.next(0)  # a turn of the cleaner that was broken off: it has listed the first segment
    lab.settle()
    assert back(lab, queue, seq=first) == 1
    assert lab.publish(queue, b"y" * 30_000)
