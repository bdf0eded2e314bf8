"""A disk that fails: nothing is confirmed that is not there, and the queue returns."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.names import queue_name
from tests.core.staging.lab import stage
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.simulated import SimDisk, SimFile


class FailingSyncs:
    """The next `count` syncs of a disk fail, after some that do not; it stands in for the disk's dice."""

    def __init__(self, disk: SimDisk, count: int, *, after: int = 0) -> None:
        self.left = count
        self._before = after
        disk.eio_chance = 1.0
        disk.sync_fails = self._fails  # type: ignore[method-assign]

    def _fails(self) -> bool:
        self._before -= 1
        if self._before >= 0:
            return False
        self.left -= 1
        return self.left >= 0


def used(lab: Lab) -> int:
    return sum(len(inode.cache) for inode in lab.disk.names.values())


def start() -> tuple[Lab, LocalQueue, Peer]:
    """A queue that holds one message, delivered and unsettled."""
    lab = Lab()
    queue = lab.queue()
    lab.publish(queue, "first")
    return lab, queue, Peer(lab, queue, window=1)


def test_failed_sync_confirms_nothing_and_starts_a_new_segment() -> None:
    lab, queue, _ = start()
    segment = queue.log.active.path
    FailingSyncs(lab.disk, 1)
    ((error, _, count),) = lab.publish_answers(queue, [message("lost"), message("too")])
    assert isinstance(error, Unavailable) and count == 2
    assert str(error) == "the log can't be written: Input/output error", "its file and errno are for the log"
    assert lab.publish(queue, "second")
    assert queue.log.active.path != segment
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"first", b"second"]
    assert not lab.reopened(queue).damaged


def test_an_ack_whose_sync_failed_is_not_confirmed_but_takes_effect_later() -> None:
    lab, queue, peer = start()
    FailingSyncs(lab.disk, 1)
    ((error,),) = [lab.answer(lambda done: peer.consumer.ack([1], done))]
    assert isinstance(error, Unavailable)
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == []


def test_a_nack_whose_sync_failed_keeps_its_tries() -> None:
    lab, queue, peer = start()
    peer.consumer.hold()
    FailingSyncs(lab.disk, 1)
    (error,) = lab.answer(lambda done: peer.consumer.nack([1], on_done=done))
    assert isinstance(error, Unavailable)
    lab.restart("power")
    assert [found.tries for found in lab.peek(lab.reopened(queue))] == [1]


def test_the_tries_of_messages_that_were_delivered_again_are_written_after_their_commit_failed() -> None:
    lab, queue, peer = start()
    peer.nack(1, delay_ms=1000)
    FailingSyncs(lab.disk, 1)
    lab.pass_time(1000)
    assert peer.tries == [0, 1]
    lab.restart("power")
    assert [found.tries for found in lab.peek(lab.reopened(queue))] == [2]


def test_requeue_during_a_failing_commit_keeps_its_state(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, "a", "b", "c")
    peer = Peer(lab, queue, window=3)
    peer.nack(1, 2, 3, delay_ms=1000)
    FailingSyncs(lab.disk, 1)
    lab.host.pass_time(1000)
    while peer.tries != [0, 0, 0, 1, 1, 1]:
        assert lab.host.turn()
    assert queue.writer.is_busy, "the commit that says so is under way"
    assert lab.answer(lambda done: peer.consumer.nack([1, 2, 3], delay_ms=60_000, on_done=done)) == (None,)
    lab.restart("power")
    assert [(found.tries, found.state) for found in lab.peek(lab.reopened(queue))] == [(2, "delayed")] * 3


def test_transaction_with_a_failed_sync_releases_its_claims() -> None:
    lab, queue, peer = start()
    transaction = lab.broker.transaction()
    transaction.ack(peer.consumer, [1])
    transaction.publish(queue, message("m"))
    FailingSyncs(lab.disk, 1)
    (error,) = lab.answer(transaction.commit)
    assert isinstance(error, Unavailable)
    assert list(peer.consumer.unsettled) == [1] and lab.bodies(queue) == [b"first"]
    assert lab.publish(queue, "second")  # in a new segment, which says where the one before ends
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"first", b"second"]


def test_disk_that_keeps_failing_refuses_publishes_and_fails_health() -> None:
    lab, queue, peer = start()
    lab.disk.eio_chance = 1.0
    for _ in range(3):
        ((error, _, _),) = lab.publish_answers(queue, [message("m")])
        assert isinstance(error, Unavailable)
    health = lab.broker.health()
    assert not health.ok and "default/q" in health.reasons[0] and "Input/output error" in health.reasons[0]
    (error,) = lab.answer(lambda done: peer.consumer.ack([1], done))
    assert isinstance(error, Unavailable) and list(peer.consumer.unsettled) == [1]
    (error, _) = lab.answer(queue.purge)
    assert isinstance(error, Unavailable)
    lab.disk.eio_chance = 0.0
    lab.pass_time(5000)
    assert lab.broker.health().ok
    peer.ack(1)
    lab.publish(queue, "after")
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == [b"after"]


@pytest.mark.parametrize("failures", range(1, 8))
def test_confirmed_messages_survive_a_power_cut_after_many_failed_syncs(failures: int) -> None:
    lab, queue, _ = start()
    confirmed = [b"first"]
    refused: set[bytes] = set()
    failing = FailingSyncs(lab.disk, failures)
    for number in range(40):
        body = b"%d" % number
        ((error, _, _),) = lab.publish_answers(queue, [message(body)])
        if error is None:
            confirmed.append(body)
        else:
            refused.add(body)
        lab.pass_time(300)
    assert failing.left < 0 and refused
    lab.restart("power")
    queue = lab.reopened(queue)
    assert lab.bodies(queue) == confirmed and not queue.damaged


def test_remains_of_failed_commits_count_while_they_exist(
    lab: Lab, queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt removed what the one before had left, and counted it for ever: the queue seemed to be full."""
    lab.publish(queue, "first")
    meta = len(lab.files(queue)[f"{queue.log.directory}/meta"])

    def fails(_self: SimFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(SimFile, "sync", fails)
        for _ in range(10):
            lab.publish_answers(queue, [message("second")])
            lab.pass_time(1000)
            assert queue.log.bytes == lab.held(queue) - meta
        assert lab.broker.alarms.is_disk_failing
    lab.pass_time(1000)
    assert not lab.broker.alarms.is_disk_failing
    lab.publish(queue, "third")
    assert queue.log.bytes == lab.held(queue) - meta


def test_failing_queue_does_not_affect_others() -> None:
    lab, queue, _ = start()
    other = lab.queue("other")
    directory = queue.log.directory
    bad = {id(inode) for path, inode in lab.disk.names.items() if path.startswith(directory)}
    assert bad
    lab.disk.eio_chance = 1.0
    lab.publish_answers(queue, [message("m")])
    lab.disk.eio_chance = 0.0
    assert lab.publish(other, "fine") == [1]


# --- creating


@pytest.mark.parametrize("after", range(4))
def test_failed_creation_refuses_waiting_publishes_and_leaves_no_trace(lab: Lab, after: int) -> None:
    FailingSyncs(lab.disk, 1, after=after)
    name = queue_name("new")
    queue = lab.broker.ensure(name)
    answers: list[Any] = []
    closed: list[CurbstoneError] = []
    queue.publish([message("m")], lambda *given: answers.append(given))
    queue.subscribe(lambda _: None, window=1, on_closed=closed.append)
    lab.broker.declare(name, {"ttl": 5}, lambda error: answers.append((error, 0, 0)))
    lab.settle()
    assert len(answers) == 2 and len(closed) == 1
    assert all(isinstance(error, CurbstoneError) for error, *_ in answers)
    assert lab.broker.queues() == []
    lab.publish(lab.broker.ensure(name), "now")
    lab.restart("power")
    assert [lab.bodies(queue) for queue in lab.broker.queues()] == [[b"now"]]


def test_disk_failure_before_there_is_any_queue_is_reported_until_it_works(lab: Lab) -> None:
    lab.disk.eio_chance = 1.0
    (error,) = lab.answer(lambda done: lab.broker.declare(queue_name("new"), {}, done))
    assert isinstance(error, Unavailable)
    health = lab.broker.health()
    assert not health.ok and "Input/output error" in health.reasons[0] and "queues" in health.reasons[0]
    lab.pass_time(5000)
    assert not lab.broker.health().ok
    lab.disk.eio_chance = 0.0
    lab.pass_time(2000)
    assert lab.broker.health().ok, "nobody asks for a queue of a server that is not ready"
    lab.publish(lab.queue("new"), "m")


@pytest.mark.parametrize("matter", ["its options", "journal", "staged"])
def test_any_disk_failure_is_reported_by_health(matter: str) -> None:
    lab, queue, peer = start()
    other = lab.queue("other")
    lab.disk.eio_chance = 1.0
    if matter == "its options":
        lab.answer(lambda done: lab.broker.declare(queue.name, {"ttl": 5}, done))
    elif matter == "journal":
        transaction = lab.broker.transaction()
        transaction.publish(queue, message("m"))
        transaction.publish(other, message("m"))
        transaction.commit(lambda _error: None)
        lab.settle()
    else:
        with pytest.raises(Unavailable):
            stage(lab, "t", "0-0", {"q": [message("m")]})
    assert any(matter in reason for reason in lab.broker.health().reasons)
    lab.disk.eio_chance = 0.0
    lab.pass_time(5000)
    assert lab.broker.health().ok


def test_transaction_refused_by_a_full_disk_is_absent_after_a_crash() -> None:
    lab, queue, _ = start()
    other = lab.queue("other")
    lab.disk.capacity = used(lab) + 100
    transaction = lab.broker.transaction()
    transaction.publish(queue, message(b"x" * 500))
    transaction.publish(other, message(b"x" * 500))
    (error,) = lab.answer(transaction.commit)
    assert error is not None
    lab.restart("kill")
    assert lab.bodies(lab.reopened(queue)) == [b"first"] and lab.bodies(lab.reopened(other)) == []


def test_options_that_cannot_be_stored_are_reported() -> None:
    lab, queue, _ = start()
    FailingSyncs(lab.disk, 1)
    (error,) = lab.answer(lambda done: lab.broker.declare(queue.name, {"ttl": 5}, done))
    assert isinstance(error, Unavailable)
    lab.disk.eio_chance = 0.0
    (error,) = lab.answer(lambda done: lab.broker.declare(queue.name, {"lease": 5}, done))
    assert error is None
    lab.restart("power")
    assert lab.reopened(queue).options.lease == 5


# --- sync modes


def sync_count(lab: Lab) -> list[int]:
    """Count the syncs of files from now on."""
    counted: list[int] = []
    original = lab.disk.sync_fails

    def count() -> bool:
        counted.append(1)
        return original()

    lab.disk.sync_fails = count  # type: ignore[method-assign]
    return counted


def test_always_syncs_before_each_confirm() -> None:
    lab = Lab(sync="always")
    queue = lab.queue()
    counted = sync_count(lab)
    for body in numbered(10):
        lab.publish(queue, body)
    assert len(counted) == 10


def test_interval_syncs_once_per_interval_and_only_after_changes() -> None:
    lab = Lab(sync="interval:100")
    queue = lab.queue()
    lab.pass_time(1000)
    counted = sync_count(lab)
    for body in numbered(10):
        lab.publish(queue, body)
    assert len(counted) == 0
    lab.pass_time(100)
    assert len(counted) == 1
    lab.pass_time(1000)
    assert len(counted) == 1
    lab.restart("power")
    assert lab.bodies(lab.reopened(queue)) == numbered(10)


def test_sync_due_during_a_commit_follows_it() -> None:
    lab = Lab(sync="interval:100")
    queue = lab.queue()
    lab.publish(queue, "a")
    queue.publish([message("b")], lambda *_: None)
    while lab.host.turn():
        pass
    assert queue.writer.is_busy
    before = lab.broker.commits.syncs
    lab.host.pass_time(100)
    assert lab.broker.commits.syncs == before, "the commit may begin a new segment"
    lab.settle()
    assert lab.broker.commits.syncs == before + 1


def test_sync_mode_never_does_not_sync() -> None:
    lab = Lab(sync="never")
    queue = lab.queue()
    counted = sync_count(lab)
    for body in numbered(10):
        lab.publish(queue, body)
    lab.pass_time(10_000)
    assert len(counted) == 0
    lab.restart("kill")
    assert lab.bodies(lab.reopened(queue)) == numbered(10)


@pytest.mark.parametrize("sync", ["interval:100", "never"])
def test_a_clean_shutdown_loses_nothing_in_any_mode(sync: str) -> None:
    lab = Lab(sync=sync)
    queue = lab.queue()
    lab.publish(queue, *numbered(10))
    lab.shutdown()
    lab.start(lab.host.wall_ms())
    assert lab.bodies(lab.reopened(queue)) == numbered(10)


@pytest.mark.parametrize("sync", ["interval:100", "never"])
@pytest.mark.parametrize("seed", range(20))
def test_power_cut_without_sync_loses_only_the_newest(sync: str, seed: int) -> None:
    lab = Lab(sync=sync, seed=seed, cap=64 * 1024)
    queue = lab.queue()
    sent = numbered(150, 200)
    for body in sent:
        lab.publish(queue, body)
    lab.restart("power")
    queue = lab.reopened(queue)
    found = lab.bodies(queue)
    assert set(found) <= set(sent) and found == sorted(found, key=sent.index)
    assert lab.publish(queue, "continues")


def test_failed_interval_sync_is_reported_and_starts_a_new_segment() -> None:
    lab = Lab(sync="interval:100")
    queue = lab.queue()
    lab.publish(queue, "a")
    segment = queue.log.active.path
    FailingSyncs(lab.disk, 1)
    lab.pass_time(100)
    lab.publish(queue, "b")
    assert queue.log.active.path != segment
