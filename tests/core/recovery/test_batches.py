"""Batches over restarts and crashes: no count is lost or made up, and of each report there is one."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.facts.tallies import SETTLED_NOTE_BYTES
from curbstone.core.engine.log.format import Note, decode_notes
from curbstone.core.engine.log.scan import Scan
from curbstone.core.message import Message
from curbstone.core.values import Outcome, UndoRequest
from tests.core.commit.test_batches import member, members, report, reports, tally
from tests.kit.lab import Lab, Peer
from tests.kit.room_check import check_room
from tests.kit.simulated import Crash

CAP = 64 * 1024


def churn(lab: Lab, queue: LocalQueue, bytes_more: int = 2 * CAP) -> None:
    """Publish and pop until the log has turned over."""
    body = b"z" * 1500
    for _ in range(bytes_more // len(body)):
        lab.publish(queue, body, groups=("t",))
        assert lab.pop(queue, "t") == body


def oldest(queue: LocalQueue) -> int:
    return queue.log.segments[0].number


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_restart_after_each_step_keeps_batch_counts(lab: Lab, how: str) -> None:
    lab.queue("dead")
    queue = lab.queue(dead_letter="dead")
    steps: list[Any] = [
        lambda queue: lab.publish_messages(queue, [member("a"), member("a"), member("b", to="done", size=1)]),
        lambda queue: lab.pop(queue),
        lambda queue: lab.publish_messages(
            queue, [member("a", size=5, to="done"), member("a"), member("a", ttl_ms=100)]
        ),
        lambda queue: lab.pass_time(5000),
        lambda queue: Peer(lab, queue).reject(2),
        lambda queue: lab.pop(queue),
        lambda queue: lab.purge(queue),
    ]
    for step in steps:
        step(queue)
        lab.restart(how)
        queue = lab.reopened(queue)
        check_room(queue)
    assert reports(lab) == [report("b", 1), report("a", 5, acked=1, dead=1, expired=1, purged=2)]
    assert queue.batches() == []


@pytest.mark.parametrize("how", ["shutdown", "kill", "power"])
def test_a_tally_outlives_the_segments_of_its_messages(how: str) -> None:
    """The note of the tally is repeated with what was settled since, as the settles are gone with the segment."""
    lab = Lab(cap=CAP)
    queue = lab.queue()
    lab.publish_messages(queue, members("a", 6))
    for done in (2, 4):
        while tally(queue).get("acked") != done:
            lab.pop(queue)
        before = oldest(queue)
        churn(lab, queue)
        assert oldest(queue) > before + 8
        lab.restart(how)
        queue = lab.reopened(queue)
        assert tally(queue) == {"size": 6, "stored": 6, "acked": done, "pending": 6 - done}
        check_room(queue)
    assert [lab.pop(queue), lab.pop(queue)] == [b"4", b"5"]
    assert reports(lab) == [report("a", 6)]
    churn(lab, queue)
    lab.restart(how)
    assert lab.reopened(queue).batches() == []
    assert reports(lab) == [report("a", 6)]


@pytest.mark.parametrize("how", ["kill", "power"])
def test_copies_of_settled_messages_belong_to_no_batch(how: str) -> None:
    """A declared group keeps the messages, so they are copied; their settles were counted before."""
    lab = Lab(cap=CAP)
    queue = lab.queue(groups=["g"])
    lab.publish_messages(queue, members("a", 4))
    assert lab.pop(queue) == b"0"
    for _ in range(2):
        churn(lab, queue)
        lab.restart(how)
        queue = lab.reopened(queue)
        assert tally(queue) == {"size": 4, "stored": 4, "acked": 1, "pending": 3}
    assert lab.pop_all(queue) == [b"1", b"2", b"3"]
    assert reports(lab) == [report("a", 4)]
    assert [lease.delivery.message.body for lease in lab.lease(queue, 4, group="g")] == [b"0", b"1", b"2", b"3"]


def test_restored_messages_are_not_counted_after_a_restart() -> None:
    lab = Lab(cap=CAP)
    queue = lab.queue(undo=3600)
    lab.publish_messages(queue, members("a", 3))
    assert [lab.pop(queue), lab.pop(queue)] == [b"0", b"1"]
    lab.answer(lambda done: queue.undo(UndoRequest(1), done), passing_ms=1000)
    lab.restart("power")
    queue = lab.reopened(queue)
    assert tally(queue) == {"size": 3, "stored": 3, "acked": 2, "pending": 1}
    assert lab.pop(queue) == b"1"
    assert reports(lab) == []
    assert lab.pop(queue) == b"2"
    assert reports(lab) == [report("a", 3)]


def test_ack_writes_a_delta_of_the_tally(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, members("a", 50))
    for _ in range(20):
        lab.pop(queue)
    notes = [
        (note, len(payload))
        for batch in Scan(queue.log.disk, queue.log.active, 0, is_active=True).batches()
        for note, payload in decode_notes(batch.data, batch.notes_at, batch.end_at)
    ]
    assert [note for note, _ in notes].count(Note.BATCH) == 1
    assert [size for note, size in notes if note == Note.BATCH_SETTLED] == [29] * 20


def test_settles_of_many_batches_are_counted_over_several_commits() -> None:
    lab = Lab(cap=1 << 20)
    queue = lab.queue()
    most = queue.facts.most(Note.BATCH)
    size = SETTLED_NOTE_BYTES * most
    lab.publish_messages(queue, [member(str(number), size=2, to="done") for number in range(most)])
    assert queue.log.room.slack_bytes // 2 < size
    lab.purge(queue)
    assert [(each.tally.stored, each.tally.ends["purged"]) for each in queue.batches()] == [(1, 1)] * most
    lab.publish_messages(queue, [member(str(number)) for number in range(most)])
    peer = Peer(lab, queue)
    peer.ack(*peer.seqs)
    lab.pass_time(5000)
    assert len(reports(lab)) == most and all(each["purged"] == each["acked"] == 1 for each in reports(lab))
    check_room(queue)


def test_a_transaction_that_acks_and_publishes_in_one_batch_counts_once(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [member("a", size=3, to="done")])
    for _ in range(2):
        peer = Peer(lab, queue)
        transaction = lab.broker.transaction()
        transaction.ack(peer.consumer, [peer.seqs[-1]])
        transaction.publish(queue, member("a"))
        transaction.publish(lab.queue("other"), Message(b"more"))
        assert lab.answer(transaction.commit) == (None,)
        peer.close()
        lab.restart("kill")
        queue = lab.reopened(queue)
    assert tally(queue) == {"size": 3, "stored": 3, "acked": 2, "pending": 1}
    lab.pop(queue)
    assert reports(lab) == [report("a", 3)]


@pytest.mark.parametrize("fault", ["sync", "full"])
def test_a_commit_that_fails_counts_nothing(lab: Lab, queue: LocalQueue, fault: str) -> None:
    lab.publish_messages(queue, members("a", 3)[:2])
    (lease,) = lab.lease(queue)
    if fault == "sync":
        lab.disk.eio_chance = 1.0
    else:
        lab.disk.capacity = sum(len(inode.cache) for inode in lab.disk.names.values())
    answers: list[Any] = []
    queue.publish([member("a", b"x" * 100_000), member("b")], lambda *given: answers.append(given))
    queue.settle_leases([lease.token], Outcome.ACK, lambda *given: answers.append(given))
    lab.settle()
    assert any(error is not None for error, *_ in answers)
    assert {each.tally.id for each in queue.batches()} == {"a"}
    assert tally(queue)["stored"] == 2
    lab.disk.eio_chance, lab.disk.capacity = 0.0, 1 << 60
    lab.pass_time(5000)
    assert tally(queue) == {"size": 3, "stored": 2, "acked": 1, "pending": 1}
    lab.publish_messages(queue, [member("a")])
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert tally(queue) == {"size": 3, "stored": 3, "acked": 1, "pending": 2}
    lab.pop_all(queue)
    assert reports(lab) == [report("a", 3)]
    check_room(queue)


def test_damaged_messages_count_as_unknown_outcome(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, members("a", 3)[:1])
    end = queue.log.active.end
    lab.publish_messages(queue, members("a", 3)[1:2])
    lab.publish_messages(queue, members("a", 3)[2:])
    inode = lab.disk.names[queue.log.active.path]
    lab.shutdown()
    inode.cache[end + 200] ^= 1
    lab.start(lab.host.wall_ms() + 1000)
    queue = lab.reopened(queue)
    assert queue.damaged
    assert tally(queue) == {"size": 3, "stored": 3, "unknown": 1, "pending": 2}
    lab.pop_all(queue)
    assert reports(lab) == [report("a", 3, acked=2, unknown=1)]


def work(lab: Lab, queue: LocalQueue) -> None:
    """Begin three batches, one after the other, and settle what there is of them."""
    for number in range(3):
        queue.publish(members(str(number), 3), lambda *_: None, atomic=True)
        lab.host.settle()
        queue.pop(lambda _found: None)
        queue.pop(lambda _found: None)
        lab.host.settle()
        for _ in range(12):
            queue.publish([Message(b"z" * 1500)], lambda *_: None)
            lab.host.settle()
            queue.settle_by_id(queue.state.next_seq - 1, lambda *_: None)
            lab.host.settle()
        queue.pop(lambda _found: None)
        lab.host.settle()


@pytest.mark.parametrize("how", ["kill", "power"])
def test_crash_at_any_disk_call_keeps_exactly_one_report(how: str) -> None:
    reached = 0
    for number in count(0, 3):
        lab = Lab(cap=CAP, seed=number)
        queue, to = lab.queue(), lab.queue("done")
        lab.disk.crash_in = number
        try:
            work(lab, queue)
        except Crash:
            pass
        else:
            break
        reached += 1
        lab.restart(how)
        queue, to = lab.reopened(queue), lab.reopened(to)
        stored = {each.tally.id for each in queue.batches()} | {each["batch"] for each in reports(lab)}
        assert {"0", "1", "2"} - stored == {str(left) for left in range(len(stored), 3)}
        lab.pop_all(queue)
        assert queue.batches() == []
        assert sorted(reports(lab), key=lambda each: str(each["batch"])) == [report(id, 3) for id in sorted(stored)]
        lab.restart("kill")
        assert lab.reopened(queue).batches() == []
        assert len(reports(lab)) == len(stored)
    assert reached > 20
