"""Segments whose header is lost, and files in the place of other segments: the log is read, and no message goes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.commit import segment_path
from curbstone.core.engine.log.format import ENTRY_BYTES, SEGMENT_BYTES, decode_batch_header
from curbstone.core.transactions.records import encode_part
from curbstone.core.wal.replay import redo_names
from tests.core.recovery.test_damage import SENT, DamagedLog
from tests.kit.lab import Lab, message, numbered
from tests.kit.simulated import SimFile


def lose_header(lab: Lab, path: str) -> None:
    inode = lab.disk.names[path]
    inode.cache[:SEGMENT_BYTES] = inode.durable[:SEGMENT_BYTES] = bytes(SEGMENT_BYTES)


def put_file(lab: Lab, path: str, data: bytes) -> None:
    """Write a file durably."""
    file = lab.disk.open(path, create=True)
    file.write(0, [data])
    file.sync()
    lab.disk.sync_dir(path.rpartition("/")[0])


def filled(lab: Lab) -> LocalQueue:
    """Return a queue with many segments, each of several commits."""
    queue = lab.queue(cap=64 * 1024)
    for body in numbered(60, 400):
        lab.publish(queue, body)
    assert len(queue.log.segments) > 6
    return queue


def test_the_only_segment_without_its_header_loses_nothing() -> None:
    log = DamagedLog(settle=False)
    queue = log.recovered(bytes(SEGMENT_BYTES) + log.good[SEGMENT_BYTES:])
    assert log.seqs(queue) == list(range(1, 9))
    assert queue.damaged == [f"{log.path}: its header does not check; its commits do, and are read"]
    assert log.lab.publish(queue, "next") == [9]


@pytest.mark.parametrize(("index", "gap"), [(3, 0), (3, 1), (2, 1)])
def test_report_of_a_lost_header_names_the_gap_before_its_segment(lab: Lab, index: int, gap: int) -> None:
    queue = filled(lab)
    paths = [segment.path for segment in queue.log.segments]
    lose_header(lab, paths[index])
    for path in paths[index - gap : index]:
        del lab.disk.names[path]
    lab.restart("kill")
    (text,) = lab.reopened(queue).damaged
    hidden = f"; which segments lay between it and segment {index - gap} is not known" if gap else ""
    assert text == f"{paths[index]}: its header does not check; its commits do, and are read{hidden}"


def test_a_transaction_is_completed_in_a_log_whose_header_is_lost(lab: Lab) -> None:
    """The number of the last transaction in a log is in its header, too."""
    queues = [lab.queue(name) for name in ("a", "b")]
    for body in ("one", "two"):
        for queue in queues:
            lab.publish(queue, body)
    answers: list[object] = []
    parts = {queue.log.uid: encode_part(queue.log.uid, [message("part")], [], []) for queue in queues}
    lab.broker.tx_log.write(parts, answers.append)
    lab.settle()
    assert answers == [None]
    lose_header(lab, queues[0].log.active.path)
    lab.restart("kill")
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == [[b"one", b"two", b"part"]] * 2


def test_what_is_published_behind_a_lost_header_survives_a_power_cut(lab: Lab) -> None:
    """A redo file can't be replayed into a segment whose header does not check."""
    queues = [lab.queue(name) for name in ("a", "b", "c")]
    for body in ("one", "two"):
        for queue in queues:
            lab.publish(queue, body)
    lab.broker.disk.catch_up()
    for queue in queues:
        lose_header(lab, queue.log.active.path)
    lab.restart("kill")
    answers: list[object] = []
    for queue in queues:
        lab.reopened(queue).publish([message("new")], lambda error, *_: answers.append(error))
    lab.settle()
    assert answers == [None] * 3 and redo_names(lab.disk) == []
    lab.restart("power")
    assert [lab.bodies(lab.reopened(queue)) for queue in queues] == [[b"one", b"two", b"new"]] * 3


def cut_behind_its_first_commit(lab: Lab, path: str) -> None:
    data = lab.disk.names[path].cache
    header = decode_batch_header(bytes(data), SEGMENT_BYTES)
    assert header is not None and len(data) > SEGMENT_BYTES + header.length
    del data[SEGMENT_BYTES + header.length :]


def lose_all(lab: Lab, path: str) -> None:
    data = lab.disk.names[path].cache
    data[:] = Random(1).randbytes(len(data))


@pytest.mark.parametrize("harm", [lose_header, cut_behind_its_first_commit, lose_all])
def test_a_segment_that_lost_its_header_or_end_is_kept_for_repair(lab: Lab, harm: Callable[[Lab, str], None]) -> None:
    queue = filled(lab)
    path = queue.log.segments[0].path
    harm(lab, path)
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert len(queue.damaged) == 1
    lab.pop_all(queue)
    for body in numbered(20, 1000):
        lab.publish(queue, body)
        lab.pop(queue)
    assert path not in lab.disk.names and path.replace(".seg", ".bad") in lab.disk.names


def test_the_only_segment_is_kept_if_it_has_the_name_of_another(
    lab: Lab, queue: LocalQueue, caplog: pytest.LogCaptureFixture
) -> None:
    lab.publish(queue, *numbered(3))
    path = segment_path(queue.log.directory, 3)
    names = lab.disk.names
    names[path] = lab.disk.durable_names[path] = names.pop(queue.log.active.path)
    del lab.disk.durable_names[queue.log.active.path]
    lab.restart("kill")
    queue = lab.reopened(queue)
    assert queue.damaged == [f"{path} has the header of segment 1; it is set aside"]
    assert numbered(3)[2] in lab.disk.names[path.replace(".seg", ".bad")].cache
    assert f"{queue.log.directory}: there is no log that can be read; it begins anew" in caplog.text
    assert lab.publish(queue, "next") == [4] and queue.log.active.number == 4


def recycled(lab: Lab, queue: LocalQueue) -> bytes:
    """Return a file whose first segment was dropped."""
    return bytes(lab.disk.names[queue.log.segments[0].path].cache)


def with_a_damaged_header(_lab: Lab, _queue: LocalQueue) -> bytes:
    return Random(0).randbytes(SEGMENT_BYTES) + bytes(1000)


def with_zeros_for_a_header(_lab: Lab, _queue: LocalQueue) -> bytes:
    return bytes(SEGMENT_BYTES) + Random(0).randbytes(1000)


@pytest.mark.parametrize("left", [recycled, with_a_damaged_header, with_zeros_for_a_header])
def test_file_of_a_creation_that_a_crash_has_undone_is_removed(
    lab: Lab, left: Callable[[Lab, LocalQueue], bytes]
) -> None:
    queue = filled(lab)
    data = left(lab, queue)
    for body in numbered(60, 400):
        lab.pop(queue)
        lab.publish(queue, body)
    assert queue.log.segments[0].number > 1
    expected = lab.bodies(queue)
    path = segment_path(queue.log.directory, queue.log.active.number + 5)
    lab.shutdown()
    put_file(lab, path, data)
    lab.start(lab.host.wall_ms())
    queue = lab.reopened(queue)
    assert path not in lab.disk.names and not queue.damaged
    assert lab.bodies(queue) == expected


def test_ids_skipped_for_an_unreadable_segment_are_no_more_than_its_messages(lab: Lab, queue: LocalQueue) -> None:
    lab.publish(queue, *numbered(3))
    inode = lab.disk.names[queue.log.active.path]
    inode.cache[:] = Random(1).randbytes(len(inode.cache))
    lab.restart("kill")
    (seq,) = lab.publish(lab.reopened(queue), "next")
    assert 3 < seq <= 1 + len(inode.cache) // ENTRY_BYTES


@pytest.mark.parametrize("seed", range(4))
def test_sealed_segments_are_closed_after_a_start(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with thousands of segments would run out of descriptors. The seed decides how the start can sync."""
    lab = Lab(seed=seed)
    queue = filled(lab)
    lose_header(lab, queue.log.segments[2].path)
    sealed = [segment.path for segment in queue.log.segments[:-1]]
    opened: list[SimFile] = []
    open_now = lab.disk.open

    def noting(path: str, *, create: bool = False) -> SimFile:
        file = open_now(path, create=create)
        if path in sealed:
            opened.append(file)
        return file

    monkeypatch.setattr(lab.disk, "open", noting)
    lab.restart("kill")
    assert opened and not any(file._open for file in opened)


def test_first_message_id_is_1_beside_a_file_of_another_queue(lab: Lab, queue: LocalQueue) -> None:
    other = lab.queue("other")
    lab.publish(other, *numbered(5))
    path = segment_path(queue.log.directory, 7)
    put_file(lab, path, bytes(lab.disk.names[other.log.active.path].cache))
    lab.restart("kill")
    assert lab.publish(lab.reopened(queue), SENT[0]) == [1]
