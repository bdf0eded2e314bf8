"""The journal of transactions over several queues: what it keeps, for how long, and what it must not keep."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.commit.writer import Writer
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.transactions import tx_log as journal
from tests.kit.lab import Lab, message
from tests.kit.simulated import Crash, SimFile

SECRET = b"top secret"


def two(lab: Lab) -> tuple[LocalQueue, LocalQueue]:
    return lab.queue("a"), lab.queue("b")


def begin(lab: Lab, bodies: dict[str, bytes], answers: list[CurbstoneError | None]) -> None:
    transaction = lab.broker.transaction()
    for name, body in bodies.items():
        transaction.publish(lab.queue(name), message(body))
    transaction.commit(answers.append)


def transact(lab: Lab, **bodies: bytes) -> None:
    answers: list[CurbstoneError | None] = []
    begin(lab, bodies, answers)
    lab.settle()
    assert answers == [None]


def everything_on(lab: Lab) -> bytes:
    """Return all bytes that are there, or that a power cut may bring back."""
    found = [*lab.disk.names.values(), *lab.disk.durable_names.values()]
    return b"".join(bytes(inode.cache) + bytes(inode.durable) for inode in found)


class FailingFiles:
    """Makes the syncs of files fail whose paths begin with one of `paths`."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: tuple[str, ...] = ()
        original = SimFile.sync

        def sync(file: SimFile) -> None:
            if any(inode is file._inode and path.startswith(self.paths) for path, inode in lab.disk.names.items()):
                raise OSError(errno.EIO, "no")
            original(file)

        monkeypatch.setattr(SimFile, "sync", sync)


# --- erasing


@pytest.mark.parametrize("how", ["purge", "delete"])
@pytest.mark.parametrize("restart", ["", "shutdown", "kill", "power"])
def test_purge_erases_the_journal_too(lab: Lab, how: str, restart: str) -> None:
    two(lab)
    transact(lab, a=b"top " + SECRET, b=b"other")
    transact(lab, a=b"short", b=b"other")  # written over a part of it
    if restart:
        lab.restart(restart)
    queue = lab.queue("a")
    if how == "purge":
        assert lab.purge(queue) == 2
    else:
        assert lab.answer(lambda done: lab.broker.delete(queue.name, done)) == (True,)
    assert SECRET not in everything_on(lab)
    assert lab.bodies(lab.queue("b")) == [b"other"] * 2
    transact(lab, a=b"more", b=b"more")
    lab.restart("power")
    assert [lab.bodies(queue) for queue in two(lab)] == [[b"more"], [b"other", b"other", b"more"]]


def test_unfinished_transaction_keeps_only_missing_parts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two(lab)
    failing = FailingFiles(lab, monkeypatch)
    failing.paths = (second.log.directory, "redo.")
    answers: list[CurbstoneError | None] = []
    begin(lab, {"a": SECRET, "b": b"kept"}, answers)
    lab.settle()
    assert answers == [] and lab.bodies(first) == [SECRET]
    assert lab.purge(first) == 1
    assert SECRET not in everything_on(lab) and b"kept" in everything_on(lab)
    failing.paths = ()
    lab.restart("power")
    assert [lab.bodies(queue) for queue in two(lab)] == [[], [b"kept"]]


def test_purge_between_transactions_keeps_each_whole(lab: Lab) -> None:
    first, _ = two(lab)
    transact(lab, a=SECRET, b=b"other")
    answers: list[CurbstoneError | None] = []
    purged: list[object] = []
    begin(lab, {"a": b"1", "b": b"1"}, answers)
    first.purge(lambda error, _count: purged.append(error))
    for number in range(2, 20):
        begin(lab, {"a": b"%d" % number, "b": b"%d" % number}, answers)
        lab.host.turn()
    lab.settle()
    assert purged == [None] and answers == [None] * 19 and SECRET not in everything_on(lab)
    lab.restart("power")
    assert lab.bodies(lab.queue("b"))[1:] == [b"%d" % number for number in range(1, 20)]


def test_queue_deleted_with_a_part_in_flight_leaves_nothing_in_the_journal(lab: Lab) -> None:
    first, _ = two(lab)
    answers: list[CurbstoneError | None] = []
    begin(lab, {"a": SECRET, "b": b"kept"}, answers)
    while not answers and SECRET not in everything_on(lab):
        assert lab.host.turn() or lab.host.work()
    deleted: list[object] = []
    lab.broker.delete(first.name, deleted.append)
    lab.settle()
    lab.pass_time(100)
    assert deleted == [True] and answers == [None] and SECRET not in everything_on(lab)
    assert lab.bodies(lab.queue("b")) == [b"kept"]


@pytest.mark.source
def test_broken_queue_leaves_nothing_in_the_journal_when_deleted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part stayed there until the next start, as one that was still to be written."""
    lab.expects_faults = True
    first, second = two(lab)
    answers: list[CurbstoneError | None] = []
    original = Writer._apply

    def take_in(writer: Writer, *given: Any) -> None:
        assert writer is not first.writer, "planted"
        original(writer, *given)

    with monkeypatch.context() as during:
        during.setattr(Writer, "_apply", take_in)
        begin(lab, {"a": SECRET, "b": b"kept"}, answers)
        lab.settle()
    assert first.state.broken and len(answers) == 1 and SECRET in everything_on(lab)
    assert lab.answer(lambda done: lab.broker.delete(first.name, done)) == (True,)
    assert SECRET not in everything_on(lab) and lab.bodies(second) == [b"kept"]
    transact(lab, b=b"more", c=b"more")
    lab.restart("power")
    assert lab.bodies(lab.queue("b")) == [b"kept", b"more"]


def test_journal_that_cannot_be_rewritten_refuses_a_purge_until_it_can(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _ = two(lab)
    transact(lab, a=SECRET, b=b"other")
    with monkeypatch.context() as during:

        def remove(path: str, original: Callable[[str], None] = lab.disk.remove) -> None:
            original(path)
            if path == journal.JOURNAL:
                raise OSError(errno.EIO, "no")

        during.setattr(lab.disk, "remove", remove)
        error, _ = lab.answer(first.purge)
        assert isinstance(error, Unavailable) and "journal" in str(error)
        answers: list[CurbstoneError | None] = []
        begin(lab, {"a": b"m", "b": b"m"}, answers)
        lab.settle()
        assert answers == [], "nobody knows whether a crash would leave the file"
    lab.pass_time(2 * journal.REPLACE_AGAIN_MS)
    assert answers == [None] and SECRET not in everything_on(lab)
    lab.restart("power")
    assert [lab.bodies(queue) for queue in two(lab)] == [[b"m"], [b"other", b"m"]]


@pytest.mark.parametrize("how", ["power", "kill"])
def test_crash_at_any_disk_call_keeps_transactions_atomic_and_purges_done(how: str) -> None:
    is_over = False
    for crash_in in range(400):
        lab = Lab(seed=crash_in)
        first, _ = two(lab)
        lab.publish(first, "held")
        transact(lab, a=SECRET, b=b"other")
        lab.disk.crash_in = crash_in
        answers: list[CurbstoneError | None] = []
        purged: list[object] = []
        with suppress(Crash):
            begin(lab, {"a": b"1", "b": b"1"}, answers)
            first.purge(lambda error, _count, reported=purged: reported.append(error))  # type: ignore[misc]
            lab.host.turn()
            begin(lab, {"a": b"2", "b": b"2"}, answers)
            lab.settle()
        is_over = lab.disk.crash_in >= 0
        lab.disk.crash_in = -1
        assert set(answers) <= {None} and set(purged) <= {None}
        if purged:
            assert SECRET not in b"".join(bytes(inode.durable) for inode in lab.disk.durable_names.values())
        lab.restart(how)
        of_a, of_b = ([body for body in lab.bodies(queue) if len(body) == 1] for queue in two(lab))
        assert len(of_b) >= len(answers), f"crash in {crash_in}"
        assert of_b == [b"1", b"2"][: len(of_b)] and set(of_a) <= set(of_b), f"crash in {crash_in}"
        assert b"2" not in of_b or purged or of_a, f"crash in {crash_in}"
        if is_over:
            break
    assert is_over, "more calls than expected"


# --- the file is full


def test_full_journal_is_rewritten_with_pending_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MAX", 8000)
    lab = Lab()
    _, second = two(lab)
    failing = FailingFiles(lab, monkeypatch)
    failing.paths = (second.log.directory, "redo.")
    answers: list[CurbstoneError | None] = []
    begin(lab, {"a": b"kept", "b": b"kept"}, answers)
    lab.settle()
    done: list[CurbstoneError | None] = []
    for number in range(30):
        begin(lab, {"a": b"%d" % number * 300, "c": b"m"}, done)
        lab.settle()
    assert done == [None] * 30 and answers == []
    assert len(lab.disk.names[journal.JOURNAL].cache) <= 8000
    failing.paths = ()
    lab.restart("power")
    assert [lab.bodies(queue)[:1] for queue in two(lab)] == [[b"kept"]] * 2
    assert len(lab.bodies(lab.queue("c"))) == 30


def test_a_transaction_larger_than_the_journal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MAX", 8000)
    lab = Lab()
    two(lab)
    answers: list[CurbstoneError | None] = []
    begin(lab, {"a": b"x" * 9000, "b": b"m"}, answers)
    lab.settle()
    assert [type(error) for error in answers] == [Unavailable]
    transact(lab, a=b"m", b=b"m")
    assert [lab.bodies(queue) for queue in two(lab)] == [[b"m"]] * 2


def test_waiting_part_gets_room_while_others_publish(lab: Lab) -> None:
    queues = two(lab)
    answers: list[CurbstoneError | None] = []
    transaction = lab.broker.transaction()
    for queue in queues:
        transaction.publish(queue, message("part"))
    transaction.commit(answers.append)
    lab.host.turn()
    for queue in queues:
        queue.publish([message("behind")], lambda *_: None)
    lab.host.turn()
    lab.host.turn()
    assert not answers
    lab.settle()
    assert answers == [None] and [lab.bodies(queue) for queue in queues] == 2 * [[b"part", b"behind"]]
    assert [queue.log.room.reserved for queue in queues] == [0, 0]
