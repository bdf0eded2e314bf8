"""Whole data directories with random edits: what `curbstone check` and a start make of them.

However a directory was edited, a start serves it or says what is wrong with it. It never ends with a traceback, never
delivers a body that was not published to that queue, and never removes the last copy of a message that was pending.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from curbstone.cli import check as checks
from curbstone.core.engine.log.format import SEGMENT_BYTES, decode_segment_header
from curbstone.core.engine.log.stored_batch import batches_in
from curbstone.core.errors import DataDirectoryError
from curbstone.core.message import Message
from curbstone.exit_codes import DAMAGED, CommandFailed
from tests.kit.inode import Inode
from tests.kit.lab import Lab

Files = dict[str, bytes]
LEAST_BYTES = 8
"""Shorter bodies are not looked for in files, because other bytes may happen to be the same."""


# --- edits


def _flip(files: Files, path: str, rng: Random) -> None:
    data = bytearray(files[path])
    for _ in range(rng.choice((1, 1, 20))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    files[path] = bytes(data)


def _overwrite(files: Files, path: str, rng: Random) -> None:
    data = files[path]
    at = rng.randrange(len(data) + 1)
    size = rng.choice((4, 512, 4096))
    other = files[rng.choice(sorted(files))]
    source = rng.choice((bytes(size), rng.randbytes(size), other[at : at + size], other[:size]))
    files[path] = data[:at] + source + data[at + len(source) :]


def _cut(files: Files, path: str, rng: Random) -> None:
    files[path] = files[path][: rng.choice((0, rng.randrange(len(files[path]) + 1)))]


def _extend(files: Files, path: str, rng: Random) -> None:
    files[path] += rng.choice((bytes(4096), rng.randbytes(100), files[path]))


def _remove(files: Files, path: str, rng: Random) -> None:
    if rng.random() < 0.8:
        del files[path]
        return
    folder = path.rpartition("/")[0] + "/"
    for other in [other for other in files if folder != "/" and other.startswith(folder)]:
        del files[other]


def _swap(files: Files, path: str, rng: Random) -> None:
    other = rng.choice(sorted(files))
    files[path], files[other] = files[other], files[path]


def _copy(files: Files, path: str, rng: Random) -> None:
    """A file is there twice: in place of another, or under a name that is still free."""
    folder, _, name = path.rpartition("/")
    number = name.partition(".")[0]
    names = [rng.choice(sorted(files)), f"{path}.new", f"{path}.bad", f"{path}.copy"]
    if number.isdigit():
        names += [f"{folder}/{int(number) + step:010d}.seg" for step in (-1, 1, 5)]
    files[rng.choice(names)] = files[path]


def _rename(files: Files, path: str, rng: Random) -> None:
    """A queue's directory has another name, perhaps that of another queue."""
    folder = path.rpartition("/")[0]
    others = sorted({other.rpartition("/")[0] for other in files if other.startswith("queues/")} - {folder})
    if not folder.startswith("queues/") or not others:
        return
    new = rng.choice([*others, f"{folder}x", "queues/0123456789ab"])
    for other in [other for other in files if other.startswith(f"{folder}/")]:
        files[new + other.removeprefix(folder)] = files.pop(other)


EDITS: tuple[Callable[[Files, str, Random], None], ...] = (
    *(_flip, _overwrite, _cut, _extend, _remove, _swap, _copy, _rename),
)


def edited(files: Files, rng: Random) -> tuple[Files, list[str]]:
    """Return a copy with up to three random edits, and what they were."""
    files = dict(files)
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        edit, path = rng.choice(EDITS), rng.choice(sorted(files))
        done.append(f"{edit.__name__} {path}")
        edit(files, path, rng)
    return files, done


# --- what may come of them


class Original:
    """A directory as its server left it, and what a start finds in it."""

    def __init__(self, files: Files, wall_ms: int) -> None:
        self.files = files
        self.wall_ms = wall_ms
        self.bodies: dict[str, set[bytes]] = {}
        """By queue's uid, everything that was ever published to it and is in its log."""
        lab = _lab_on(files)
        lab.start(wall_ms)
        lab.pass_time(0)
        self._read(files)
        self._read(_files_of(lab))
        self.pending = {message.body for message in _pending(lab)[1] if len(message.body) >= LEAST_BYTES}
        """The bodies of all messages that are to be delivered."""

    def _read(self, files: Files) -> None:
        for path, data in files.items():
            header = decode_segment_header(data[:SEGMENT_BYTES]) if path.endswith(".seg") else None
            if header is not None:
                for batch in batches_in(data[SEGMENT_BYTES:], header.salt):
                    found = {message.body for message in batch.messages()}
                    self.bodies.setdefault(f"{header.uid:012x}", set()).update(found)

    def judge(self, files: Files, folder: Path) -> None:
        """Check and start an edited copy; raise AssertionError if that does what it never may."""
        _check(files, folder)
        lab = _lab_on(files)
        with _no_traceback():
            try:
                lab.start(self.wall_ms)
                lab.pass_time(0)
            except DataDirectoryError:
                pass
            else:
                for uid, message in zip(*_pending(lab), strict=True):
                    assert message.body in self.bodies.get(uid, ()), f"{uid} delivers {message.body[:100]!r}"
        before = b"".join(data for path, data in files.items() if path.startswith("queues/"))
        after = b"".join(_files_of(lab).values())
        gone = [body[:100] for body in self.pending if body in before and body not in after]
        assert not gone, f"a start has removed {gone}"


def _lab_on(files: Files) -> Lab:
    """Return a machine that is off and has these files on its disk."""
    lab = Lab(cap=256 * 1024, max_message_size=64 * 1024)
    lab.shutdown()
    disk = lab.disk
    disk.caps = lambda _directory: None  # an edited directory may have any size
    disk.names = {}
    disk.dirs = {""}
    for path, data in files.items():
        inode = disk.names[path] = Inode()
        inode.cache = bytearray(data)
        inode.durable = bytearray(data)
        folder = path
        while folder := folder.rpartition("/")[0]:
            disk.dirs.add(folder)
    disk.durable_names, disk.durable_dirs, disk.changes = dict(disk.names), set(disk.dirs), []
    return lab


def _files_of(lab: Lab) -> Files:
    lab.broker.disk.catch_up()
    return lab.contents()


def _pending(lab: Lab) -> tuple[list[str], list[Message]]:
    """Return the pending messages of all queues, with the uids of these."""
    uids: list[str] = []
    messages: list[Message] = []
    for queue in lab.broker.queues():
        for group in ["", *queue.meta.groups]:
            (found,) = lab.answer(lambda done, queue=queue, group=group: queue.peek(10_000, done, group=group))  # type: ignore[misc]
            if isinstance(found, list):
                uids += [queue.uid] * len(found)
                messages += [each.message for each in found]
    return uids, messages


def _check(files: Files, folder: Path) -> None:
    """Run `curbstone check`, in this process."""
    for path, data in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    with suppress(CommandFailed, DataDirectoryError):
        assert checks.check(folder, as_json=True) in (0, DAMAGED)
    there = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert there == files, "check has changed something"


class _Tracebacks(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _no_traceback() -> Iterator[None]:
    logger, handler = logging.getLogger("curbstone"), _Tracebacks()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    assert not handler.found, handler.found
