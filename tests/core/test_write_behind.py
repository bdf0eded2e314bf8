"""Writes that are late: nobody who uses a file through its disk sees them missing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from random import Random

import pytest

from curbstone.core.write_behind import WriteBehindDisk, WriteBehindFile
from tests.kit.simulated import SimDisk, SimFile

PATH = "f"


@pytest.fixture
def inner() -> SimDisk:
    return SimDisk(Random(0))


@pytest.fixture
def disk(inner: SimDisk) -> WriteBehindDisk:
    return WriteBehindDisk(inner)


@pytest.fixture
def file(disk: WriteBehindDisk) -> WriteBehindFile:
    file = disk.open_lasting(PATH, create=True)
    file.write(0, [b"head", bytes(8)])
    file.defer(4, [b"a", b"b"])
    file.defer(6, [b"c"])
    return file


def written(inner: SimDisk) -> bytes:
    return bytes(inner.names[PATH].cache)


def test_deferred_write_happens_on_demand(file: WriteBehindFile, inner: SimDisk) -> None:
    before = inner.ops
    assert written(inner) == b"head" + bytes(8)
    file.defer(7, [b"d"])
    assert inner.ops == before


@pytest.mark.parametrize(
    "use",
    [
        lambda disk, _file: disk.open(PATH).read(0, 12),
        lambda disk, _file: disk.catch_up(),
        lambda disk, _file: disk.sync_all(""),
        lambda _disk, file: file.read(0, 12),
        lambda _disk, file: file.sync(),
        lambda _disk, file: file.size(),
        lambda _disk, file: file.truncate(12),
        lambda _disk, file: file.write(11, [b"\0"]),
    ],
)
def test_every_file_operation_flushes_deferred_writes(
    use: Callable[[WriteBehindDisk, WriteBehindFile], object],
    disk: WriteBehindDisk,
    file: WriteBehindFile,
    inner: SimDisk,
) -> None:
    use(disk, file)
    assert written(inner) == b"headabc" + bytes(5)
    assert not disk.late


def test_adjacent_write_joins_the_deferred_one(file: WriteBehindFile, inner: SimDisk) -> None:
    before = inner.ops
    file.write(7, [b"d", b"e"])
    assert written(inner) == b"headabcde" + bytes(3)
    assert inner.ops == before + 1


def test_writes_can_be_deferred_after_a_flush(disk: WriteBehindDisk, file: WriteBehindFile, inner: SimDisk) -> None:
    file.write(7, [b"d"])
    file.defer(8, [b"e"])
    assert list(disk.late) == [PATH] and file.read(0, 9) == b"headabcde"


@pytest.mark.parametrize(
    "use", [lambda file: file.sync(), lambda file: file.write(7, [b"d"]), lambda file: file.size()]
)
def test_failed_flush_raises_and_is_retried(
    use: Callable[[WriteBehindFile], object],
    disk: WriteBehindDisk,
    file: WriteBehindFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no(*_args: object) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as during:
        during.setattr(SimFile, "write", no)
        with pytest.raises(OSError, match="no"):
            use(file)
        with pytest.raises(OSError, match="no"):
            disk.open(PATH)
    assert disk.open(PATH).read(0, 7) == b"headabc"


def test_deferred_writes_are_dropped_with_the_file(
    disk: WriteBehindDisk, file: WriteBehindFile, inner: SimDisk
) -> None:
    file.close()
    disk.catch_up()
    assert written(inner) == b"head" + bytes(8) and not disk.late


def test_closing_does_not_wait_for_a_write_that_hangs(
    disk: WriteBehindDisk, file: WriteBehindFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues are closed on the event loop, where heart-beats and health continue while a disk hangs."""
    is_writing, may_go_on = threading.Event(), threading.Event()

    def hang(*_args: object) -> None:
        is_writing.set()
        assert may_go_on.wait(60)
        raise OSError(errno.EBADF, "closed")

    monkeypatch.setattr(SimFile, "write", hang)
    failures: list[OSError] = []

    def write() -> None:
        try:
            disk.catch_up()
        except OSError as error:
            failures.append(error)

    writer, closer = threading.Thread(target=write), threading.Thread(target=file.close)
    writer.start()
    try:
        assert is_writing.wait(60)
        closer.start()
        closer.join(30)
        assert not closer.is_alive()
    finally:
        may_go_on.set()
        writer.join()
        closer.join()
    assert not failures, "nobody needs what a closed file had deferred"
