"""`curbstone check`: verify a data directory while no server runs on it. It never writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from curbstone.command_options import Json
from curbstone.core.disk import OsFile
from curbstone.core.errors import DataDirectoryError
from curbstone.core.format import Flag, Note, decode_entries, decode_floor, decode_notes
from curbstone.core.meta import load_meta
from curbstone.core.options import QueueOptions
from curbstone.core.recovery import Batch, Chain, Scan, find_chain
from curbstone.failure import DAMAGED, FAILED, WRONG, CommandFailed

QUEUES = "queues"
# What the defaults are does not matter here: only what is wrong in the file does.
_DEFAULTS = QueueOptions()


class ReadOnlyFile(OsFile):
    """A file that can't be changed: it is open for reading only."""

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Never."""
        _never()

    def truncate(self, size: int) -> None:
        """Never."""
        _never()

    def sync(self) -> None:
        """Never."""
        _never()


class ReadOnlyDisk:
    """A data directory to look at. Implements `core.disk.Disk`; whatever would change something is a bug."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, path: str, *, create: bool = False) -> ReadOnlyFile:
        """See `Disk.open`."""
        if create:
            _never()
        return ReadOnlyFile(os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))

    def list_dir(self, path: str) -> list[str]:
        """See `Disk.list_dir`."""
        return os.listdir(self.root / path)

    def make_dir(self, path: str) -> None:
        """Never."""
        _never()

    def rename(self, old: str, new: str) -> None:
        """Never."""
        _never()

    def remove(self, path: str) -> None:
        """Never."""
        _never()

    def remove_tree(self, path: str) -> None:
        """Never."""
        _never()

    def sync_dir(self, path: str) -> None:
        """Never."""
        _never()

    def close(self) -> None:
        """Nothing was taken."""


@dataclass
class Checked:
    """What was found in one queue's directory."""

    directory: str
    queue: str = ""
    segments: int = 0
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Odd, and no damage: what a crash leaves and the next start clears away."""


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory")],
    as_json: Json = False,
) -> int:
    """Verify every byte of a data directory; nothing is changed. Exit code 6 where there is damage.

    No server may be running on it: for that, check a copy or a snapshot.
    """
    from curbstone.output import console, print_json, progress, size, table

    if not directory.is_dir():
        raise CommandFailed(f"no such directory: {directory}", WRONG)
    if not (directory / QUEUES).is_dir():
        raise CommandFailed(f"{directory} is not a data directory: there is no {QUEUES} in it", WRONG)
    try:
        with _nobody_else(directory):
            disk = ReadOnlyDisk(directory)
            entries = sorted(disk.list_dir(QUEUES))
            found = []
            with progress("Checking", len(entries)) as done:
                for entry in entries:
                    found.append(check_queue(disk, f"{QUEUES}/{entry}"))
                    done(1)
    except OSError as error:
        raise CommandFailed(f"can't read {error.filename or directory}: {error.strerror}", FAILED) from None
    is_damaged = any(checked.damage for checked in found)
    if as_json:
        print_json({"ok": not is_damaged, "queues": [asdict(checked) for checked in found]})
        return DAMAGED if is_damaged else 0
    rows = [
        [c.queue or "?", c.directory, c.segments, c.batches, c.messages, size(c.bytes), "DAMAGED" if c.damage else "ok"]
        for c in found
    ]
    console().print(table(("QUEUE", "DIRECTORY", "SEGMENTS", "COMMITS", "MESSAGES", "SIZE", ""), rows))
    for checked in found:
        for text in (*[f"DAMAGE {text}" for text in checked.damage], *[f"note   {text}" for text in checked.notes]):
            console().print(text)
    return DAMAGED if is_damaged else 0


@contextmanager
def _nobody_else(directory: Path) -> Iterator[None]:
    """Refuse where a server runs on the directory, and keep one from starting meanwhile. Writes nothing."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # a copy without it
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            raise CommandFailed(
                f"the data directory {directory} is in use by process {owner or '?'}; stop it, or check a copy", FAILED
            ) from None
        yield
    finally:
        os.close(lock)


def check_queue(disk: ReadOnlyDisk, directory: str) -> Checked:
    """Return what is found in the directory of one queue."""
    checked = Checked(directory)
    if directory.endswith(".gone"):
        checked.notes.append(f"{directory}: its deletion was not finished")
        return checked
    try:
        meta = load_meta(disk, directory, _DEFAULTS)
        if meta is None:
            checked.notes.append(f"{directory}: its creation was not finished")
            return checked
        checked.queue = str(meta.name)
        chain = find_chain(disk, directory, int(meta.uid, 16))
    except DataDirectoryError as error:
        checked.damage.append(str(error))
        return checked
    except (ValueError, TypeError) as error:
        checked.damage.append(f"{directory}/meta is not understood: {error}")
        return checked
    _check_chain(disk, chain, checked)
    return checked


def _check_chain(disk: ReadOnlyDisk, chain: Chain, checked: Checked) -> None:
    """Scan the segments. What lies below the floor was dropped, and is no damage whatever it looks like."""
    floor = 1
    last_batch = 0
    damage = [(number, f"{checked.directory}: segment {number} is missing") for number in chain.missing]
    for place, (segment, header) in enumerate(chain.segments):
        checked.segments += 1
        checked.bytes += segment.size
        if header is None:
            damage.append((segment.number, f"{segment.path}: its header does not check"))
            continue
        floor = max(floor, header.floor)
        is_active = place == len(chain.segments) - 1
        scan = Scan(disk, segment, max(last_batch, header.next_batch - 1), is_active=is_active)
        for batch in scan.batches():
            checked.batches += 1
            floor = max(floor, _check_batch(batch, checked, damage, segment.number))
        last_batch = scan.last_batch
        damage += [(segment.number, text) for text in scan.damage]
        if is_active and scan.torn_bytes:
            checked.notes.append(f"{segment.path}: a commit of {scan.torn_bytes} bytes was cut off by a crash")
    checked.damage += [text for number, text in damage if number >= floor]
    checked.notes += [f"{path}: left over, no part of the log" for path in chain.trash]


def _check_batch(batch: Batch, checked: Checked, damage: list[tuple[int, str]], number: int) -> int:
    """Read what a batch holds, whose checksum is right; return the floor it sets, or 0."""
    header = batch.header
    try:
        messages = decode_entries(batch.data, batch.messages_at, header.messages, header.first_seq)
        notes = list(decode_notes(batch.data, batch.notes_at, batch.end_at))
    except Exception as error:  # whatever it is, the bytes are not what was written
        damage.append((number, f"{checked.directory}: batch {header.number} can't be decoded: {error}"))
        return 0
    if not header.flags & Flag.COPY:
        checked.messages += len(messages)
    return max([decode_floor(payload) for kind, payload in notes if kind == Note.FLOOR], default=0)


def _never() -> NoReturn:
    raise AssertionError("check writes nothing")
