"""The real disk: its lock, its writes, and a broker on it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import DataDirectoryError
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode

OPEN_ANOTHER = """
import sys
from pathlib import Path
from curbstone.core.disk import OsDisk
from curbstone.core.errors import DataDirectoryError
try:
    OsDisk(Path(sys.argv[1]))
except DataDirectoryError as error:
    print(error)
"""


def open_in_another_process(root: Path) -> str:
    """Return what another process is told that opens the directory; empty if nothing."""
    command = [sys.executable, "-c", OPEN_ANOTHER, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    assert open_in_another_process(tmp_path) == f"the data directory {tmp_path} is in use by process {os.getpid()}"
    disk.close()
    disk.close()
    assert open_in_another_process(tmp_path) == ""


def test_a_second_broker_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use by process"):
        OsDisk(tmp_path)
    disk.close()
    OsDisk(tmp_path).close()


def test_missing_directory_is_created_private(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    disk = OsDisk(root)
    disk.make_dir("d")
    disk.open("d/f", create=True).close()
    assert root.stat().st_mode & 0o077 == 0
    assert (root / "d").stat().st_mode & 0o077 == 0 and (root / "d" / "f").stat().st_mode & 0o077 == 0
    disk.close()


def test_path_that_is_no_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(DataDirectoryError) as caught:
        OsDisk(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_files_are_read_written_truncated_renamed_and_removed(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.make_dir("d")
    file = disk.open("d/f", create=True)
    file.write(3, [b"abc", bytearray(b"def"), memoryview(b"ghi")])
    file.sync()
    assert (file.size(), file.read(0, 100), file.read(5, 2), file.read(99, 1)) == (12, b"\0\0\0abcdefghi", b"cd", b"")
    file.truncate(5)
    assert file.read(0, 100) == b"\0\0\0ab"
    file.close()
    file.close()
    disk.sync_dir("d")
    disk.rename("d/f", "d/g")
    assert disk.list_dir("d") == ["g"]
    with pytest.raises(FileNotFoundError):
        disk.open("d/f")
    with pytest.raises(FileExistsError):
        disk.open("d/g", create=True)
    with pytest.raises(FileExistsError):
        disk.make_dir("d")
    disk.remove("d/g")
    disk.remove_tree("d")
    assert disk.list_dir("") == ["lock"]
    disk.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "data")
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "data" / "f").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        disk.open("f")
    disk.close()


@pytest.mark.parametrize("most", [1, 2, 7, 10])
def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    pwrite = os.pwrite

    def short(fd: int, data: bytes, offset: int) -> int:
        return pwrite(fd, memoryview(data)[:most], offset)

    def short_vector(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        return short(fd, b"".join(map(bytes, buffers)), offset)

    disk = OsDisk(tmp_path)
    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(os, "pwritev", short_vector)
    file = disk.open("f", create=True)
    file.write(2, [b"abc", b"", b"defgh", b"ij"])
    assert file.read(0, 100) == b"\0\0abcdefghij"
    file.close()
    disk.close()


def test_an_error_after_a_short_write_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    disk = OsDisk(tmp_path)
    file = disk.open("f", create=True)
    monkeypatch.setattr(os, "pwritev", lambda *_: 1)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write(0, [b"abc"])
    file.close()
    disk.close()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    disk = OsDisk(tmp_path)
    file = disk.open("f", create=True)
    file.write(0, [b"abcdefgh"])
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    assert (file.read(0, 8), file.read(1, 99)) == (b"abcdefgh", b"bcdefgh")
    file.close()
    disk.close()


def run_broker(root: Path, work: Callable[[Broker, asyncio.AbstractEventLoop], Any]) -> Any:
    """Run `work` with a broker on a real loop, threads and disk; it returns a future."""

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        host = AsyncioHost(loop, threads=2)
        broker = Broker.open(host, OsDisk(root), defaults=QueueOptions(), sync=SyncMode())
        try:
            return await work(broker, loop)
        finally:
            ended = loop.create_future()
            broker.shutdown(lambda: ended.set_result(None))
            await ended
            host.close()

    return asyncio.run(main())


def test_broker_on_the_real_disk_keeps_confirmed_messages(tmp_path: Path) -> None:
    name = queue_name("q")

    def publish(broker: Broker, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = loop.create_future()
        messages = [Message(b"%d" % number) for number in range(100)]
        broker.ensure(name).publish(messages, lambda *answer: done.set_result(answer))
        return done

    def look(broker: Broker, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = loop.create_future()
        broker.get(name).peek(1000, done.set_result)
        return done

    assert run_broker(tmp_path, publish) == (None, 1, 100)
    for _ in range(2):
        assert [found.message.body for found in run_broker(tmp_path, look)] == [b"%d" % n for n in range(100)]
    OsDisk(tmp_path).close()


def test_long_lived_files_share_a_few_descriptors(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path, lasting_max=2)
    open_before = len(os.listdir("/proc/self/fd"))
    files = [disk.open_lasting(f"f{number}", create=True) for number in range(10)]
    for turn in range(2):
        for number, file in enumerate(files):
            file.write(turn, [b"%d" % number])
            if number % 2:
                file.sync()
            assert len(os.listdir("/proc/self/fd")) <= open_before + 2
    assert [file.read(0, 9) for file in files] == [b"%d%d" % (number, number) for number in range(10)]
    for file in files:
        file.close()
    assert len(os.listdir("/proc/self/fd")) == open_before
    disk.close()


def test_failed_sync_fails_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells of it once, and then takes what it lost for written."""
    disk = OsDisk(tmp_path)
    file = disk.open_lasting("f", create=True)
    file.write(0, [b"lost"])

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as during:
        during.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
    with pytest.raises(OSError, match="an earlier sync failed: Input/output error"):
        file.sync()
    disk.close()


def test_file_in_use_is_closed_when_released_and_not_reopened(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    file = disk.open_lasting("f", create=True)
    with file as lent:
        file.close()
        lent.write(0, [b"still open"])
    assert file.fd == -1
    with pytest.raises(OSError, match="f is closed"):
        file.sync()
    assert (tmp_path / "f").read_bytes() == b"still open"
    disk.close()


def test_idle_file_is_closed_when_descriptors_run_out(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    files = [disk.open_lasting(f"f{number}", create=True) for number in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(2):
            for file in files:
                file.write(0, [b"x"])
        disk.sync_dir("")
        one = disk.open("f0")
        with pytest.raises(OSError, match="no descriptor is left"):
            while True:
                held.append(disk.open("f0").detach())
        one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
        for file in files:
            file.close()
        disk.close()


def test_errors_name_files_relative_to_the_data_directory(tmp_path: Path) -> None:
    """A 503 showed the absolute path."""
    disk = OsDisk(tmp_path / "data")
    disk.make_dir("there")
    calls: list[Callable[[], object]] = [
        lambda: disk.open("missing/a"),
        lambda: disk.open("there", create=True),
        lambda: disk.list_dir("missing"),
        lambda: disk.sync_dir("missing"),
        lambda: disk.make_dir("there"),
        lambda: disk.rename("missing", "other/b"),
        lambda: disk.remove("missing"),
        lambda: disk.remove_tree("missing"),
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert str(tmp_path) not in str(caught.value)
        assert re.search("'(missing|there)", str(caught.value))
    disk.close()


def test_new_data_directory_and_its_parents_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    OsDisk(tmp_path / "a" / "b").close()
    assert set(synced) == {tmp_path, tmp_path / "a"}
    synced.clear()
    OsDisk(tmp_path / "a" / "b").close()
    assert not synced
