"""The broker's journal: it makes a transaction over several queues happen as a whole, or not at all.

A record has a part for each queue: what the transaction does there. Once the record is synced, the transaction has
happened. Each queue then writes its part as a batch that carries the record's number. After a crash the parts that are
not in their queue's log yet are written again (`core.transactions.recovery`). A queue's log has the highest number
that it has, so no part is written twice. When no part is outstanding, the file is used again from its beginning.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

from curbstone.core.disk import NO_SPACE, Disk, File, remove_file, replace_file
from curbstone.core.engine.log.file_view import read_around
from curbstone.core.errors import Unavailable, client_text
from curbstone.core.host import Host
from curbstone.core.transactions.records import DamagedRecord, Recorded, decode_records, encode_record, record_bytes
from curbstone.core.values import Done

logger = logging.getLogger("curbstone.core")

JOURNAL = "journal"
"""The name of its file."""
JOURNAL_BYTES_MAX = 64 * 1024 * 1024
REPLACE_AGAIN_MS = 1000

Parts = dict[int, bytes]
"""What a transaction does to each queue, by the queue's uid."""


class Journal(NamedTuple):
    """What the journal has."""

    parts: list[Recorded]
    end: int
    """Where its whole records end."""
    unreadable: list[str]
    """A text for each stretch that can't be read."""
    unsound: list[DamagedRecord]
    """The records that do not check, for another reason, though the next ones do."""

    def damage(self, highest: int) -> list[str]:
        """Return a text for each damage. `highest` is the highest number of a transaction that a queue's log has.

        A log has nothing of a transaction before its record is synced, and a confirmed one is in all logs. So a record
        with a higher number was not confirmed, and may have been torn by a power cut.
        """
        what = "a transaction over several queues may be seen in part"
        return self.unreadable + [_damage_text(each, what) for each in self.unsound if each.tx <= highest]

    def notes(self, highest: int) -> list[str]:
        """Return a text for each record that does not check and is no damage; see `damage`."""
        what = "a transaction over several queues that was not confirmed is not taken"
        return [_damage_text(each, what) for each in self.unsound if each.tx > highest]


def _damage_text(record: DamagedRecord, what: str) -> str:
    return f"{JOURNAL}: bytes {record.start} to {record.end} do not check: {what}"


def read_journal(disk: Disk) -> Journal:
    """Read the journal; blocking."""
    try:
        file = disk.open(JOURNAL)
    except FileNotFoundError:
        return Journal([], 0, [], [])
    with closing(file):
        file.sync()  # a process that was killed may have left bytes that only the system's memory has
        data, bad = read_around(file, 0, file.size())
    disk.sync_dir("")
    unreadable = [f"{JOURNAL}: bytes {first} to {end} can't be read" for first, end in bad]
    contents = decode_records(data)
    unsound = [each for each in contents.unsound if not any(low < each.end and each.start < high for low, high in bad)]
    return Journal(contents.parts, contents.end, unreadable, unsound)


class _Waiting(NamedTuple):
    """A record on its way to the disk."""

    tx: int
    parts: Parts
    on_done: Done


class _Erasing(NamedTuple):
    """A queue of which the file is to keep only the parts that are still needed."""

    uid: int
    is_deleted: bool
    on_done: Done


class TxLog:
    """The log of transactions over several queues, in the file `journal`. Jobs open and write it, one at a time."""

    def __init__(self, host: Host, disk: Disk) -> None:
        self._host = host
        self._disk = disk
        self._file: File | None = None
        self._end = 0
        self._needed: dict[int, Parts] = {}
        """Parts that are not in their queue's log yet, by transaction."""
        self._waiting: list[_Waiting] = []
        self._doubtful: list[tuple[_Waiting, BaseException]] = []
        """Records whose write failed: until the file is replaced, they may be on disk or not."""
        self._uids: set[int] | None = None
        """The queues that the file may have something of, even behind its end; None for any queue."""
        self._erasing: list[_Erasing] = []
        """The erases that wait for the file to be replaced."""
        self._erase_from = 0
        """The first transaction that they need not wait for: those before it have to be in the file first."""
        self._must_replace = False
        """Whether nothing may be written to the file any more, because it is unknown what a crash would leave of it."""
        self._rests = False
        self._busy = False
        self.damage: list[str] = []
        """The damage that the start found in the file, as texts for operators."""
        self.next_tx = 1

    @property
    def is_working(self) -> bool:
        return self._busy or bool(self._erasing)

    @property
    def needed_until(self) -> int:
        """How many bytes of the file the next start needs; 0 if every part is in its queue's log."""
        return self._end if self._needed else 0

    def recover(self, highest: int) -> list[Recorded]:
        """Return all parts of all whole records; blocking. `highest` is the highest number that a queue's log has."""
        journal = read_journal(self._disk)
        self._end = journal.end
        self.damage = journal.damage(highest)
        self.next_tx = max([highest, *[part.tx for part in journal.parts]]) + 1
        for text in self.damage:
            logger.error("damaged: %s", text)
        for text in journal.notes(highest):
            logger.warning("%s", text)
        return journal.parts

    def keep(self, part: Recorded) -> None:
        """Keep a part that was read back and is not in its queue's log yet, until `part_done` is called."""
        self._needed.setdefault(part.tx, {})[part.uid] = part.data

    def write(self, parts: Parts, on_done: Done) -> int:
        """Record a transaction and return its number.

        `on_done(error)` is called when the record is synced or, with an error, when it certainly has no effect.
        """
        tx = self.next_tx
        self.next_tx += 1
        self._waiting.append(_Waiting(tx, parts, on_done))
        self._go()
        return tx

    def part_done(self, tx: int, uid: int) -> None:
        """A part is in its queue's log, or its queue is gone."""
        parts = self._needed[tx]
        del parts[uid]
        if not parts:
            del self._needed[tx]

    def erase(self, uid: int, on_done: Done, *, is_deleted: bool = False) -> None:
        """Leave nothing of a queue in the file except parts that are needed, then call `on_done(error)`.

        Of a deleted queue no part is needed, even if one is outstanding because the queue had broken down or a start
        could not write it.
        """
        is_coming = any(uid in item.parts for item in self._waiting)
        if self._uids is not None and uid not in self._uids and not is_coming:
            on_done(None)
            return
        self._erasing.append(_Erasing(uid, is_deleted, on_done))
        self._erase_from = self.next_tx
        self._go()

    # --- the file

    def _go(self) -> None:
        """Begin the next job, if there is anything to do and none is under way."""
        if self._busy or self._rests:
            return
        if self._must_replace or self._erasable:
            self._replace()
        elif self._waiting:
            self._append()

    @property
    def _erasable(self) -> int:
        """How many erases can be done now; 0 while an earlier transaction has to be written first."""
        is_before = self._waiting and self._waiting[0].tx < self._erase_from
        return 0 if is_before else len(self._erasing)

    def _append(self) -> None:
        """Write and sync all that waits."""
        size = sum([record_bytes(item.parts.values()) for item in self._waiting])
        offset = self._end if self._needed else 0
        if offset + size > JOURNAL_BYTES_MAX and len(self._needed_data()) + size <= JOURNAL_BYTES_MAX // 2:
            self._replace()
            return
        waiting, self._waiting = self._waiting, []
        if offset + size > JOURNAL_BYTES_MAX:
            full = Unavailable("too many transactions over several queues are under way")
            for item in waiting:
                self._host.call_soon(partial(item.on_done, full))
            self._go()
            return
        if self._uids is not None:
            self._uids.update(*[item.parts for item in waiting])
        is_undone = False

        def job() -> None:
            nonlocal is_undone
            data = b"".join([encode_record(item.tx, item.parts.values()) for item in waiting])
            if self._file is None:
                self._file = self._open()
            try:
                self._file.write(offset, [data])
            except OSError as failure:
                is_undone = failure.errno in NO_SPACE and self._undo(offset)
                raise
            self._file.sync()

        def finished(_: object, error: BaseException | None) -> None:
            self._busy = False
            failed = [(item, error) for item in waiting if error is not None]
            if error is None:
                self._end = offset + size
                self._needed |= {item.tx: item.parts for item in waiting}
                for item in waiting:
                    item.on_done(None)
            elif is_undone:
                self._end = min(self._end, offset)
                self._refuse(failed)
            else:
                self._doubtful = failed
                self._must_replace = True
            self._go()

        self._busy = True
        self._host.submit(job, finished)

    def _replace(self) -> None:
        """Replace the file by one that has only the needed parts and no doubtful records; by none if none are needed.

        A doubtful transaction is not reported as failed before that. A crash could still make it happen, after its
        caller had done the same in another way.
        """
        erasing = self._erasable
        self._forget({each.uid for each in self._erasing[:erasing] if each.is_deleted})
        data = self._needed_data()
        uids = {uid for parts in self._needed.values() for uid in parts}

        def job() -> None:
            self.close()
            if data:
                self._file = replace_file(self._disk, JOURNAL, data)
            else:  # removing it works on a full disk, too
                remove_file(self._disk, JOURNAL)

        def finished(_: object, error: BaseException | None) -> None:
            self._busy = False
            self._must_replace = error is not None
            erased, self._erasing = self._erasing[:erasing], self._erasing[erasing:]
            if error is None:
                self._end = len(data)
                self._uids = uids
                doubtful, self._doubtful = self._doubtful, []
                self._refuse(doubtful)
            else:
                self._rests = True
                self._host.call_later(REPLACE_AGAIN_MS, self._rest_ended)
                erased, self._erasing = erased + self._erasing, []
            refusal = (
                Unavailable(f"the journal can't be made anew: {client_text(error)}") if error is not None else None
            )
            for each in erased:
                each.on_done(refusal)
            self._go()

        self._busy = True
        self._host.submit(job, finished)

    def _forget(self, deleted: set[int]) -> None:
        """Drop the outstanding parts of these queues; `part_done` will not be called for them."""
        for tx, parts in list(self._needed.items()):
            self._needed[tx] = left = {uid: data for uid, data in parts.items() if uid not in deleted}
            if not left:
                del self._needed[tx]

    def _rest_ended(self) -> None:
        self._rests = False
        self._go()

    def _needed_data(self) -> bytes:
        return b"".join([encode_record(tx, parts.values()) for tx, parts in sorted(self._needed.items())])

    @staticmethod
    def _refuse(failed: list[tuple[_Waiting, BaseException]]) -> None:
        for item, error in failed:
            item.on_done(Unavailable(f"the journal can't be written: {client_text(error)}"))

    def _undo(self, offset: int) -> bool:
        """Cut off the records that found no room on the disk; return whether they are certainly gone."""
        assert self._file is not None
        try:
            self._file.truncate(offset)
            self._file.sync()
        except OSError:
            return False
        return True

    def _open(self) -> File:
        with suppress(FileExistsError):
            self._disk.open(JOURNAL, create=True).close()
            self._disk.sync_dir("")
        return self._disk.open(JOURNAL)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
