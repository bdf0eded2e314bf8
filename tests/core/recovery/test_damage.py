"""Damaged logs: never a wrong body, later good messages are served, it is reported, and no good file is removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from random import Random
from zlib import crc32

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.engine.log.format import SEGMENT_BYTES
from curbstone.core.errors import DataDirectoryError
from tests.kit.inode import Inode
from tests.kit.lab import Lab, Peer, message, numbered
from tests.kit.simulated import SimFile

SENT = [b"%d:" % number + bytes([65 + number]) * 40 for number in range(8)]


class DamagedLog:
    """A queue of a few commits, and the bytes of its newest segment to play with."""

    def __init__(self, *, settle: bool = True) -> None:
        self.lab = Lab()
        queue = self.lab.queue()
        for first in range(0, 8, 2):
            self.lab.publish(queue, *SENT[first : first + 2])
        if settle:
            peer = Peer(self.lab, queue)
            peer.ack(3)
            peer.consumer.hold()
            peer.nack(5)
        self.path = queue.log.active.path
        self.end = queue.log.active.end
        self.good = bytes(self.lab.disk.names[self.path].cache)
        self.queue = queue
        self._files = self.lab.contents()

    def recovered(self, data: bytes) -> LocalQueue:
        """Return the queue as it is found with these bytes in its file, and all else as it was."""
        self.lab.load({**self._files, self.path: data})
        self.lab.restart("kill")
        queue = self.lab.reopened(self.queue)
        for found in self.lab.peek(queue):
            body = found.message.body
            assert body in SENT and found.message.seq == SENT.index(body) + 1, f"a corrupt message: {found.message!r}"
        return queue

    def seqs(self, queue: LocalQueue) -> list[int]:
        return [found.message.seq for found in self.lab.peek(queue)]


def flipped(data: bytes, index: int, bits: int) -> bytes:
    return data[:index] + bytes([data[index] ^ bits]) + data[index + 1 :]


def test_every_flipped_byte_is_reported_and_loses_at_most_its_commit() -> None:
    log_copy = DamagedLog(settle=False)
    all_seqs = list(range(1, 9))
    for index in range(SEGMENT_BYTES, log_copy.end):
        queue = log_copy.recovered(flipped(log_copy.good, index, 1 << index % 8))
        lost = set(all_seqs) - set(log_copy.seqs(queue))
        assert lost in ({1, 2}, {3, 4}, {5, 6}, {7, 8}), f"byte {index}: lost {lost}"
        last = lost == {7, 8}
        assert queue.damaged or last, f"byte {index}: nothing is said of it"
        assert log_copy.path in log_copy.lab.disk.names
        assert log_copy.lab.publish(queue, SENT[0])[0] > 6


def test_flipped_byte_in_settles_or_releases_only_restores_messages() -> None:
    log_copy = DamagedLog()
    expected = {1, 2, 4, 5, 6, 7, 8}
    for index in range(SEGMENT_BYTES, log_copy.end, 3):
        queue = log_copy.recovered(flipped(log_copy.good, index, 0x10))
        found = set(log_copy.seqs(queue))
        lost = expected - found
        assert lost <= {1, 2} or lost in ({4}, {5, 6}, {7, 8}), f"byte {index}"
        assert found - expected <= {3}


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_flipped_byte_in_a_segment_header_loses_nothing(bits: int) -> None:
    log_copy = DamagedLog(settle=False)
    for index in range(SEGMENT_BYTES):
        queue = log_copy.recovered(flipped(log_copy.good, index, bits))
        assert log_copy.seqs(queue) == list(range(1, 9)) and not queue.damaged


def test_a_log_cut_off_anywhere_keeps_all_whole_commits_and_continues() -> None:
    log_copy = DamagedLog(settle=False)
    for end in range(SEGMENT_BYTES, log_copy.end + 1):
        queue = log_copy.recovered(log_copy.good[:end])
        count = len(log_copy.seqs(queue))
        assert log_copy.seqs(queue) == list(range(1, count + 1)) and count % 2 == 0
        assert not queue.damaged
        assert log_copy.lab.publish(queue, SENT[count % 8]) == [count + 1]
        log_copy.lab.restart("power")
        queue = log_copy.lab.reopened(log_copy.queue)
        assert len(log_copy.lab.bodies(queue)) == count + 1


def test_zeros_after_a_cut_off_tail_are_no_damage() -> None:
    log_copy = DamagedLog(settle=False)
    for end in range(SEGMENT_BYTES, log_copy.end + 1, 7):
        queue = log_copy.recovered(log_copy.good[:end].ljust(len(log_copy.good), b"\0"))
        count = len(log_copy.seqs(queue))
        assert log_copy.seqs(queue) == list(range(1, count + 1)) and not queue.damaged


@pytest.mark.parametrize("size", [1, 4, 64])
def test_zeros_in_the_middle_lose_only_what_they_cover(size: int) -> None:
    log_copy = DamagedLog(settle=False)
    for start in range(SEGMENT_BYTES, log_copy.end - size, 61):
        hole = log_copy.good[:start] + bytes(size) + log_copy.good[start + size :]
        queue = log_copy.recovered(hole)
        found = set(log_copy.seqs(queue))
        if hole == log_copy.good:
            assert len(found) == 8
        else:
            assert len(found) >= 4
            assert queue.damaged or not {7, 8} <= found


@pytest.mark.parametrize("seed", range(60))
def test_random_garbage_never_becomes_a_message(seed: int) -> None:
    dice = Random(seed)
    log_copy = DamagedLog()
    data = bytearray(log_copy.good)
    for _ in range(dice.randrange(1, 5)):
        start = dice.randrange(SEGMENT_BYTES, log_copy.end)
        kind = dice.randrange(3)
        size = dice.choice([1, 16, 200])
        if kind == 0:
            data[start : start + size] = dice.randbytes(size)
        elif kind == 1:  # a block of the same file in another place
            other = dice.randrange(SEGMENT_BYTES, log_copy.end)
            data[start : start + size] = data[other : other + size]
        else:
            del data[start : start + size]
    queue = log_copy.recovered(bytes(data))
    log_copy.lab.publish(queue, SENT[7])


def test_damage_report_names_the_bytes_also_in_health() -> None:
    log_copy = DamagedLog(settle=False)
    queue = log_copy.recovered(flipped(log_copy.good, SEGMENT_BYTES + 90, 1))
    (text,) = queue.damaged
    assert log_copy.path in text and f"bytes {SEGMENT_BYTES} to" in text
    health = log_copy.lab.broker.health()
    assert health.ok and health.reasons == [f"queue default/q is damaged: {text}"]


def test_segment_without_header_is_kept_and_others_are_served(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    sent = numbered(30, 1000)
    lab.publish(queue, *sent)
    paths = [segment.path for segment in queue.log.segments]
    assert len(paths) > 3
    before = [found.message.body for found in lab.peek(queue)]
    lab.disk.names[paths[1]].cache[:SEGMENT_BYTES] = bytes(SEGMENT_BYTES)
    lab.restart("kill")
    queue = lab.reopened(queue)
    found = lab.bodies(queue)
    assert found and set(found) < set(before) and found[0] == before[0] and found[-1] == before[-1]
    assert any(paths[1] in text for text in queue.damaged) and paths[1] in lab.disk.names


def test_a_missing_segment_is_reported_and_the_others_are_served(lab: Lab) -> None:
    queue = lab.queue(cap=64 * 1024)
    lab.publish(queue, *numbered(30, 1000))
    paths = [segment.path for segment in queue.log.segments]
    before = lab.bodies(queue)
    del lab.disk.names[paths[1]]
    lab.restart("kill")
    queue = lab.reopened(queue)
    found = lab.bodies(queue)
    assert found[0] == before[0] and found[-1] == before[-1]
    assert any("segment 2 is missing" in text for text in queue.damaged)
    assert {path for path in paths if path != paths[1]} <= set(lab.disk.names)


def test_swapped_segments_are_kept_and_reported(lab: Lab) -> None:
    """They were taken for left-overs of a crash and removed, with all that was live in them, without a report."""
    queue = lab.queue(cap=64 * 1024)
    lab.publish(queue, *numbered(30, 1000))
    last = queue.state.next_seq
    one, other = (segment.path for segment in queue.log.segments[-2:])
    before = lab.bodies(queue)
    names = lab.disk.names
    names[one], names[other] = names[other], names[one]
    lab.disk.durable_names.update({one: names[one], other: names[other]})
    lab.restart("power")
    queue = lab.reopened(queue)
    assert len([text for text in queue.damaged if "it is set aside" in text]) == 2
    there = b"".join(bytes(inode.cache) for inode in lab.disk.names.values())
    assert all(body in there for body in before), "every message is still in some file"
    assert lab.publish(queue, "next") == [last], "their numbers are not used again"
    lab.restart("power")
    assert len(lab.reopened(queue).damaged) == 2


def test_a_segment_of_another_queue_is_kept_and_reported(lab: Lab) -> None:
    queue, other = lab.queue(), lab.queue("other")
    lab.publish(other, "not yours")
    path = queue.log.active.path.replace("01.seg", "07.seg")
    lab.disk.names[path] = lab.disk.durable_names[path] = lab.disk.names.pop(other.log.active.path)
    del lab.disk.durable_names[other.log.active.path]
    lab.restart("power")
    queue = lab.reopened(queue)
    assert [text for text in queue.damaged if "the header of another queue" in text]
    assert b"not yours" in lab.disk.names[path.replace(".seg", ".bad")].cache
    assert lab.bodies(queue) == []


def test_damage_that_appears_while_running_is_reported_and_the_rest_is_delivered() -> None:
    lab = Lab(cap=8 << 20)
    queue = lab.queue()
    for _ in range(6):
        lab.publish(queue, *numbered(100, 10_000))
    lab.restart()
    queue = lab.reopened(queue)
    assert not queue.damaged
    path = queue.log.segments[0].path
    lab.disk.names[path].cache[200_000] ^= 1
    peer = Peer(lab, queue, auto=True)
    bodies = set(numbered(100, 10_000))
    assert queue.damaged and path in queue.damaged[0]
    assert 500 <= len(peer.received) < 600 and set(peer.bodies) <= bodies
    assert peer.seqs == sorted(peer.seqs)


def test_unreadable_messages_are_not_counted_as_ready() -> None:
    lab = Lab(cap=8 << 20)
    queue = lab.queue()
    lab.publish(queue, *numbered(100, 10_000))
    lab.restart()
    queue = lab.reopened(queue)
    lab.disk.names[queue.log.segments[0].path].cache[200_000] ^= 1
    Peer(lab, queue, auto=True)
    assert queue.damaged
    assert queue.counts()[:3] == (0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_stale_blocks_of_a_recycled_file_are_never_taken_for_messages(seed: int) -> None:
    """Files go round and round; old and new batches have the same layout, so old ones would fit in."""
    lab = Lab(seed=seed)
    queue = lab.queue(cap=64 * 1024)
    dice = Random(seed)
    for turn in range(dice.randrange(100, 130)):
        lab.publish(queue, b"%d" % turn * 300)
        if turn % 4 != 3 or len(lab.bodies(queue)) > 10:
            lab.pop(queue)
    lab.publish(queue, "the last commit")
    expected = [(found.message.seq, found.message.body) for found in lab.peek(queue)]
    active = queue.log.active
    cache = lab.disk.names[active.path].cache
    if dice.random() < 0.5:  # the last commit is torn: only its beginning is new, what follows is of an earlier life
        cache[active.end - dice.randrange(1, 50) : active.end] = b""
    lab.restart("kill")
    queue = lab.reopened(queue)
    found = [(peeked.message.seq, peeked.message.body) for peeked in lab.peek(queue)]
    assert found in (expected, expected[:-1])
    assert not queue.damaged


def test_a_file_whose_reuse_failed_on_a_full_disk_is_not_reported_as_damage(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept the header of the segment that it should have become, and a kill after its next renaming left it so."""
    queue = lab.queue(cap=64 * 1024)
    write, errors = SimFile.write, [errno.EIO, errno.ENOSPC]
    spare: list[Inode] = []

    def fail(file: SimFile, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        if errors and offset == 0 and file._inode in spare and len(b"".join(buffers)) > SEGMENT_BYTES:
            error = errors.pop()
            if error == errno.ENOSPC:
                write(file, 0, [b"".join(buffers)[:SEGMENT_BYTES]])
            raise OSError(error, os.strerror(error))
        write(file, offset, buffers)

    monkeypatch.setattr(SimFile, "write", fail)
    for turn in range(400):
        queue.publish([message(b"%d" % turn * 300)], lambda *_: None)
        lab.settle()
        if not errors:
            break
        lab.pop(queue)
        lab.pass_time(1500)
        if queue.log._spare is not None and not spare:
            spare.append(lab.disk.names[queue.log._spare.path])
    assert not errors
    lab.restart("kill")
    assert not lab.reopened(queue).damaged


def test_the_newer_format_of_another_version_is_refused_and_nothing_is_touched() -> None:
    log_copy = DamagedLog()
    half = SEGMENT_BYTES // 2
    header = bytearray(log_copy.good[:half])
    header[8:12] = (9).to_bytes(4, "little")
    header[-4:] = crc32(header[:-4]).to_bytes(4, "little")
    log_copy.lab.disk.names[log_copy.path].cache[:SEGMENT_BYTES] = header * 2
    files = log_copy.lab.files(log_copy.queue)
    with pytest.raises(DataDirectoryError, match="log format 9 is newer"):
        log_copy.lab.start(0)
    assert log_copy.lab.files(log_copy.queue) == files


def test_damaged_queue_still_accepts_and_delivers() -> None:
    lab, queue = with_a_damaged_first_commit()
    left = lab.bodies(queue)
    assert queue.damaged and 5 <= len(left) < 10 and left[-5:] == numbered(5, 1000)
    for number in range(5):
        lab.publish(queue, b"%d" % number)
    lab.restart("kill")
    assert lab.pop_all(lab.reopened(queue)) == [*left, *(b"%d" % number for number in range(5))]


def test_a_damaged_segment_is_kept_for_repair_when_all_else_in_it_is_settled() -> None:
    lab, queue = with_a_damaged_first_commit()
    path = queue.log.segments[0].path
    lab.pop_all(queue)
    for body in numbered(20, 1000):
        lab.publish(queue, body)
        lab.pop(queue)
    assert path.removesuffix(".seg") + ".bad" in lab.disk.names  # set aside, no part of the log


@pytest.mark.parametrize("tried", [False, True])
def test_unreadable_stretch_does_not_retain_its_segment(lab: Lab, queue: LocalQueue, tried: bool) -> None:
    """It was never copied, so its segment never went, and what was settled behind it never made room."""
    for body in numbered(3, 60_000):
        lab.publish(queue, body)
    if tried:
        peer = Peer(lab, queue, window=1)
        peer.nack(1, delay_ms=60_000)
        peer.close()
    lab.restart()
    queue = lab.reopened(queue)
    path = queue.log.segments[0].path
    lab.disk.names[path].cache[SEGMENT_BYTES + 500] ^= 1
    assert lab.bodies(queue) == numbered(3, 60_000)[1:] and queue.damaged
    for body in numbered(40, 60_000):
        lab.publish(queue, body)
        lab.pop(queue)
    assert queue.log.segments[0].path != path
    assert queue.counts()[:3] == (2, 0, 0)


def with_a_damaged_first_commit() -> tuple[Lab, LocalQueue]:
    lab = Lab()
    queue = lab.queue(cap=128 * 1024)
    lab.publish(queue, *numbered(5, 1000))
    lab.publish(queue, *numbered(5, 1000))
    lab.disk.names[queue.log.segments[0].path].cache[SEGMENT_BYTES + 500] ^= 1
    lab.restart("kill")
    return lab, lab.reopened(queue)
