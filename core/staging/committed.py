"""The ids of staged transactions that were committed, so that a repeated commit changes nothing.

An id is kept as a hash (see `core.staging.identity`), for `KEPT_MS` by the wall clock. Of a series only the last
number, and what that transaction was about, are kept so long; its ids are kept until their directories are gone. There
are at most `IDS_MAX` records. Above that the oldest are forgotten early, and a repeated commit finds no such
transaction any more.

All records have the same size. They are in two files that hold the same, because a lost id would let a transaction be
published twice. So they are no facts of a queue's log, which holds each record once, and is deleted with its queue. New
records are appended; the files are replaced when most of their records are old. ::

    record   CRC of the rest (4), hash of the id (16), wall clock in ms (8), messages, or the last number of a
             series, or a number for its content (8); numbers are little-endian

A record is written to the first file and synced, then to the second and synced, and only then the commit is answered.
So the other file has what one of them has lost. A record that is good in neither file was lost to damage, unless it
lies behind the end of the second file: then a crash has cut off the append, and the commit was never answered. In the
first release there was only one file, so records that are damaged there are lost.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from curbstone.core.disk import File, replace_file
from curbstone.core.engine.shared import Shared
from curbstone.core.errors import shutting_down
from curbstone.core.staging.files import ROOT, read_file
from curbstone.core.staging.identity import HASH_BYTES, Hash, Series
from curbstone.core.values import Done

PATHS = (f"{ROOT}/committed", f"{ROOT}/committed.copy")
KEPT_MS = 7 * 86_400_000
IDS_MAX = 250_000
RETRY_MS = 1000
LOST = bytes(HASH_BYTES)
"""The hash of the record that says how many ids were lost, and when that was found."""

_RECORD = struct.Struct(f"<I{HASH_BYTES}sQQ")
RECORD_BYTES = _RECORD.size
_OLD_MIN = 1000
_SHIFT = 64
_MESSAGES = (1 << _SHIFT) - 1
_PRUNED_AT_ONCE = 64

logger = logging.getLogger("curbstone.core")


class CommittedId(NamedTuple):
    """A transaction that was committed."""

    hashed: bytes
    time_ms: int
    messages: int

    def encode(self) -> bytes:
        rest = _RECORD.pack(0, *self)[4:]
        return crc32(rest).to_bytes(4, "little") + rest


class Ids(NamedTuple):
    """What was found in the two files."""

    good: int
    """How many ids were found."""
    lost: int
    """How many records are good in neither file, so that their ids are not known any more."""
    healed: int
    """How many records are damaged in one file and good in the other."""
    is_same: bool
    """Whether both files are the same and hold nothing but the ids that were found."""


def decode_ids(first: bytes, second: bytes | None, take: Callable[[CommittedId], None]) -> Ids:
    """Call `take` with each id that the files hold, in order; `second` is None if there is no second file."""
    others = second or b""
    answered = _count(first if second is None else second)
    synced = _count(others)
    while synced and _record(others, synced - 1) is None:
        synced -= 1
    good = lost = healed = 0
    for place in range(max(_count(first), _count(others))):
        one, other = _record(first, place), _record(others, place)
        known = [each for each in ([one] if one == other else [one, other]) if each is not None]
        for each in known:
            take(each)
        good += len(known)
        if not known:
            lost += place < answered
        elif one is None or other is None:
            healed += place < (_count(first) if one is None else synced)
    return Ids(good, lost, healed, first == second and good * RECORD_BYTES == len(first))


def _count(data: bytes) -> int:
    return len(data) // RECORD_BYTES


def _record(data: bytes, place: int) -> CommittedId | None:
    """Return a record if it is there and good."""
    at = place * RECORD_BYTES
    if at + RECORD_BYTES > len(data):
        return None
    crc, *fields = _RECORD.unpack_from(data, at)
    if crc32(memoryview(data)[at + 4 : at + RECORD_BYTES]) != crc:
        return None
    return CommittedId(*fields)


class CommittedIds:
    """The ids in memory and in both files. `recover` blocks; later the files are written by jobs, one at a time."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._host = shared.host
        self._disk = shared.disk
        self._ids: dict[bytes, int] = {}
        """By hash, the oldest first: time and messages (of a series, its last number), in one number to save memory."""
        self._files: list[File] = []
        self._records = 0
        """How many records are in each file."""
        self._must_replace = False
        self._waiting: list[tuple[list[CommittedId], Done]] = []
        self.is_working = False
        """Whether a job is under way."""
        self._is_full = False

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def damage(self) -> str:
        """How many ids were lost, as a text for operators, or an empty text."""
        lost = self._ids.get(LOST)
        if lost is None:
            return ""
        return (
            f"{lost & _MESSAGES} ids in {PATHS[0]} are lost to damage:"
            " a transaction of the last 7 days that is staged and committed again may be published twice"
        )

    def messages_of(self, hashed: Hash, series: Series | None = None) -> int | None:
        """Return how many messages were committed under an id, or None if it is not known to be committed.

        If only the series shows that it was committed, the number is unknown, and 0 is returned.
        """
        messages = self._value_of(hashed)
        if messages is None and series is not None:
            last = self._value_of(series.hashed)
            return 0 if last is not None and series.number <= last else None
        return messages

    def is_other(self, series: Series) -> bool:
        """Return whether a committed place of a series is not the last one, or was about something else."""
        known = self._value_of(series.content_hash)
        return self._value_of(series.hashed) != series.number or known not in (None, series.content)

    def _value_of(self, hashed: Hash) -> int | None:
        value = self._ids.get(hashed)
        if value is None or (value >> _SHIFT) + KEPT_MS <= self._host.wall_ms():
            return None
        return value & _MESSAGES

    def add(self, hashed: Hash, messages: int, on_done: Done, series: Series | None = None) -> None:
        """Remember an id. `on_done` is called when that is on disk; it gets an error only if the server stops."""
        time_ms = self._host.wall_ms()
        found = [CommittedId(hashed, time_ms, messages)]
        if series is not None:
            last = max(series.number, self._value_of(series.hashed) or 0)
            found.append(CommittedId(series.hashed, time_ms, last))
            if series.content:
                found.append(CommittedId(series.content_hash, time_ms, series.content))
        for record in found:
            self._remember(*record)
        self._prune(_PRUNED_AT_ONCE)
        self._waiting.append((found, on_done))
        self._flush()

    def forget(self, hashed: Hash) -> None:
        """Forget an id that is in a series. The last number of the series is enough from now on."""
        self._ids.pop(hashed, None)

    def _remember(self, hashed: Hash, time_ms: int, messages: int) -> None:
        self._ids.pop(hashed, None)
        self._ids[hashed] = time_ms << _SHIFT | messages

    def _prune(self, most: int) -> None:
        """Forget up to `most` ids that are old, and the oldest of those above the limit."""
        now_ms = self._host.wall_ms()
        for hashed in list(islice(self._ids, most)):
            if (self._ids[hashed] >> _SHIFT) + KEPT_MS > now_ms:
                break
            del self._ids[hashed]
        if len(self._ids) > IDS_MAX and not self._is_full:
            self._is_full = True
            logger.warning("more than %d transactions committed in 7 days: the oldest ids are forgotten", IDS_MAX)
        while len(self._ids) > IDS_MAX:
            del self._ids[next(iter(self._ids))]

    # --- the files

    def recover(self) -> None:
        """Read the files, and replace them if they are damaged or differ. Blocking."""
        first, second = self._read(PATHS[0]), self._read(PATHS[1])
        if first is None and second is None:
            return
        ids = decode_ids(first or b"", second, lambda found: self._remember(*found))
        if ids.healed:
            logger.warning("%s was damaged in %d places; its copy has what was there", PATHS[0], ids.healed)
        if ids.lost:
            self._remember(LOST, self._host.wall_ms(), ids.lost + (self._ids.get(LOST, 0) & _MESSAGES))
            logger.error("damaged: %s", self.damage)
        self._prune(len(self._ids))
        self._records = ids.good
        try:
            if not ids.is_same:
                self._records = len(self._ids)
                self._replace(self._all())
                return
            self._files = [self._disk.open(path) for path in PATHS]
            for file in self._files:
                file.sync()  # a process that was killed may not have done so
        except OSError as error:
            logger.error("%s can't be written: %s", PATHS[0], error)
            self._must_replace = True

    def _read(self, path: str) -> bytes | None:
        found = read_file(self._disk, path)
        if found is None:
            return None
        data, unreadable = found
        if unreadable:
            logger.error("%s: %d places can't be read: the disk reports an error", path, unreadable)
        return data

    def _flush(self) -> None:
        if self.is_working or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        is_new = self._must_replace or not self._files or self._records > 2 * len(self._ids) + _OLD_MIN
        fresh = [record.encode() for found, _ in waiting for record in found]
        data = self._all() if is_new else b"".join(fresh)
        records = len(self._ids) if is_new else self._records + len(fresh)
        end = self._records * RECORD_BYTES
        self.is_working = True

        def job() -> None:
            if is_new:
                self._replace(data)
                return
            for file in self._files:  # one after the other, so that a crash can't tear the same record in both
                file.write(end, [data])
                file.sync()

        def done(_: object, error: BaseException | None) -> None:
            self.is_working = False
            # After a failure, the records may be in the files or not. The next attempt replaces both files.
            self._must_replace = error is not None
            if error is None:
                self._records = records
                for _, on_done in waiting:
                    on_done(None)
                self._flush()
                return
            logger.error("%s can't be written: %s", PATHS[0], error)
            if self._shared.is_stopping:
                for _, on_done in waiting:
                    on_done(shutting_down())
                return
            self._waiting = waiting + self._waiting
            self._host.call_later(RETRY_MS, self._try_again)

        self._host.submit(job, done)

    def _try_again(self) -> None:
        if not self._shared.is_stopping:
            self._flush()

    def _all(self) -> bytes:
        items = self._ids.items()
        return b"".join([CommittedId(hashed, value >> _SHIFT, value & _MESSAGES).encode() for hashed, value in items])

    def _replace(self, data: bytes) -> None:
        """Replace both files; blocking."""
        self.close()
        for path in PATHS:
            self._files.append(replace_file(self._disk, path, data))

    def close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()
