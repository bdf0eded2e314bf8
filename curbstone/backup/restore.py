"""Restores a backup to a data directory on which no server runs: all of it, or one queue under a new name."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from curbstone.backup.files import BackupError, NotInBackup, TargetTaken
from curbstone.backup.receive import Unpacked
from curbstone.core.disk import OsDisk, sync_path
from curbstone.core.engine.broker import Broker
from curbstone.core.engine.directories import GONE_SUFFIX, QUEUES
from curbstone.core.engine.log.commit import SEGMENT_SUFFIX
from curbstone.core.engine.log.format import SEGMENT_BYTES, decode_segment_header, encode_segment_header
from curbstone.core.engine.log.meta import Meta, load_meta
from curbstone.core.errors import MetaDamaged
from curbstone.core.host import AsyncioHost
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions, SyncMode

SETTLE_POLL_S = 0.01

_DEFAULTS = QueueOptions()


Unpack = Callable[[Path], AbstractContextManager[Unpacked]]
"""Yields the contents of a backup in a directory next to a path. They may be changed or moved."""


def restore(unpack: Unpack, target: Path) -> dict[str, object]:
    """Create a data directory from a backup, and return the index of the backup.

    The directory gets its name only when it is complete.
    Raise BackupError or TargetTaken.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TargetTaken(f"{target} exists and is not empty: move it away, or name a new directory")
    with unpack(target) as (data, index):
        data.rename(target)
        sync_path(target.parent)
    return index


def restore_queue(unpack: Unpack, target: Path, name: QueueName, new_name: QueueName) -> list[int]:
    """Restore one queue of a backup into a data directory on which no server runs, or which does not exist yet.

    It becomes a new queue there: it has a new uid, so its messages have new ids, and no event is bound to it.
    Return the sizes of its files. Raise BackupError, NotInBackup or TargetTaken.
    """
    with unpack(target) as (data, _index):
        _finish(data)
        found = _directory_of(data, name)
        disk = OsDisk(target)
        try:
            with suppress(FileExistsError):
                disk.make_dir(QUEUES)
            if _is_there(disk, new_name):
                raise TargetTaken(f"queue {new_name} exists in {target} already")
            return _put(disk, target, found, new_name)
        finally:
            disk.close()


def _finish(data: Path) -> None:
    """Start the engine once, which applies the journal and committed staged transactions to the queues."""

    async def open_and_close() -> None:
        host = AsyncioHost(asyncio.get_running_loop(), threads=2)
        closed = asyncio.Event()
        try:
            broker = Broker.open(host, OsDisk(data), defaults=_DEFAULTS, sync=SyncMode())
            while broker.staging.is_committing and not broker.alarms:
                await asyncio.sleep(SETTLE_POLL_S)
            broker.shutdown(closed.set)
            await closed.wait()
        finally:
            host.close()

    asyncio.run(open_and_close())


def _directory_of(data: Path, name: QueueName) -> Path:
    disk = OsDisk(data)
    try:
        for entry in disk.list_dir(QUEUES) if (data / QUEUES).exists() else ():
            with suppress(MetaDamaged):
                meta = load_meta(disk, f"{QUEUES}/{entry}", _DEFAULTS)
                if meta is not None and meta.name == name:
                    return data / QUEUES / entry
    finally:
        disk.close()
    raise NotInBackup(f"queue {name} is not in the backup")


def _is_there(disk: OsDisk, name: QueueName) -> bool:
    for entry in disk.list_dir(QUEUES):
        with suppress(MetaDamaged, OSError):
            meta = load_meta(disk, f"{QUEUES}/{entry}", _DEFAULTS)
            if meta is not None and meta.name == name and not entry.endswith(GONE_SUFFIX):
                return True
    return False


def _put(disk: OsDisk, target: Path, found: Path, name: QueueName) -> list[int]:
    """Copy a queue's directory under a name that the next start would remove, and rename it when it is complete.

    Return the sizes of its files.
    """
    sizes: list[int] = []
    uid = secrets.token_hex(6)
    coming = target / QUEUES / (uid + GONE_SUFFIX)
    coming.mkdir(mode=0o700)
    try:
        for path in sorted(found.iterdir()):
            if path.name == "meta":
                meta = Meta.decode(path.read_bytes(), str(path), _DEFAULTS)
                data = replace(meta, uid=uid, name=name, bindings={}).encode()
            elif path.name.endswith(SEGMENT_SUFFIX):
                data = _with_uid(path, int(uid, 16))
            else:
                continue
            with (coming / path.name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            sizes.append(len(data))
        sync_path(coming)
        coming.rename(target / QUEUES / uid)
        disk.sync_dir(QUEUES)
    except BaseException:
        shutil.rmtree(coming, ignore_errors=True)
        raise
    return sizes


def _with_uid(path: Path, uid: int) -> bytes:
    data = path.read_bytes()
    header = decode_segment_header(data[:SEGMENT_BYTES])
    if header is None:
        raise BackupError(f"{path.name} of the queue has no header; restore all, and try curbstone repair")
    return encode_segment_header(header._replace(uid=uid)) + data[SEGMENT_BYTES:]
