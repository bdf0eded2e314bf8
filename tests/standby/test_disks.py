"""A disk whose changes are shipped, and the one that they are applied to: real files in two directories."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from curbstone.core.disk import OsDisk, replace_file
from curbstone.core.durable_write import DurableFile
from curbstone.core.engine.broker import Broker
from curbstone.core.host import AsyncioHost
from curbstone.core.message import Message
from curbstone.core.names import queue_name
from curbstone.core.options import QueueOptions, SyncMode
from curbstone.standby.applying import Applier
from curbstone.standby.copying import Copy, digests, tree
from curbstone.standby.frames import BadFrame, Kind, encode
from curbstone.standby.shipping import ShippingDisk
from curbstone.standby.state_files import StateFiles
from curbstone.standby.stream import Stream
from tests.kit.engine import end_engine
from tests.kit.server import clean_environment


class AtOnce:
    """Syncs that are made when they begin."""

    def start(self, job: Callable[[], None], done: Callable[[OSError | None], None]) -> Callable[[], None]:
        job()
        done(None)
        return lambda: None


class Disks:
    """A shipped directory and its copy."""

    def __init__(self, path: Path) -> None:
        self.original, self.copy = OsDisk(path / "original"), OsDisk(path / "copy")
        self.stream = Stream(lambda: 0)
        self.disk = ShippingDisk(self.original, self.stream)
        self.applier = Applier(self.copy, AtOnce(), StateFiles(self.copy, b"boot"))
        self.copying = Copy(self.stream, self.original, digests(self.copy), lambda _is_urgent: None)
        self.applier.begin(self.stream.life, self.copying.cursor.position)
        while self.copying.step():
            pass
        self.ship()

    def ship(self) -> None:
        while data := self.copying.cursor.take(1 << 20):
            self.applier.receive(b"".join(data))

    def close(self) -> None:
        self.applier.close()
        self.original.close()
        self.copy.close()

    def contents(self, disk: OsDisk) -> dict[str, bytes | None]:
        folders, files = tree(disk)
        return dict.fromkeys(folders) | {path: (disk.root / path).read_bytes() for path in files}

    def check_equal(self) -> None:
        self.ship()
        assert self.contents(self.copy) == self.contents(self.original)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


def test_every_call_that_changes_something_is_applied(disks: Disks) -> None:
    disk = disks.disk
    disk.make_dir("queues")
    disk.make_dir("queues/0123456789ab")
    file = disk.open_lasting("queues/0123456789ab/1.seg", create=True)
    file.write(0, [b"bytes", bytearray(b" and "), memoryview(b"more"), bytes(100_000)])
    file.write(70_000, [b"x" * 3_000_000])
    file.sync()
    file.truncate(2_000_000)
    meta = replace_file(disk, "queues/0123456789ab/meta", b"first")
    meta.write(0, [b"after it was renamed"])
    disk.sync_dir("queues/0123456789ab")
    disk.rename("queues/0123456789ab/1.seg", "queues/0123456789ab/2.seg")
    file.write(1, [b"!"])
    disks.check_equal()
    disk.remove("queues/0123456789ab/2.seg")
    file.write(0, [b"to a file that is gone"])
    disk.rename("queues/0123456789ab", "queues/0123456789ab.gone")
    meta.write(0, [b"to a queue that is gone"])
    disk.remove_tree("queues/0123456789ab.gone")
    disks.check_equal()
    assert [path.name for path in (disks.copy.root / "queues").iterdir()] == []
    disks.close()


@pytest.mark.parametrize("folder", ["queues/0123456789ab.gone", ".backup"])
def test_stream_excludes_private_queues_and_local_files(disks: Disks, folder: str) -> None:
    disks.disk.make_dir("queues")
    end = disks.stream.end
    disks.disk.make_dir(folder)
    for path in (f"{folder}/1.seg", "charts", "probe"):
        file = disks.disk.open(path, create=True)
        file.write(0, [b"bytes"])
        file.sync()
        file.close()
    disks.disk.sync_dir(folder)
    disks.disk.remove_tree(folder)
    disks.disk.remove("probe")
    assert disks.stream.end == end
    disks.close()


def test_call_without_effect_adds_nothing_and_one_in_doubt_ends_the_stream(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = disks.stream.end
    with pytest.raises(FileNotFoundError):
        disks.disk.remove("missing")
    disks.disk.make_dir("queues")
    after = disks.stream.end
    with pytest.raises(FileExistsError):
        disks.disk.make_dir("queues")
    assert end < disks.stream.end == after and not disks.copying.cursor.is_cut_off

    def remove(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(disks.original, "remove", remove)
    with pytest.raises(OSError, match="Input/output"):
        disks.disk.remove("queues")
    assert disks.copying.cursor.is_cut_off
    assert disks.stream.resume(after, lambda _is_urgent: None) is None, "the copy may lack what was done"
    disks.close()


@pytest.mark.parametrize(
    "path", ["", "lock", "standby/state", ".backup/1", "charts", "access/audit", "queues/a.gone/1.seg"]
)
def test_stream_cannot_change_foreign_files(disks: Disks, path: str) -> None:
    for frame in (encode(Kind.CREATE, path), encode(Kind.RENAME, "queues", payload=[path.encode()])):
        if "queues/a.gone" in path and frame[0][8] == Kind.RENAME:
            continue  # a queue that is deleted
        with pytest.raises(BadFrame, match="is not replicated"):
            disks.applier.receive(b"".join(frame))
        disks.applier.begin(disks.stream.life, disks.stream.end)
    disks.close()


def test_shipped_files_cause_no_additional_writes(disks: Disks) -> None:
    file = disks.disk.open_lasting("redo.1", create=True)
    assert isinstance(disks.original.open_lasting("redo.2", create=True), DurableFile)
    assert not isinstance(file, DurableFile)
    disks.close()


def test_standby_modules_are_imported_only_on_demand() -> None:
    program = """if True:
        import asyncio, sys
        from curbstone import asgi, replication, serve
        from curbstone.core.host import AsyncioHost
        from curbstone.settings import load

        class Empty:
            def list_dir(self, path):
                return []

        async def followers():
            host = AsyncioHost(asyncio.get_running_loop())
            return replication.followers_of(None, host, load({}))[0].figures()

        disk = Empty()
        assert replication.shipping_disk(disk, None, load({})) is disk
        assert asyncio.run(followers()) is None
        sys.exit(any(name.startswith("curbstone.standby") for name in sys.modules))
    """
    assert subprocess.run([sys.executable, "-P", "-c", program], env=clean_environment()).returncode == 0


def test_copy_resumes_while_the_stream_is_retained(disks: Disks) -> None:
    disks.disk.make_dir("queues")
    disks.ship()
    disks.stream.detach(disks.copying.cursor)
    file = disks.disk.open("queues/a", create=True)
    file.write(0, [b"while nobody was connected"])
    files = StateFiles(disks.copy, b"boot")
    assert files.can_resume and files.position is not None
    assert files.position.life == disks.stream.life
    cursor = disks.stream.resume(files.position.applied, lambda _is_urgent: None)
    assert cursor is not None
    applier = Applier(disks.copy, AtOnce(), files)
    assert applier.resume() == files.position
    applier.receive(b"".join(cursor.take(1 << 20)))
    assert disks.contents(disks.copy) == disks.contents(disks.original)
    assert applier.durable == disks.stream.end
    assert not StateFiles(disks.copy, b"another boot").can_resume, "what was not synced is lost, and nobody knows what"
    disks.close()


def test_nothing_is_retained_once_no_copy_can_resume(disks: Disks) -> None:
    disks.disk.make_dir("queues")
    disks.stream.detach(disks.copying.cursor)
    disks.stream.kept_bytes = 1000
    end = disks.stream.end
    file = disks.disk.open("queues/a", create=True)
    for _ in range(20):
        file.write(0, [b"x" * 100])
    assert not disks.stream.is_active
    stopped = disks.stream.end
    file.write(0, [b"x"])
    assert disks.stream.end == stopped
    assert disks.stream.resume(end, lambda _is_urgent: None) is None
    assert disks.stream.resume(stopped, lambda _is_urgent: None) is None
    disks.close()


def test_copy_opens_with_the_same_state(tmp_path: Path) -> None:
    """The copy is made while messages are published, and goes on behind them."""
    disks = Disks(tmp_path)
    name, other = queue_name("orders"), queue_name("others")

    async def publish() -> None:
        host = AsyncioHost(asyncio.get_running_loop(), threads=2)
        broker = Broker.open(host, disks.disk, defaults=QueueOptions(), sync=SyncMode.parse("always"))
        confirmed = asyncio.Event()
        left = 40

        def done(*_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                confirmed.set()

        for number in range(20):
            for queue in (broker.ensure(name), broker.ensure(other)):
                queue.publish([Message(b"%d" % number)], done)
            await asyncio.sleep(0)
        await confirmed.wait()
        disks.check_equal()
        await end_engine(broker, host)

    async def count() -> list[int]:
        host = AsyncioHost(asyncio.get_running_loop(), threads=2)
        disks.applier.promote()
        broker = Broker.open(host, disks.copy, defaults=QueueOptions(), sync=SyncMode.parse("always"))
        counts = [broker.ensure(each).counts().rdy for each in (name, other)]
        await end_engine(broker, host)
        return counts

    asyncio.run(publish())
    disks.check_equal()
    assert asyncio.run(count()) == [20, 20]
