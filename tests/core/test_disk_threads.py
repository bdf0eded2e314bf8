"""Writes and syncs that need no interpreter: what they do, how they fail, and a broker whose commits are made so."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from curbstone.core import host as core_host
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import Unavailable
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode
from tests.kit import disk_threads

if TYPE_CHECKING:
    from curbstone.core.disk_threads import DiskThreads

WAIT_S = 60


@pytest.fixture
def threads() -> Iterator[DiskThreads]:
    made = disk_threads.load(disk_threads.library()).DiskThreads(4)
    yield made
    made.close()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have hosts use the threads; return the offsets of the writes that are made so."""
    offsets: list[int] = []

    class Noted:
        def __init__(self, threads_max: int) -> None:
            self._threads = disk_threads.load(disk_threads.library()).DiskThreads(threads_max)

        def submit(self, token: Any, fd: int, offset: int, buffers: Any) -> None:
            offsets.append(offset)
            self._threads.submit(token, fd, offset, buffers)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._threads, name)

    monkeypatch.setattr(core_host, "DiskThreads", Noted)
    return offsets


def results(threads: DiskThreads, count: int) -> dict[Any, tuple[int, bool]]:
    """Wait for this many results; return for each token the errno, and whether all was written."""
    found: dict[Any, tuple[int, bool]] = {}
    while len(found) < count:
        assert select.select([threads.fileno()], [], [], WAIT_S)[0], "no signal"
        for token, code, is_written, sync_us in threads.finished():
            assert sync_us >= 0 and token not in found
            found[token] = code, is_written
    return found


def test_all_buffers_are_written_one_after_the_other(tmp_path: Path, threads: DiskThreads) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    many = [b"%d," % n for n in range(3000)]  # more than one call of the system takes
    threads.submit("many", fd, 5, [b"", *many, bytearray(b"end"), memoryview(b"."), b""])
    threads.submit("none", fd, 0, [])
    assert results(threads, 2) == {"many": (0, True), "none": (0, True)}
    assert (tmp_path / "f").read_bytes() == bytes(5) + b"".join(many) + b"end."
    os.close(fd)


def test_failed_write_is_distinguished_from_a_failed_sync(threads: DiskThreads) -> None:
    full, null = os.open("/dev/full", os.O_RDWR), os.open("/dev/null", os.O_RDWR)  # the latter can't be synced
    threads.submit("full", full, 0, [b"x"])
    threads.submit("closed", -1, 0, [b"x"])
    threads.submit("unsynced", null, 0, [b"x"])
    assert results(threads, 3) == {
        "full": (errno.ENOSPC, False),
        "closed": (errno.EBADF, False),
        "unsynced": (errno.EINVAL, True),
    }
    os.close(full)
    os.close(null)


def test_close_waits_for_submitted_jobs_and_refuses_more(tmp_path: Path, threads: DiskThreads) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    for n in range(100):  # more than there are threads
        threads.submit(n, fd, n, [b"%d" % (n % 10)])
    threads.close()
    assert {token: code for token, code, _, _ in threads.finished()} == dict.fromkeys(range(100), 0)
    assert (tmp_path / "f").read_bytes() == b"0123456789" * 10
    with pytest.raises(OSError, match=os.strerror(errno.ECANCELED)):
        threads.submit("late", fd, 0, [b"x"])
    os.close(fd)


def test_invalid_arguments_are_refused_without_leaks(threads: DiskThreads) -> None:
    token = object()
    references = sys.getrefcount(token)
    for wrong in ([1], ["text"], 5):
        with pytest.raises(TypeError):
            threads.submit(token, 0, 0, wrong)  # type: ignore[arg-type]
    assert sys.getrefcount(token) == references
    with pytest.raises(ValueError, match="threads_max has to be at least 1, not 0"):
        type(threads)(0)


def test_broker_with_disk_threads_keeps_confirmed_messages(tmp_path: Path, used: list[int]) -> None:
    name = queue_name("q")

    async def main(first: int) -> list[bytes]:
        loop = asyncio.get_running_loop()
        host = AsyncioHost(loop, threads=2)
        broker = Broker.open(host, OsDisk(tmp_path), defaults=QueueOptions(), sync=SyncMode())
        queue = broker.ensure(name)
        for number in range(first, first + 50):
            done: asyncio.Future[Any] = loop.create_future()
            queue.publish([Message(b"%d" % number)], lambda *answer, done=done: done.set_result(answer))
            assert await done == (None, number, 1)
        peeked: asyncio.Future[Any] = loop.create_future()
        queue.peek(1000, peeked.set_result)
        bodies = [found.message.body for found in await peeked]
        ended = loop.create_future()
        broker.shutdown(lambda: ended.set_result(None))
        await ended
        host.close()
        assert host._disk_threads is not None
        return bodies

    for first in (1, 51):
        assert asyncio.run(main(first)) == [b"%d" % number for number in range(1, first + 50)]
    assert len(used) > 80, "few commits were made by these threads"


def test_barrier_covers_every_job(tmp_path: Path, used: list[int]) -> None:
    """What it holds back is known by the thread that ran the job, and these threads have no marks."""

    class Barrier:
        jobs = 0

        def begin(self) -> None:
            self.jobs += 1

        def end(self) -> int:
            return 0

        def allows(self, mark: int) -> bool:
            return True

    async def main() -> int:
        loop = asyncio.get_running_loop()
        host = AsyncioHost(loop, threads=2)
        host.barrier = barrier = Barrier()
        done: asyncio.Future[str] = loop.create_future()

        def begin() -> None:
            raise AssertionError("it has to be a job")

        host.submit(lambda: "ran", lambda result, _error: done.set_result(result), begin)
        assert await done == "ran"
        host.close()
        return barrier.jobs

    assert asyncio.run(main()) == 1 and used == []


def test_file_with_a_failed_sync_never_syncs_again(tmp_path: Path) -> None:
    """The system reports a failed sync once, and then takes lost data for written."""
    disk = OsDisk(tmp_path)
    file = disk.open_lasting("f", create=True)
    write = file.durable_write(0, [b"x"])
    assert write is not None and file.durable_write(1, [b"y"]) is None, "one sync at a time"
    write.end(OSError(errno.EIO, "broken"), 0, True)
    assert file.durable_write(1, [b"y"]) is None
    with pytest.raises(OSError, match=r"^\[Errno 5\] broken$"):
        file.sync()
    with pytest.raises(OSError, match="an earlier sync failed: broken"):
        file.sync()
    file.close()
    disk.close()


def test_file_closed_during_a_job_keeps_its_descriptor(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    file = disk.open_lasting("f", create=True)
    write = file.durable_write(0, [b"x"])
    assert write is not None
    file.close()
    os.pwritev(write.fd, write.buffers, write.offset)
    write.end(None, 10, True)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(write.fd)
    assert (tmp_path / "f").read_bytes() == b"x" and disk.sync_times.took_us.count == 1
    disk.close()


def test_failed_sync_in_a_disk_thread_confirms_nothing(
    tmp_path: Path, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is made once more by a thread that runs Python, which finds that the file can't be synced any more."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        host = AsyncioHost(loop, threads=2)
        broker = Broker.open(host, OsDisk(tmp_path), defaults=QueueOptions(), sync=SyncMode())
        queue = broker.ensure(queue_name("q"))
        threads: Any = host._disk_threads
        finished = threads.finished

        async def publish(number: int) -> Any:
            done: asyncio.Future[Any] = loop.create_future()
            queue.publish([Message(b"%d" % number)], lambda *answer: done.set_result(answer))
            return await done

        answers = [await publish(number) for number in range(3)]
        threads.finished = lambda: [(token, errno.EIO, True, 0) for token, *_ in finished()]
        answers.append(await publish(3))
        threads.finished = finished
        answers += [await publish(number) for number in range(4, 6)]
        ended = loop.create_future()
        broker.shutdown(lambda: ended.set_result(None))
        await ended
        host.close()
        return answers

    answers = asyncio.run(main())
    assert [type(error) for error, _, _ in answers] == [type(None)] * 3 + [Unavailable] + [type(None)] * 2
    assert str(answers[3][0]) == "the log can't be written: Input/output error"


HANGS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
/* A sync of a segment of the first queue ends when somebody opens the FIFO for writing. */
int fdatasync(int fd)
{
	char name[64], path[4096] = "";
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	if (readlink(name, path, sizeof path - 1) > 0 && getenv("HANGS") && !access(getenv("HANGS"), F_OK)) {
		FILE *which = fopen(getenv("HANGING_FILE"), "r");
		char hanging[4096] = "";
		if (which && fgets(hanging, sizeof hanging, which) && !__builtin_strcmp(hanging, path))
		{
			close(open("begun", O_CREAT | O_WRONLY, 0600));
			close(open(getenv("HANGS"), O_RDONLY));
		}
		if (which)
			fclose(which);
	}
	return syscall(SYS_fdatasync, fd);
}
"""

DURING_A_HANG = """
import asyncio, os, sys
from pathlib import Path
from tests.kit import disk_threads
sys.modules[disk_threads.NAME] = disk_threads.load(Path(sys.argv[2]))
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode

async def main():
    loop = asyncio.get_running_loop()
    root = Path(sys.argv[1])
    host = AsyncioHost(loop, threads=2)
    broker = Broker.open(host, OsDisk(root), defaults=QueueOptions(), sync=SyncMode())

    def publish(name):
        done = loop.create_future()
        broker.ensure(queue_name(name)).publish([Message(b"x")], lambda *answer: done.set_result(answer))
        return done

    for name in ("slow", "quick") * 2:  # the first commit of each makes its segment
        print(name, await publish(name))
    Path(os.environ["HANGING_FILE"]).write_text(str(root / broker.get(queue_name("slow")).log.active.path))
    os.mkfifo(os.environ["HANGS"])
    slow = publish("slow")
    while not os.path.exists("begun"):
        await asyncio.sleep(0.001)
    beats = 0
    for _ in range(20):
        print("quick", await publish("quick"))
        await asyncio.sleep(0.001)
        beats += 1
    print("beats", beats, "confirmed", slow.done())
    fifo = await asyncio.to_thread(os.open, os.environ["HANGS"], os.O_WRONLY)
    print("slow", await slow)
    os.close(fifo)
    os.unlink(os.environ["HANGS"])
    ended = loop.create_future()
    broker.shutdown(lambda: ended.set_result(None))
    await ended
    host.close()

asyncio.run(main())
"""


def test_sync_that_hangs_blocks_neither_the_loop_nor_other_queues(tmp_path: Path) -> None:
    source = tmp_path / "hangs.c"
    source.write_text(HANGS)
    shim = disk_threads.compiled(source, tmp_path / "hangs.so")
    environment = os.environ | {
        "LD_PRELOAD": str(shim),
        "HANGS": str(tmp_path / "fifo"),
        "HANGING_FILE": str(tmp_path / "hanging"),
        "PYTHONPATH": str(disk_threads.ROOT),
    }
    command = [sys.executable, "-c", DURING_A_HANG, str(tmp_path / "data"), str(disk_threads.library())]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=2 * WAIT_S)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[4:24] == [f"quick (None, {n}, 1)" for n in range(3, 23)]
    assert lines[24:] == ["beats 20 confirmed False", "slow (None, 3, 1)"]
