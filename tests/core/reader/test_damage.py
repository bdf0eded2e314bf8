"""Pages of a log that the disk has damaged since the start: what is left is read, and the rest is reported."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.options import MIB
from tests.core.reader.test_scan import page_of, seqs
from tests.kit.inode import Inode
from tests.kit.lab import Lab, Peer, numbered
from tests.kit.simulated import SimFile


def flipped_bit(inode: Inode, at: int, _monkeypatch: pytest.MonkeyPatch) -> None:
    inode.cache[at] ^= 1


def bad_sector(inode: Inode, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SimFile.read

    def read(file: SimFile, offset: int, size: int) -> bytes:
        if file._inode is inode and offset <= at < offset + size:
            raise OSError(errno.EIO, "Input/output error")
        return original(file, offset, size)

    monkeypatch.setattr(SimFile, "read", read)


@pytest.mark.parametrize("harm", [flipped_bit, bad_sector])
def test_page_skips_only_damaged_messages(
    lab: Lab,
    queue: LocalQueue,
    harm: Callable[[Inode, int, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until the next start all messages around them were refused, too."""
    for commit in range(3):
        lab.publish(queue, *[b"%d: " % commit + body for body in numbered(10, 1000)])
    lab.restart("kill")  # none of them is in memory
    queue = lab.reopened(queue)
    (inode,) = [lab.disk.names[segment.path] for segment in queue.log.segments]
    harm(inode, inode.cache.index(b"1: 3:"), monkeypatch)
    left = [*range(1, 11), *range(21, 31)]
    assert seqs(lab, queue) == (left, 31)
    assert seqs(lab, queue, limit=12) == (left[:12], 23)
    assert seqs(lab, queue, 5, limit=3) == ([5, 6, 7], 8)
    assert seqs(lab, queue, 12) == (left[10:], 31)
    assert "messages 11 to 20 (10) can't be read" in caplog.text
    assert queue.counts().rdy == 20
    assert lab.bodies(queue)[0] == b"0: 0:".ljust(1003, b"x")


@pytest.mark.parametrize("harm", [flipped_bit, bad_sector])
def test_page_serves_cached_messages_damaged_on_disk(
    lab: Lab, queue: LocalQueue, harm: Callable[[Inode, int, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the page was refused until these messages had left the memory."""
    for commit in range(3):
        lab.publish(queue, *[b"%d: " % commit + body for body in numbered(10, 1000)])
    peer = Peer(lab, queue, window=15)
    peer.consumer.nack([12], 3_600_000)
    peer.consumer.ack([14])
    peer.consumer.pause()
    (inode,) = [lab.disk.names[segment.path] for segment in queue.log.segments]
    harm(inode, inode.cache.index(b"1: 3:"), monkeypatch)
    left = [seq for seq in range(1, 31) if seq != 14]
    found, next_seq = page_of(lab, queue)
    assert ([seq for seq, _, _ in found], next_seq) == (left, 31)
    assert {seq: (body, tries) for seq, body, tries in found}[12] == (b"1: 1:".ljust(1003, b"x"), 1)
    assert seqs(lab, queue, limit=12) == (left[:12], 13)
    assert seqs(lab, queue, 12, limit=2) == ([12, 13], 15)


@pytest.mark.parametrize("harm", [flipped_bit, bad_sector])
def test_page_skips_any_number_of_damaged_places(
    harm: Callable[[Inode, int, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for the damage in its first places, five at most."""
    lab = Lab(cap=4 * MIB)
    queue = lab.queue()
    for commit in range(12):
        lab.publish(queue, b"%02d: damaged".ljust(70_000, b"x") % commit)
        lab.publish(queue, b"%02d: whole".ljust(70_000, b"x") % commit)
    lab.restart("kill")
    queue = lab.reopened(queue)
    for segment in queue.log.segments:
        inode = lab.disk.names[segment.path]
        for commit in range(4, 12):
            at = inode.cache.find(b"%02d: damaged" % commit)
            if at >= 0:
                harm(inode, at, monkeypatch)
    assert seqs(lab, queue) == ([*range(1, 9), *range(10, 25, 2)], 25)
    assert queue.counts().rdy == 16
