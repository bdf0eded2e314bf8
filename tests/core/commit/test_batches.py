"""Batches: when the last message of one is settled, its report is sent, exactly once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curbstone.core import headers
from curbstone.core.admin.queue import LocalQueue
from curbstone.core.batches import batch_of, check_batch
from curbstone.core.engine.facts import tallies
from curbstone.core.engine.log.format import Note
from curbstone.core.errors import BadRequest, Conflict, CurbstoneError, QueueFull
from curbstone.core.message import Message
from curbstone.core.orders import orders_in, orders_of
from curbstone.core.values import UndoRequest
from tests.kit.lab import Lab, Peer
from tests.kit.room_check import check_room


def member(batch: str, body: bytes = b"x", *, size: int = 0, to: str = "", lines: Any = (), **orders: Any) -> Message:
    """Return a message of a batch."""
    own = [("x-batch", batch), *([("x-batch-size", str(size))] if size else []), *([("x-batch-to", to)] if to else [])]
    block = headers.encode([*own, *lines])
    found = orders_in(block)
    return Message(body, block, orders_of(batched=True, named=found is not None and found.named, **orders))


def members(batch: str, count: int, to: str = "done", **extras: Any) -> list[Message]:
    """Return the messages of a batch, each of which says all of it."""
    return [member(batch, b"%d" % number, size=count, to=to, **extras) for number in range(count)]


def reports(lab: Lab, to: str = "done") -> list[dict[str, Any]]:
    """Return the reports in a queue, without their times; there is none if there is no queue."""
    if to not in [name.queue for name in lab.names()]:
        return []
    found = [json.loads(body) for body in lab.bodies(to)]
    assert all(0 < each["begun_ms"] <= each["ended_ms"] for each in found)
    return [{name: value for name, value in each.items() if value and not name.endswith("_ms")} for each in found]


def report(batch: str, total: int, **ended: int) -> dict[str, Any]:
    return {"batch": batch, "queue": "default/q", "total": total} | (ended or {"acked": total})


def tally(queue: LocalQueue, batch: str = "a") -> dict[str, int]:
    """Return the counts of an open batch that are not 0."""
    found = next((each.tally for each in queue.batches() if each.tally.id == batch), None)
    if found is None:
        return {}
    counts = {"size": found.size, "stored": found.stored, **found.ends, "pending": found.pending}
    return {name: count for name, count in counts.items() if count}


# --- the end


@pytest.mark.parametrize("atomic", [False, True])
def test_report_is_sent_when_the_last_message_is_settled(lab: Lab, queue: LocalQueue, atomic: bool) -> None:
    lab.publish_messages(queue, [*members("a", 3), Message(b"of none")], atomic=atomic)
    peer = Peer(lab, queue)
    peer.ack(1, 2, 4)
    assert reports(lab) == []
    assert tally(queue) == {"size": 3, "stored": 3, "acked": 2, "pending": 1}
    peer.ack(3)
    assert reports(lab) == [report("a", 3)]
    assert queue.batches() == []
    assert queue.stats.batches_ended == 1
    (found,) = lab.peek(lab.named("done"))
    assert headers.decode(found.message.headers) == [("content-type", "application/json"), ("x-batch", "a")]
    assert found.message.orders is None
    check_room(queue)


def test_size_and_report_queue_may_be_given_with_any_message(lab: Lab, queue: LocalQueue) -> None:
    for late in (member("a"), member("a", to="done"), member("a", size=3)):
        lab.publish_messages(queue, [late])
        assert lab.pop(queue) == b"x"
        assert (reports(lab) == []) is (late.headers.find(b"size") < 0)
    assert reports(lab) == [report("a", 3)]


def test_a_batch_can_report_to_its_own_queue_and_its_id_is_free_again(lab: Lab, queue: LocalQueue) -> None:
    for _ in range(2):
        lab.publish_messages(queue, members("a", 2, to="q"))
        assert [lab.pop(queue), lab.pop(queue)] == [b"0", b"1"]
        given = lab.pop(queue)
        assert given is not None and json.loads(given)["acked"] == 2
        assert lab.pop(queue) is None


@pytest.mark.parametrize("ending", ["reject", "dead letter", "expiry", "purge", "oldest", "replace", "by id"])
def test_each_outcome_is_counted(lab: Lab, ending: str) -> None:
    lab.queue("dead")
    overflow = "drop-oldest" if ending == "oldest" else "refuse"
    queue = lab.queue(dead_letter="dead" if ending == "dead letter" else "", overflow=overflow, cap=64 * 1024)
    lines = [("x-replace", "n")] if ending == "replace" else []
    lab.publish_messages(
        queue, [member("a", size=2, to="done"), member("a", lines=lines, ttl_ms=1000 if ending == "expiry" else 0)]
    )
    assert lab.pop(queue) == b"x"
    if ending in ("reject", "dead letter"):
        Peer(lab, queue).reject(2)
    elif ending == "purge":
        lab.purge(queue)
    elif ending == "expiry":
        lab.pass_time(2000)
    elif ending == "by id":
        lab.answer(lambda done: queue.settle_by_id(2, done))
    elif ending == "replace":
        lab.publish_messages(queue, [Message(b"new", headers.encode(lines), orders_of(named=True))])
    else:
        for _ in range(60):
            lab.publish(queue, b"x" * 2000)
    names = {"reject": "dead", "dead letter": "dead", "expiry": "expired", "replace": "replaced", "by id": "acked"}
    how = names.get(ending, "purged")
    assert reports(lab) == [report("a", 2, **({"acked": 2} if how == "acked" else {"acked": 1, how: 1}))]


def test_dead_letters_and_redriven_messages_belong_to_no_batch(lab: Lab) -> None:
    lab.queue("dead")
    queue = lab.queue(dead_letter="dead")
    lab.publish_messages(queue, members("a", 1))
    Peer(lab, queue).reject(1)
    assert reports(lab) == [report("a", 1, dead=1)]
    lab.answer(lambda done: lab.named("dead").redrive(None, 10, done))
    assert queue.batches() == lab.named("dead").batches() == []


def test_a_duplicate_counts_as_stored_and_acked(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [member("b", lines=[("x-unique", "n")])])
    lab.publish_messages(queue, [member("a", size=2, to="done")])
    for atomic in (False, True):
        batch = [member("a", lines=[("x-unique", "n")])] if not atomic else members("c", 1, lines=[("x-unique", "n")])
        lab.publish_messages(queue, batch, atomic=atomic)
    assert reports(lab) == [report("c", 1)]
    assert tally(queue) == {"size": 2, "stored": 2, "acked": 1, "pending": 1}
    lab.pop_all(queue)
    assert reports(lab) == [report("c", 1), report("a", 2)]


def test_messages_that_replace_each_other_in_one_commit_count(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, members("a", 3, lines=[("x-replace", "n")]), atomic=True)
    assert tally(queue) == {"size": 3, "stored": 3, "replaced": 2, "pending": 1}
    assert lab.pop(queue) == b"2"
    assert reports(lab) == [report("a", 3, acked=1, replaced=2)]


def test_declared_group_does_not_delay_the_report(lab: Lab) -> None:
    queue = lab.queue(groups=["g"])
    lab.publish_messages(queue, members("a", 2))
    lab.pop_all(queue)
    assert reports(lab) == [report("a", 2)]
    assert lab.pop(queue, "g") == b"0"


def test_undo_does_not_reopen_or_change_a_batch(lab: Lab) -> None:
    queue = lab.queue(undo=3600)
    lab.publish_messages(queue, [*members("a", 2), *members("b", 2)])
    assert [lab.pop(queue) for _ in range(3)] == [b"0", b"1", b"0"]
    lab.answer(lambda done: queue.undo(UndoRequest(10), done), passing_ms=1000)
    assert len(lab.bodies(queue)) == 4
    lab.restart("kill")
    queue = lab.reopened(queue)
    lab.pop_all(queue)
    assert reports(lab) == [report("a", 2), report("b", 2)]


# --- what is refused


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("message", "text"),
    [
        (member("a", size=3), "x-batch-size is 3, but batch a has a size of 2"),
        (member("a", to="elsewhere"), "x-batch-to is elsewhere, but batch a reports to done"),
        (member("b", groups=("g",)), "a message of a batch is for the queue's consumers, and can't name groups"),
        (member("c", size=1), "batch c has a size of 1, and 2 of its messages are stored: no room for 1 more"),
    ],
)
def test_message_contradicting_its_batch_is_refused(
    lab: Lab, queue: LocalQueue, atomic: bool, message: Message, text: str
) -> None:
    lab.publish_messages(queue, [member("a", size=2, to="done"), member("c"), member("c")])
    with pytest.raises(BadRequest, match=text):
        lab.publish_messages(queue, [message], atomic=atomic)
    assert len(queue.batches()) == 2
    assert tally(queue) == {"size": 2, "stored": 1, "pending": 1}


@pytest.mark.parametrize("atomic", [False, True])
def test_batch_refuses_messages_beyond_its_size(lab: Lab, queue: LocalQueue, atomic: bool) -> None:
    answers = lab.publish_answers(queue, [*members("a", 2), member("a")], atomic=atomic)
    assert [(error is None, count) for error, _, count in answers] == (
        [(False, 3)] if atomic else [(True, 2), (False, 1)]
    )
    assert "batch a has a size of 2, and 2 of its messages are stored: no room for 1 more" in str(answers[-1][0])


def test_event_message_with_a_batch_is_refused(lab: Lab) -> None:
    error, _, _ = lab.answer(lambda done: lab.broker.publish_event("e", [member("a")], done))
    assert isinstance(error, BadRequest) and "event" in str(error)
    with pytest.raises(BadRequest, match="event"):
        lab.broker.transaction().publish_event("e", member("a"))


def test_open_batches_of_a_queue_are_limited(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    most = queue.facts.most(Note.BATCH)
    assert most == 16
    for number in range(most):
        lab.publish_messages(queue, [member(str(number))])
    with pytest.raises(QueueFull, match="16 open batches"):
        lab.publish_messages(queue, [member("more")])
    lab.publish_messages(queue, [member("0")])
    assert lab.answer(lambda done: queue.drop_batch("1", done)) == (None, True)
    lab.publish_messages(queue, [member("more")])
    check_room(queue)


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({"x-batch": ""}, "x-batch has 0 bytes"),
        ({"x-batch": "é" * 65}, "x-batch has 130 bytes"),
        ({"x-batch": "a", "x-batch-size": "0"}, "whole number from 1 to 1000000"),
        ({"x-batch": "a", "x-batch-size": "1000001"}, "whole number"),
        ({"x-batch": "a", "x-batch-size": "x"}, "whole number"),
        ({"x-batch": "a", "x-batch-to": "p/q"}, "bad queue name"),
        ({"x-batch-size": "1"}, "x-batch-size is for a message with x-batch"),
        ({"x-batch-to": "q"}, "x-batch-to is for a message with x-batch"),
    ],
)
def test_invalid_batch_headers_are_refused(named: dict[str, str], text: str) -> None:
    with pytest.raises((ValueError, CurbstoneError), match=text):
        check_batch(named)
    assert batch_of(headers.encode(named.items())).id == ""


def test_batch_headers_round_trip() -> None:
    block = headers.encode([("a", "x-batch:no"), ("x-batch-to", "q:1"), ("x-batch", "a:b\\"), ("x-batch-size", "12")])
    assert batch_of(block)[1:] == ("a:b\\", 12, "q:1")
    assert batch_of(b"x-batch:a\\q\n").id == ""


# --- the report waits


def test_report_waits_until_its_queue_accepts_it(lab: Lab) -> None:
    queue, done = lab.queue(), lab.queue("done", publish_paused=True)
    lab.publish_messages(queue, members("a", 1))
    lab.pop(queue)
    lab.pass_time(20_000)
    (found,) = queue.batches()
    assert "publish_paused" in found.refusal
    assert found.tally.is_complete
    lab.queue("done", publish_paused=False)
    assert lab.bodies(done) == []
    lab.pass_time(5000)
    assert reports(lab) == [report("a", 1)]
    assert queue.batch_reports is not None and queue.batch_reports.refused == {}


def test_many_waiting_reports_are_all_sent() -> None:
    lab = Lab(cap=16 * 1024 * 1024)
    queue = lab.queue()
    lab.queue("done", publish_paused=True)
    for number in range(250):
        lab.publish_messages(queue, members(str(number), 1))
    lab.pop_all(queue)
    lab.pass_time(6000)
    lab.restart("kill")
    lab.queue("done", publish_paused=False)
    lab.pass_time(6000)
    assert sorted(int(each["batch"]) for each in reports(lab)) == list(range(250))


# --- batches that do not end


def test_dropped_batch_frees_its_id(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, members("a", 2))
    assert lab.answer(lambda done: queue.drop_batch("a", done)) == (None, True)
    assert lab.answer(lambda done: queue.drop_batch("a", done)) == (None, False)
    for how in ("kill", "power"):
        lab.restart(how)
        queue = lab.reopened(queue)
        assert queue.batches() == []
    lab.publish_messages(queue, members("a", 1))
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert [lab.pop(queue), lab.pop(queue)] == [b"0", b"1"]
    assert tally(queue) == {"size": 1, "stored": 1, "pending": 1}, "the first two were of the batch that was dropped"
    assert lab.pop(queue) == b"0"
    assert reports(lab) == [report("a", 1)]


def test_batch_with_a_report_in_flight_is_not_dropped(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, members("a", 1))
    lab.pop(queue)
    assert queue.batches() == []
    lab.publish_messages(queue, members("a", 1))
    answers: list[Any] = []
    queue.pop(lambda _found: None)
    while not (queue.parts.tallies and queue.parts.tallies.reporting):
        assert lab.host.turn() or lab.host.work()
    queue.drop_batch("a", lambda *given: answers.append(given))
    lab.settle()
    assert [(type(error), found) for error, found in answers] == [(Conflict, False)]
    assert reports(lab) == [report("a", 1)] * 2


def test_batch_incomplete_for_a_week_is_dropped_when_another_begins(lab: Lab, queue: LocalQueue) -> None:
    lab.publish_messages(queue, [member("a"), member("pending"), *members("b", 1)])
    lab.answer(lambda done: queue.settle_by_id(1, done))
    lab.pass_time(tallies.ABANDONED_MS + 1)
    assert len(queue.batches()) == 3
    lab.publish_messages(queue, [member("new")])
    assert {each.tally.id for each in queue.batches()} == {"pending", "b", "new"}
    assert queue.stats.batches_abandoned == 1
    lab.restart("power")
    assert {each.tally.id for each in lab.reopened(queue).batches()} == {"pending", "b", "new"}
