"""The instant of a backup: what comes later is not in it, however late it is read; and who waits for it meanwhile."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curbstone.backup import source
from curbstone.backup.receive import receive
from curbstone.backup.source import FOLDER, Archive, Backups
from curbstone.core.disk import OsDisk
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import Conflict
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Delivery, Message
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.core.snapshots.snapshot import pin
from tests.kit.engine import end_engine

BODY = 4000
CAP = 256 * 1024


async def done(call: Callable[[Callable[..., None]], object]) -> tuple[Any, ...]:
    """Return what a call's callback gets; raise where that is an error."""
    future: asyncio.Future[tuple[Any, ...]] = asyncio.get_running_loop().create_future()
    call(lambda *results: future.set_result(results))
    results = await future
    if isinstance(results[0], Exception):
        raise results[0]
    return results


class Running:
    """An engine on a real directory."""

    def __init__(self, root: Path) -> None:
        self.host = AsyncioHost(asyncio.get_running_loop(), threads=4)
        self.broker = Broker.open(self.host, OsDisk(root), defaults=QueueOptions(cap=CAP), sync=SyncMode())
        self.queue = self.broker.ensure(queue_name("q"))

    async def publish(self, *bodies: bytes) -> None:
        for body in bodies:
            await done(lambda reported, body=body: self.queue.publish([Message(body)], reported))  # type: ignore[misc]

    async def take(self) -> bytes:
        (taken,) = await done(self.queue.pop)
        assert isinstance(taken, Delivery)
        return taken.message.body


class Stream:
    """An archive as a file."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        while (size < 0 or len(self._rest) < size) and (piece := self._archive.read()):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def body(number: int) -> bytes:
    return b"%06d".ljust(BODY, b"x") % number


async def stopped(running: Running) -> None:
    await end_engine(running.broker, running.host)


def test_snapshot_includes_segments_dropped_and_reused_later(tmp_path: Path) -> None:
    """The files of dropped segments are used again: one that a backup still reads would then have other contents."""

    async def run() -> None:
        running = Running(tmp_path / "data")
        backups = Backups(running.broker, running.host, tmp_path / "data")
        await running.publish(*map(body, range(30)))
        archive: Archive
        _, archive = await done(lambda reported: backups.begin({}, reported))
        with pytest.raises(Conflict):
            backups.begin({}, lambda *_: None)
        for number in range(30, 230):  # three times through the ring
            assert await running.take() == body(number - 30)
            await running.publish(body(number))
        await asyncio.to_thread(receive, Stream(archive), tmp_path / "backup")
        archive.close()
        await stopped(running)

        restored = Running(tmp_path / "backup" / "data")
        assert [await restored.take() for _ in range(30)] == [*map(body, range(30))]
        assert restored.queue.counts().rdy == 0
        await stopped(restored)

    asyncio.run(run())


def test_snapshot_includes_segments_dropped_by_a_waiting_commit(tmp_path: Path) -> None:
    """A commit made just before the instant kept the file that it dropped, which then got another header."""

    async def run() -> None:
        running = Running(tmp_path / "data")
        backups = Backups(running.broker, running.host, tmp_path / "data")
        await running.publish(*map(body, range(12)))
        last = 11
        for turn in range(3):  # three messages make a segment: each third pop is followed by a commit that drops one
            taken = asyncio.ensure_future(running.take())
            while not running.queue.writer.is_busy:
                await asyncio.sleep(0)
            _, archive = await done(lambda reported: backups.begin({}, reported))
            assert await taken == body(last - 11)
            await running.publish(body(last + 1))
            for later in range(last + 2, last + 5):  # a segment more: it would be in that file
                assert await running.take() == body(later - 12)
                await running.publish(body(later))
            await asyncio.to_thread(receive, Stream(archive), tmp_path / f"backup{turn}")
            archive.close()
            while running.queue.log.is_pinned:
                await asyncio.sleep(0)

            restored = Running(tmp_path / f"backup{turn}" / "data")
            assert restored.queue.damaged == []
            assert [await restored.take() for _ in range(11)] == [*map(body, range(last - 10, last + 1))]
            assert restored.queue.counts().rdy == 0
            await stopped(restored)
            last += 4
        await stopped(running)

    asyncio.run(run())


def test_closing_a_snapshot_releases_retained_files(tmp_path: Path) -> None:
    async def run() -> None:
        running = Running(tmp_path / "data")
        backups = Backups(running.broker, running.host, tmp_path / "data")
        await running.publish(body(1))
        for _ in range(2):
            _, archive = await done(lambda reported: backups.begin({}, reported))
            assert running.queue.log.is_pinned
            assert list((tmp_path / "data" / FOLDER).iterdir())
            archive.close()
            await done(lambda reported: running.host.submit(lambda: None, lambda *_: reported(None)))
            while running.queue.log.is_pinned:
                await asyncio.sleep(0)
            assert not (tmp_path / "data" / FOLDER).exists()
        await stopped(running)

    asyncio.run(run())


def test_next_snapshot_starts_when_the_previous_is_closed(tmp_path: Path) -> None:
    """Its client was told that another was under way while the server removed what the first had kept."""

    async def run() -> None:
        running = Running(tmp_path / "data")
        backups = Backups(running.broker, running.host, tmp_path / "data")
        await running.publish(body(1))
        _, archive = await done(lambda reported: backups.begin({}, reported))
        for number in range(3):
            archive.close()
            _, archive = await done(lambda reported: backups.begin({}, reported))
            assert running.queue.log.is_pinned
            await asyncio.to_thread(receive, Stream(archive), tmp_path / f"backup{number}")
        with pytest.raises(Conflict):
            backups.begin({}, lambda *_: None)
        archive.close()
        await stopped(running)

    asyncio.run(run())


def test_closing_one_of_two_holds_keeps_the_other(tmp_path: Path) -> None:
    """The first that was ended ended both: files were used again while somebody still read them."""

    async def run() -> None:
        running = Running(tmp_path / "data")
        await running.publish(body(1))
        log = running.queue.log
        first, second = pin(running.broker), pin(running.broker)
        first()
        assert log.is_pinned
        first()
        assert log.is_pinned
        second()
        assert not log.is_pinned
        await stopped(running)

    asyncio.run(run())


@pytest.mark.source
def test_failed_snapshot_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        running = Running(tmp_path / "data")
        backups = Backups(running.broker, running.host, tmp_path / "data")
        await running.publish(body(1))
        catch_up, tries = running.broker.disk.catch_up, 0

        def slow() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise TimeoutError(errno.ETIMEDOUT, "the file server does not answer")
            catch_up()

        monkeypatch.setattr(running.broker.disk, "catch_up", slow)
        _, archive = await done(lambda reported: backups.begin({}, reported))
        assert tries == 2 and running.queue.log.is_pinned
        archive.close()
        async with asyncio.timeout(60):
            while running.queue.log.is_pinned:
                await asyncio.sleep(0)
        await stopped(running)

    monkeypatch.setattr(source, "WAIT_MS", 50)
    asyncio.run(run())


def test_exclusive_job_waits_for_others_and_they_wait_for_it() -> None:
    async def run() -> None:
        host = AsyncioHost(asyncio.get_running_loop(), threads=4)
        order: list[str] = []
        gate, lone = threading.Event(), threading.Event()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note(name: str) -> Callable[[Any, BaseException | None], None]:
            return lambda _result, error: order.append(f"{name} {error}")

        def plan() -> Callable[[], object]:
            order.append("planned")
            host.submit(lambda: order.append("after"), lambda *_: over.set_result(None))
            return lone.wait

        host.submit(gate.wait, note("first"))
        host.submit_alone(plan, note("lone"), 60_000)
        host.submit(lambda: order.append("later"), note("later"))
        host.submit_alone(plan, note("second"), 60_000)
        gate.set()
        while "planned" not in order:
            await asyncio.sleep(0)
        lone.set()
        await over
        host.close()
        assert order[:4] == ["second another job has to be alone", "first None", "planned", "lone None"]
        assert set(order[4:]) >= {"later", "after"}

    asyncio.run(run())


def test_exclusive_job_is_abandoned_when_others_take_too_long() -> None:
    async def run() -> None:
        host = AsyncioHost(asyncio.get_running_loop(), threads=2)
        gate = threading.Event()
        host.submit(gate.wait, lambda *_: None)
        future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        host.submit_alone(lambda: lambda: None, lambda _result, error: future.set_result(error), 10)
        error = await future
        assert isinstance(error, TimeoutError)
        gate.set()
        await done(lambda reported: host.submit(lambda: None, lambda *_: reported(None)))
        host.close()

    asyncio.run(run())
