"""Whatever is asked of a queue is answered once, also if the queue ends at any moment meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, NoSuchQueue, Unavailable
from curbstone.core.positions import ReadRequest, Since, Wanted
from curbstone.core.values import IdempotencyKey, Numbered, Outcome, UndoRequest
from tests.kit.lab import Lab, Peer, message, numbered

STEPS = 12
"""More than it takes to answer any of the calls."""
Done = Callable[..., None]


class Setup:
    """A queue with a backlog, of which nothing is in memory, and one who holds some of it."""

    def __init__(self) -> None:
        self.lab = Lab()
        self.lab.expects_faults = True
        queue = self.lab.queue(dead_letter="dead", undo=60)
        self.lab.publish(queue, *numbered(20, 100))
        self.info = self.lab.answer(lambda done: queue.reading.declare("old", 0, None, done))
        self.lab.restart()
        self.queue: LocalQueue = self.lab.reopened(queue)
        self.peer = Peer(self.lab, self.queue, window=5)
        self.held = self.peer.seqs
        self.lease = self.lab.lease(self.queue, 2)
        assert len(self.held) == 5 and len(self.lease) == 2
        self.peer.ack(self.held[0])

    def step(self) -> None:
        """Let one thing happen: what is due in this turn, or a job."""
        _ = self.lab.host.turn() or self.lab.host.work()

    def end(self, how: str) -> None:
        if how != "break down":
            self.lab.end(self.queue, how)
            return
        self.queue.host.contain(_fault)
        self.lab.settle()
        assert self.queue.state.broken

    def transaction(self, done: Done) -> None:
        transaction = self.lab.broker.transaction()
        transaction.publish(self.queue, message("m"))
        transaction.ack(self.peer.consumer, [self.held[1]])
        transaction.reject(self.peer.consumer, [self.held[2]])
        transaction.commit(done)

    def group_while_options_are_written(self, done: Done) -> None:
        self.lab.broker.declare(self.queue.name, {"max_tries": 3}, lambda _error: None)
        self.queue.reading.declare("g", 5, None, done)

    def events(self, done: Done) -> None:
        reading = self.queue.reading
        reading.events(ReadRequest(reading.events_start, 100, 10_000), lambda _events: b"", done)


def _fault() -> None:
    raise AssertionError("planted")


CALLS: dict[str, Callable[[Setup, Done], object]] = {
    "publish": lambda setup, done: setup.queue.publish([message("m")], done),
    "publish all or nothing": lambda setup, done: setup.queue.publish([message("m")] * 2, done, atomic=True),
    "publish under a key": lambda setup, done: setup.queue.publish([message("m")], done, key=IdempotencyKey("k", b"")),
    "publish by numbers": lambda setup, done: setup.queue.publish(
        [message("m")], done, numbered=Numbered(b"p" * 16, 1, 0)
    ),
    "ack": lambda setup, done: setup.peer.consumer.ack([setup.held[1]], done),
    "nack": lambda setup, done: setup.peer.consumer.nack([setup.held[1]], on_done=done),
    "reject": lambda setup, done: setup.peer.consumer.reject([setup.held[1], setup.held[2]], "bad", done),
    "pop": lambda setup, done: setup.queue.pop(done),
    "pop and wait": lambda setup, done: setup.queue.pop(done, group="none", wait_ms=60_000),
    "lease": lambda setup, done: setup.queue.lease(3, 30_000, done),
    "lease and wait": lambda setup, done: setup.queue.lease(3, 30_000, done, group="none", wait_ms=60_000),
    **{
        f"{outcome.value} a lease": lambda setup, done, outcome=outcome: setup.queue.settle_leases(  # type: ignore[misc]
            [each.token for each in setup.lease], outcome, done
        )
        for outcome in Outcome
    },
    "extend": lambda setup, done: setup.queue.extend([setup.lease[0].token], 1000, done),
    "settle by id": lambda setup, done: setup.queue.settle_by_id(20, done),
    "peek": lambda setup, done: setup.queue.peek(100, done),
    "purge": lambda setup, done: setup.queue.purge(done),
    "purge and keep": lambda setup, done: setup.queue.purge(done, keep=True),
    "undo": lambda setup, done: setup.queue.undo(UndoRequest(10), done),
    "redrive": lambda setup, done: setup.queue.redrive(setup.lab.queue("other").name, 10, done),
    "options": lambda setup, done: setup.lab.broker.declare(setup.queue.name, {"max_tries": 3}, done),
    "bind": lambda setup, done: setup.lab.broker.bind("event", setup.queue.name, done),
    "declare a group": lambda setup, done: setup.queue.reading.declare("g", 5, None, done),
    "declare a group while options are written": Setup.group_while_options_are_written,
    "declare it since a time": lambda setup, done: setup.queue.reading.declare("g", Since(1), None, done),
    "ack up to": lambda setup, done: setup.queue.reading.ack_to("old", 4, done),
    "find a time": lambda setup, done: setup.queue.reading.find_time(10**15, done),
    "browse": lambda setup, done: setup.queue.reading.browse(Wanted(1), len, done),
    "events": Setup.events,
    "wait": lambda setup, done: setup.queue.reading.wait_for(1000, 10**9, done),
    "wait for events": lambda setup, done: setup.queue.reading.wait_for_events(1 << 60, 10**9, done),
    "transaction": Setup.transaction,
}


@pytest.mark.parametrize("how", ["delete", "shutdown", "break down"])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_answered_once_when_its_queue_ends(name: str, how: str) -> None:
    for steps in range(STEPS):
        setup = Setup()
        answers: list[tuple[Any, ...]] = []
        CALLS[name](setup, lambda *given, answers=answers: answers.append(given))
        for _ in range(steps):
            setup.step()
        setup.end(how)
        assert len(answers) == 1, f"after {steps} steps"


def test_deletion_completes_during_a_group_declaration() -> None:
    """What the group relies on was to be on disk before its declaration, and no commit came any more."""
    for turns in range(STEPS):
        setup = Setup()
        setup.lab.broker.declare(setup.queue.name, {"max_tries": 3}, lambda _error: None)
        setup.queue.reading.declare("g", 5, None, lambda *_: None)
        for _ in range(turns):
            setup.lab.host.turn()  # the job that writes the options takes its time
        setup.end("delete")


def test_waiter_is_notified_of_a_server_stop_not_of_a_deleted_queue(lab: Lab, queue: LocalQueue) -> None:
    reported: list[CurbstoneError | None] = []
    queue.reading.wait_for(1, 10**9, reported.append)
    lab.end(queue, "shutdown")
    assert [type(error) for error in reported] == [Unavailable]


@pytest.mark.parametrize("what", ["browse", "events"])
def test_read_during_a_removal_is_no_disk_failure(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Events were answered with 503, and the log named a file that could not be read, because it had been removed."""
    setup = Setup()
    answers: list[tuple[Any, ...]] = []
    read = setup.lab.host.jobs
    CALLS[what](setup, lambda *given: answers.append(given))
    assert len(read) == 1
    slow, read[:] = read[:], []
    setup.end("delete")
    assert answers == []
    read += slow
    setup.lab.settle()
    assert [type(error) for error, *_ in answers] == [NoSuchQueue]
    assert "can't be read" not in caplog.text


def test_a_queue_that_ends_during_a_commit_leaves_nothing_in_memory(lab: Lab, queue: LocalQueue) -> None:
    """Its messages had stayed in the account of the memory that all queues share, and its timer had kept the queue."""
    queue.publish([message("m", ttl_ms=3_600_000)], lambda *_: None)
    while not queue.writer.is_busy:
        assert lab.host.turn()
    lab.end(queue, "delete")
    assert lab.broker.shared.cache.bytes == 0
    assert not [timer for _, _, timer in lab.host.timers if timer.fn is not None]
