"""Pages of a log that the disk has damaged since the start: what is left is read, and what is not is told."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.core.lab import Lab, numbered
from tests.core.reading.test_scan import seqs
from tests.sim.world import Inode, SimFile


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
def test_a_page_has_all_but_the_messages_that_are_damaged(
    harm: Callable[[Inode, int, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until the next start all messages around them were refused, too."""
    lab = Lab()
    queue = lab.queue()
    for commit in range(3):
        lab.publish(queue, *[b"%d: " % commit + body for body in numbered(10, 1000)])
    lab.restart("kill")  # none of them is in memory
    queue = lab.again(queue)
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
