"""Queues' directories: a name is used again while the old directory goes, with crashes and a disk that refuses."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import NoSuchQueue, Unavailable
from curbstone.core.names import queue_name
from curbstone.core.values import Outcome, Published
from tests.kit.lab import Lab, Peer, message
from tests.kit.simulated import Crash

Q = queue_name("q")


def directories(lab: Lab) -> list[str]:
    """Return the names of the directories that are there for queues."""
    return lab.disk.list_dir("queues")


class Stuck:
    """Lets one kind of call of the disk fail for as long as asked."""

    def __init__(self, lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        self.is_failing = True
        original: Callable[..., Any] = getattr(lab.disk, call)

        def failing(*given: Any) -> Any:
            if self.is_failing:
                raise OSError(errno.EIO, "Input/output error")
            return original(*given)

        monkeypatch.setattr(lab.disk, call, failing)


# --- deleted and made again, and a crash


def noting(confirmed: list[bytes], body: bytes) -> Published:
    """Return what notes a body when its publish is confirmed."""
    return lambda error, _first, _count: None if error else confirmed.append(body)


def go_on_until_a_crash(lab: Lab, steps: int) -> None:
    """Do what waits, in any order; the machine stops at the call that is due, or after that many steps."""
    try:
        for _ in range(steps):
            if not lab.host.turn() and not lab.host.work():
                lab.host.pass_time(5)
    except Crash:
        pass


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_queue_deleted_and_made_again_is_one_queue_after_a_crash_at_any_call(how: str) -> None:
    """Both directories could be left, and then the server did not start."""
    for crash_in in range(40):
        lab = Lab(seed=crash_in)
        old = lab.queue()
        lab.publish(old, "old")
        confirmed: list[bytes] = []
        deleted: list[object] = []
        old.publish([message("old")], lambda *_: None)  # a commit is under way
        lab.host.turn()
        lab.broker.delete(Q, deleted.append)
        for number in range(3):
            body = b"new %d" % number
            lab.broker.ensure(Q).publish([message(body)], noting(confirmed, body))
        lab.disk.crash_in = crash_in
        go_on_until_a_crash(lab, 200)
        lab.disk.crash_in = -1
        lab.restart(how)
        found = [lab.bodies(queue) for queue in lab.broker.queues()]
        assert len(found) <= 1 and not lab.broker.left
        bodies = found[0] if found else []
        assert set(confirmed) <= set(bodies), "confirmed, and lost"
        assert {body.partition(b" ")[0] for body in bodies} in ({b"old"}, {b"new"}, set()), "old and new in one queue"
        if deleted == [True]:
            assert b"old" not in bodies


def test_leases_of_a_deleted_queue_settle_nothing_in_the_new_one(lab: Lab) -> None:
    old = lab.queue()
    (seq,) = lab.publish(old, "old")
    (lease,) = lab.lease(old)
    peer = Peer(lab, old)
    lab.broker.delete(Q, lambda _: None)
    assert lab.publish(lab.broker.ensure(Q), "new") == [seq]
    lab.pass_time(100)
    for _ in range(2):
        new = lab.broker.get(Q)
        _, settled, stale = lab.answer(partial(new.settle_leases, [lease.token], Outcome.ACK))
        assert (settled, stale) == (0, [lease.token])
        assert new.parse_id(old.message_id(seq)) is None
        assert lab.bodies(new) == [b"new"]
        lab.restart("power")
    assert [type(error) for error in peer.closed_with] == [NoSuchQueue]


@pytest.mark.parametrize("times", [2, 3, 7])
def test_a_name_is_deleted_and_used_again_many_times_in_one_turn(lab: Lab, times: int) -> None:
    """The second removal and the creation before it waited for each other; the name was dead until the restart."""
    deleted: list[object] = []
    refused: list[object] = []
    stored: list[object] = []
    for number in range(times):
        queue = lab.broker.ensure(Q)
        queue.publish([message(b"%d" % number)], lambda error, *_: refused.append(type(error)))
        lab.broker.delete(Q, deleted.append)
    lab.broker.ensure(Q).publish([message("new")], lambda error, *_: stored.append(error))
    lab.pass_time(1000)
    assert (deleted, refused, stored) == ([True] * times, [NoSuchQueue] * times, [None])
    assert directories(lab) == [lab.broker.get(Q).log.directory.removeprefix("queues/")]
    lab.broker.delete(Q, deleted.append)
    lab.broker.ensure(Q)
    lab.broker.delete(Q, deleted.append)
    lab.restart("shutdown")
    assert lab.broker.queues() == [] and deleted == [True] * (times + 2)


# --- a disk that refuses


@pytest.mark.parametrize("call", ["rename", "sync_dir"])
def test_failed_deletion_is_reported_and_retried(lab: Lab, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was confirmed, and after a restart the messages were back."""
    lab.publish(lab.queue(), "old")
    stuck = Stuck(lab, monkeypatch, call)
    (refused,) = lab.answer(lambda done: lab.broker.delete(Q, done))
    assert isinstance(refused, Unavailable) and "queue default/q can't be removed" in str(refused)
    (refused,) = lab.answer(lambda done: lab.broker.declare(Q, {}, done))
    assert isinstance(refused, Unavailable), "two directories of one name must never be"
    (refused,) = lab.answer(lambda done: lab.broker.delete(Q, done))
    assert isinstance(refused, Unavailable), "whoever deletes it again waits for that, too"
    stuck.is_failing = False
    lab.pass_time(1000)
    assert directories(lab) == []
    assert lab.answer(lambda done: lab.broker.delete(Q, done)) == (False,)
    lab.publish(lab.queue(), "new")
    lab.restart("power")
    assert lab.bodies(lab.broker.get(Q)) == [b"new"]


def test_calls_after_a_failed_deletion_succeed_immediately(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.publish(lab.queue(), "old")
    stuck = Stuck(lab, monkeypatch, "rename")
    lab.answer(lambda done: lab.broker.delete(Q, done))
    stuck.is_failing = False
    assert lab.answer(lambda done: lab.broker.delete(Q, done)) == (True,)
    assert directories(lab) == []
    lab.pass_time(2000)  # when it would have been tried again


def test_undeletable_files_are_reported_and_removed_later(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.publish(lab.queue(), "old")
    stuck = Stuck(lab, monkeypatch, "remove_tree")
    (refused,) = lab.answer(lambda done: lab.broker.delete(Q, done))
    assert isinstance(refused, Unavailable) and "is deleted, but not all of its files are" in str(refused)
    lab.publish(lab.queue(), "new")  # the old one can't return
    lab.restart("kill")
    assert lab.bodies(lab.broker.get(Q)) == [b"new"], "a start is not kept from serving the others"
    stuck.is_failing = False
    lab.restart("kill")
    assert lab.bodies(lab.broker.get(Q)) == [b"new"] and len(directories(lab)) == 1


def test_remains_of_a_failed_creation_do_not_return(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck(lab, monkeypatch, "sync_dir")
    (refused,) = lab.answer(lambda done: lab.broker.declare(Q, {}, done))
    assert isinstance(refused, Unavailable)
    assert lab.broker.queues() == []
    stuck.is_failing = False
    lab.pass_time(1000)
    assert directories(lab) == []


def test_stop_does_not_wait_for_a_failing_deletion(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.publish(lab.queue(), "old")
    Stuck(lab, monkeypatch, "rename")
    lab.answer(lambda done: lab.broker.delete(Q, done))
    lab.shutdown()
    (refused,) = lab.answer(lambda done: lab.broker.delete(Q, done))
    assert isinstance(refused, Unavailable)


# --- two directories of one name, as earlier versions could leave them


def two_of_one_name(lab: Lab) -> tuple[LocalQueue, LocalQueue]:
    """Return an old queue and a new one that were both on disk when the server ended."""
    old = lab.queue()
    lab.publish(old, "old")
    kept = {path: bytes(inode.cache) for path, inode in lab.disk.names.items() if path.startswith(old.log.directory)}
    lab.answer(lambda done: lab.broker.delete(Q, done))
    lab.pass_time(1000)
    new = lab.queue()
    lab.publish(new, "new")
    lab.shutdown()
    lab.disk.make_dir(old.log.directory)
    for path, data in kept.items():
        file = lab.disk.open(path, create=True)
        file.write(0, [data])
        file.sync()
    for directory in ("queues", old.log.directory):
        lab.disk.sync_dir(directory)
    return old, new


def test_newer_of_two_directories_of_one_queue_is_served_and_the_other_kept() -> None:
    """The server did not start."""
    for seed in range(6):  # which of the two comes first in the directory is chance
        lab = Lab(seed=seed)
        old, new = two_of_one_name(lab)
        for how in ("kill", "power"):
            lab.start(lab.host.wall_ms())
            assert [queue.uid for queue in lab.broker.queues()] == [new.uid]
            assert lab.bodies(lab.broker.get(Q)) == [b"new"]
            assert old.log.directory in lab.broker.health().reasons[0]
            lab.restart(how)
        there = [path for path in lab.disk.names if path.startswith(old.log.directory)]
        assert len(there) == 2, "none of it is removed"


def test_older_directory_is_not_served_after_the_newer_is_deleted(lab: Lab) -> None:
    two_of_one_name(lab)
    lab.start(lab.host.wall_ms())
    assert lab.answer(lambda done: lab.broker.delete(Q, done)) == (True,)
    lab.restart("power")
    assert lab.broker.queues() == [] and len(lab.broker.left) == 1


def begin_a_commit(lab: Lab) -> None:
    lab.named("q").publish([message("a")], lambda *_: None)


def begin_to_store_options(lab: Lab) -> None:
    lab.broker.declare(queue_name("q"), {"ttl": 5}, lambda _error: None)


@pytest.mark.parametrize("begin", [begin_a_commit, begin_to_store_options])
@pytest.mark.parametrize("fails", [False, True])
def test_deletion_continues_when_running_jobs_end(
    lab: Lab, queue: LocalQueue, begin: Callable[[Lab], None], fails: bool
) -> None:
    """It asked every 5 ms whether that had ended."""
    begin(lab)
    while lab.host.turn():
        pass
    assert queue.is_working
    answers: list[object] = []
    lab.broker.delete(queue.name, answers.append)
    if fails:
        lab.disk.capacity = 0
    lab.settle()  # no time passes
    assert answers == [True] and directories(lab) == []
