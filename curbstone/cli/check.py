"""`curbstone check`: verifies a data directory while no server runs on it. It never writes."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from curbstone.cli.options import Json
from curbstone.cli.output import console, print_json, progress, size, table
from curbstone.core.disk import OF_ONE_FILE, OsFile, file_bytes
from curbstone.core.engine.directories import GONE_SUFFIX, QUEUES, TWIN_SUFFIX
from curbstone.core.engine.log.commit import ASIDE_SUFFIX
from curbstone.core.engine.log.format import Flag, Note, decode_log_start, decode_notes
from curbstone.core.engine.log.meta import Meta, load_meta
from curbstone.core.engine.log.scan import Scan
from curbstone.core.engine.log.stored_batch import StoredBatch
from curbstone.core.engine.recovery.chain import Chain, find_chain, holds_something
from curbstone.core.errors import DataDirectoryError
from curbstone.core.options import QueueOptions
from curbstone.core.transactions.tx_log import Journal
from curbstone.core.wal.kept import find_kept
from curbstone.core.wal.redo_format import Redo
from curbstone.core.wal.replay import overlaid, read_redo, redo_names
from curbstone.exit_codes import DAMAGED, FAILED, WRONG, CommandFailed
from curbstone.repair.dry_recovery import DryRecovery
from curbstone.repair.staging_check import check_staging

_ENTRY = re.compile(r"[0-9a-f]{12}(\.gone|\.twin)?")
# The defaults do not matter here, because only errors in the file are reported.
_DEFAULTS = QueueOptions()


class ReadOnlyFile(OsFile):
    """A file that is open for reading only. Reads have the redo files applied."""

    def __init__(self, fd: int, redo: Sequence[Redo] = ()) -> None:
        super().__init__(fd)
        self._redo = redo

    def read(self, offset: int, size: int) -> bytes:
        return overlaid(super().read(offset, size), offset, self._redo)

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
    """A data directory that is only read. Implements `core.disk.Disk`; calling a method that changes it is a bug."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._redo: dict[str, list[Redo]] = {}
        self.redo_damage: list[str] = []
        """The damage found in the redo files."""
        self.redo_notes: list[str] = []
        found = [read_redo(self, name) for name in redo_names(self)]
        for contents in found:
            self.redo_damage += [f"{contents.name}: {text}" for text in [*contents.denied, *contents.damage]]
            self.redo_notes += [f"{contents.name}: {text}" for text in contents.notes]
            for path, parts in contents.parts.items():
                self._redo[path] = self._redo.get(path, []) + parts

    def open(self, path: str, *, create: bool = False) -> ReadOnlyFile:
        """See `Disk.open`. Reads have the redo files applied, as the next start will apply them to the file."""
        if create:
            _never()
        fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return ReadOnlyFile(fd, self._redo.get(path, ()))

    def open_lasting(self, path: str, *, create: bool = False) -> ReadOnlyFile:
        return self.open(path, create=create)

    def list_dir(self, path: str) -> list[str]:
        fd = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

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

    def sync_all(self, path: str) -> bool:
        """Never."""
        _never()

    def close(self) -> None:
        """Do nothing, because no lock was taken."""


@dataclass
class Checked:
    """The findings in the directory of one queue."""

    directory: str
    queue: str = ""
    segments: int = 0
    batches: int = 0
    messages: int = 0
    """Message records in the log, including those of settled messages."""
    live: int | None = None
    """Messages that are not settled in every group; None if it is unknown because of damage."""
    pending: dict[str, int] = field(default_factory=dict)
    """How many messages each group has to settle; "" is the unnamed group."""
    bytes: int = 0
    bindings: list[str] = field(default_factory=list)
    """The events that are bound to the queue."""
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Unusual findings that are not damage, such as leftovers of a crash that the next start removes."""


def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory")],
    as_json: Json = False,
) -> int:
    """Verify every byte of a data directory, and change nothing.

    No server may be running on it. To check the data of a running server, check a copy or a snapshot of them. The exit
    code is 6 if there is damage.
    """
    if not directory.is_dir():
        raise CommandFailed(f"no such directory: {directory}", WRONG)
    if not (directory / QUEUES).is_dir():
        raise CommandFailed(f"{directory} is not a data directory: it has no {QUEUES}", WRONG)
    try:
        with nobody_else(directory):
            disk = ReadOnlyDisk(directory)
            entries = sorted(disk.list_dir(QUEUES))
            found = []
            revival = DryRecovery(disk)
            journal, journal_damage = _check_journal(revival)
            with progress("Checking", len(entries)) as done:
                for entry in entries:
                    found.append(check_queue(disk, f"{QUEUES}/{entry}", revival))
                    done(1)
            check_names(found)
            staging = check_staging(disk)
            journal_damage += journal.damage(revival.highest_tx) + disk.redo_damage + find_kept(disk).texts
            journal_notes = journal.notes(revival.highest_tx) + disk.redo_notes
    except OSError as error:
        raise CommandFailed(f"can't read {error.filename or directory}: {error.strerror}", FAILED) from None
    is_damaged = bool(journal_damage or staging.damage) or any(checked.damage for checked in found)
    if as_json:
        transactions = len({part.tx for part in journal.parts})
        of_journal = {"transactions": transactions, "damage": journal_damage, "notes": journal_notes}
        queues = [asdict(checked) for checked in found]
        print_json({"ok": not is_damaged, "journal": of_journal, "staging": asdict(staging), "queues": queues})
        return DAMAGED if is_damaged else 0
    rows = [
        [c.queue or "?", c.directory, c.segments, c.batches, c.messages, "?" if c.live is None else c.live]
        + [size(c.bytes), "DAMAGED" if c.damage else "ok"]
        for c in found
    ]
    console().print(table(("QUEUE", "DIRECTORY", "SEGMENTS", "COMMITS", "RECORDS", "LIVE", "SIZE", ""), rows))
    of_server = [(journal_damage, journal_notes), (staging.damage, staging.notes)]
    for damage, notes in [*of_server, *((checked.damage, checked.notes) for checked in found)]:
        for text in (*[f"DAMAGE {text}" for text in damage], *[f"note   {text}" for text in notes]):
            console().print(text)
    return DAMAGED if is_damaged else 0


@contextmanager
def nobody_else(directory: Path) -> Iterator[None]:
    """Fail if a server runs on the directory, and prevent that one starts in the meantime. Writes nothing."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:  # a copy of a data directory may have no lock file
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


def _check_journal(revival: DryRecovery) -> tuple[Journal, list[str]]:
    """Read the journal of transactions over several queues. If it can't be decoded, return the reason, too."""
    try:
        return revival.read_journal(), []
    except OSError:
        raise
    except Exception as error:  # the checksum is right, but the contents can't be decoded
        return Journal([], 0, [], []), [f"journal: it can't be decoded: {error}"]


def check_queue(disk: ReadOnlyDisk, directory: str, revival: DryRecovery) -> Checked:
    """Check the directory of one queue and return the findings."""
    checked = Checked(directory)
    entry = directory.rpartition("/")[2]
    uid = entry[:12]
    if not _ENTRY.fullmatch(entry):
        checked.notes.append(f"{directory} is not the directory of a queue; it is ignored")
        return checked
    if directory.endswith(GONE_SUFFIX):
        checked.notes.append(f"{directory}: its deletion was not finished")
        return checked
    try:
        names = disk.list_dir(directory)
        meta = load_meta(disk, directory, _DEFAULTS)
        if meta is None and holds_something(disk, directory, int(uid, 16)):
            checked.damage.append(f"{directory}/meta is missing, but the log has commits")
            return checked
        if meta is None:
            checked.notes.append(f"{directory}: its creation was not finished")
            return checked
        if meta.uid != uid:
            checked.damage.append(f"{directory}/meta belongs to another directory, {meta.uid}")
            return checked
        checked.queue = str(meta.name)
        chain = find_chain(disk, directory, int(uid, 16))
    except NotADirectoryError:
        checked.damage.append(f"{directory} is not a directory (symbolic links are not followed); it is not served")
        return checked
    except DataDirectoryError as error:
        checked.damage.append(str(error))
        return checked
    except OSError as error:
        if error.errno not in OF_ONE_FILE:
            raise
        checked.damage.append(f"{directory} can't be read: {error.strerror}; it is not served")
        return checked
    except (ValueError, TypeError) as error:
        checked.damage.append(f"{directory}/meta can't be decoded: {error}")
        return checked
    _check_meta(disk, meta, names, checked)
    _check_chain(disk, chain, checked)
    _count_live(revival, meta, checked)
    cap = meta.options.cap
    if "cap" in meta.changes and checked.bytes > cap:
        checked.notes.append(
            f"{directory} holds {checked.bytes} bytes, more than its cap of {cap}; the next start cleans it"
        )
    return checked


def _check_meta(disk: ReadOnlyDisk, meta: Meta, names: list[str], checked: Checked) -> None:
    """Check a queue's `meta`, and the files beside its log."""
    checked.bindings = sorted(meta.bindings)
    if meta.doubt:
        checked.notes.append(f"{checked.directory}: {meta.doubt}")
    if meta.unknown_names:
        unknown = ", ".join(meta.unknown_names)
        checked.notes.append(f"{checked.directory}/meta: {unknown} is of a newer version, and has no effect here")
    if checked.directory.endswith(TWIN_SUFFIX):
        checked.damage.append(f"{checked.directory} was set aside, as another directory held queue {meta.name}")
    asides = sorted(name for name in names if name.endswith(ASIDE_SUFFIX))
    checked.damage += [f"{checked.directory}/{name}: a damaged segment, kept for repair" for name in asides]
    checked.bytes += sum(file_bytes(disk, f"{checked.directory}/{name}") for name in asides)


def check_names(found: list[Checked]) -> None:
    """Report directories that hold a queue of the same name."""
    served = [c for c in found if c.queue and not c.directory.endswith(TWIN_SUFFIX)]
    for checked in served:
        others = [other.directory for other in served if other.queue == checked.queue and other is not checked]
        if others:
            checked.damage.append(f"{checked.directory} and {others[0]} both hold queue {checked.queue}")


def _count_live(revival: DryRecovery, meta: Meta, checked: Checked) -> None:
    """Replay the log as a start would, and count the messages still to be delivered."""
    try:
        revived = revival.queue(meta, checked.directory)
    except OSError:
        raise
    except Exception as error:  # a fault in the check or in recovery, with which the server would not start either
        checked.damage.append(f"{checked.directory}: the log can't be replayed: {type(error).__name__}: {error}")
        return
    checked.live = revived.live
    checked.pending = revived.pending
    checked.notes += [f"{checked.directory}: {text}" for text in revived.transactions]


def _check_chain(disk: ReadOnlyDisk, chain: Chain, checked: Checked) -> None:
    """Scan the segments. Those below the start of the log were dropped, so nothing in them is damage."""
    log_start = 1
    last_batch = 0
    damage = [(number, f"{checked.directory}: {_gap(number, chain)}") for number in chain.missing]
    damage += chain.damage
    for place, (segment, header) in enumerate(chain.segments):
        checked.segments += 1
        checked.bytes += segment.size
        if header is None:
            before = chain.segments[place - 1][0].number if place else 0
            lost = f", and the segments between it and segment {before} are unknown" if place else ""
            lost = lost if before < segment.number - 1 else ""
            damage.append((segment.number, f"{segment.path}: the checksum of its header is wrong{lost}"))
            continue
        log_start = max(log_start, header.log_start)
        is_active = place == len(chain.segments) - 1
        scan = Scan(disk, segment, max(last_batch, header.next_batch - 1), is_active=is_active)
        for batch in scan.batches():
            checked.batches += 1
            log_start = max(log_start, _check_batch(batch, checked, damage, segment.number))
        last_batch = scan.last_batch
        damage += [(segment.number, text) for text in scan.damage]
        if is_active and scan.torn_bytes:
            checked.notes.append(
                f"{segment.path}: the checksum of its last commit, {scan.torn_bytes} bytes, is wrong:"
                " torn by a crash before it was confirmed, or damaged"
            )
    checked.damage += [text for number, text in damage if number >= log_start] + chain.sort_out(log_start)
    checked.notes += [f"{path}: left over, not part of the log" for path in chain.trash]


def _gap(number: int, chain: Chain) -> str:
    """Describe what is missing if segment `number` does not exist."""
    before = max((segment.number for segment, _ in chain.segments if segment.number < number), default=0)
    if before == number - 1:
        return f"segment {number} is missing"
    return f"segment {number} is missing, with all between it and " + (f"segment {before}" if before else "the oldest")


def _check_batch(batch: StoredBatch, checked: Checked, damage: list[tuple[int, str]], number: int) -> int:
    """Read the records of a batch whose checksum is right. Return the start of the log that it records, or 0."""
    header = batch.header
    try:
        messages = batch.messages()
        notes = list(decode_notes(batch.data, batch.notes_at, batch.end_at))
    except Exception as error:  # whatever the error is, the bytes are damaged
        damage.append((number, f"{checked.directory}: batch {header.number} can't be decoded: {error}"))
        return 0
    if not header.flags & Flag.COPY:
        checked.messages += len(messages)
    return max([decode_log_start(payload) for kind, payload in notes if kind == Note.LOG_START], default=0)


def _never() -> NoReturn:
    raise AssertionError("check writes nothing")
