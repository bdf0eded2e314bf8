"""The ids of staged transactions that were committed: files that are appended to, and rewritten when half is old.

An id is kept as a hash (see `core.staging.identity`) for `KEPT_MS` by the wall clock. Of a series its last number is
kept, and an id only until its directory is gone. There are at most `IDS_MAX` records; at that bound the oldest are
forgotten early, which a repeated commit then learns as "no such transaction". Every record is in two files (see
`core.staging.ids`): one that is lost would let a transaction be published twice.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import islice

from curbstone.core.disk import Disk, File
from curbstone.core.errors import Unavailable
from curbstone.core.host import Host
from curbstone.core.log.window import read_around
from curbstone.core.staging.identity import Hash, Series
from curbstone.core.staging.ids import LOST, RECORD_BYTES, CommittedId, decode_ids
from curbstone.core.values import Done

KEPT_MS = 7 * 86_400_000
IDS_MAX = 250_000
RETRY_MS = 1000
COPY = ".copy"
"""What the name of the second file ends with."""

_OLD_MIN = 1000
_SHIFT = 64
_MESSAGES = (1 << _SHIFT) - 1
_PRUNED_AT_ONCE = 64

logger = logging.getLogger("curbstone.core")


class Committed:
    """See the module's docstring. Opened blocking, written by jobs, one at a time."""

    def __init__(self, host: Host, disk: Disk, path: str) -> None:
        self._host = host
        self._disk = disk
        self._path = path
        self._ids: dict[bytes, int] = {}
        """The oldest first. The time and the count as one number: this is many times smaller than a tuple. A series has
        its last number in place of the count."""
        self._files: list[File] = []
        self._records = 0
        self._rewrite = False
        self._waiting: list[tuple[list[CommittedId], Done]] = []
        self._busy = False
        self._is_full = False
        self.is_stopping = False

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def damage(self) -> str:
        """What was lost of it, or an empty text."""
        lost = self._ids.get(LOST)
        if lost is None:
            return ""
        return (
            f"{lost & _MESSAGES} ids in {self._path} are lost to damage:"
            " a transaction of the last 7 days that is staged and committed again may be published twice"
        )

    def recover(self) -> None:
        """Read the files, and make both good; blocking."""
        first, second = self._read(self._path), self._read(self._path + COPY)
        if first is None and second is None:
            return
        ids = decode_ids(first or b"", second, lambda found: self._remember(*found))
        if ids.healed:
            logger.warning("%s was damaged in %d places; its copy has what was there", self._path, ids.healed)
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
            self._files = [self._disk.open(path) for path in self._paths]
            for file in self._files:
                file.sync()  # a process that was killed may not have
        except OSError as error:
            logger.error("%s can't be written: %s", self._path, error)
            self._rewrite = True

    @property
    def _paths(self) -> tuple[str, str]:
        return self._path, self._path + COPY

    def _read(self, path: str) -> bytes | None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            data, unreadable = read_around(file, 0, file.size())
        finally:
            file.close()
        if unreadable:
            logger.error("%s: %d places can't be read: the disk reports an error", path, len(unreadable))
        return data

    def _remember(self, hashed: bytes, time_ms: int, messages: int) -> None:
        self._ids.pop(hashed, None)
        self._ids[hashed] = time_ms << _SHIFT | messages

    def messages_of(self, hashed: Hash, series: Series | None = None) -> int | None:
        """Return how many messages were committed under an id, or None where it is not known to be committed.

        0 where only that is known: the series has come so far.
        """
        messages = self._value_of(hashed)
        if messages is None and series is not None:
            last = self._value_of(series.hashed)
            return 0 if last is not None and series.number <= last else None
        return messages

    def _value_of(self, hashed: Hash) -> int | None:
        value = self._ids.get(hashed)
        if value is None or (value >> _SHIFT) + KEPT_MS <= self._host.wall_ms():
            return None
        return value & _MESSAGES

    def add(self, hashed: Hash, messages: int, on_done: Done, series: Series | None = None) -> None:
        """Remember an id; `on_done(None)` when that is on disk, an error only when the server stops."""
        time_ms = self._host.wall_ms()
        found = [CommittedId(hashed, time_ms, messages)]
        if series is not None:
            last = max(series.number, self._value_of(series.hashed) or 0)
            found.append(CommittedId(series.hashed, time_ms, last))
        for record in found:
            self._remember(*record)
        self._prune(_PRUNED_AT_ONCE)
        self._waiting.append((found, on_done))
        self._flush()

    def forget(self, hashed: Hash) -> None:
        """Keep the id no longer, for its series says as much and nothing else asks for it."""
        self._ids.pop(hashed, None)

    def _prune(self, most: int) -> None:
        """Forget what is old, up to so many; and what is too much."""
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

    @property
    def is_working(self) -> bool:
        """Whether a job is under way."""
        return self._busy

    def _flush(self) -> None:
        if self._busy or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        rewrite = self._rewrite or not self._files or self._records > 2 * len(self._ids) + _OLD_MIN
        fresh = [record.encode() for found, _ in waiting for record in found]
        data = self._all() if rewrite else b"".join(fresh)
        records = len(self._ids) if rewrite else self._records + len(fresh)
        end = self._records * RECORD_BYTES
        self._busy = True

        def job() -> None:
            if rewrite:
                self._replace(data)
                return
            for file in self._files:  # one after the other: what a crash cuts off is whole in neither or in the first
                file.write(end, [data])
                file.sync()

        def done(_: object, error: BaseException | None) -> None:
            self._busy = False
            if error is not None:  # what was written may be there or not: the next attempt is a new file
                logger.error("%s can't be written: %s", self._path, error)
                self._rewrite = True
                if self.is_stopping:
                    for _, on_done in waiting:
                        on_done(Unavailable("the server is shutting down"))
                    return
                self._waiting = waiting + self._waiting
                self._host.call_later(RETRY_MS, self._try_again)
                return
            self._rewrite = False
            self._records = records
            for _, on_done in waiting:
                on_done(None)
            self._flush()

        self._host.submit(job, done)

    def _try_again(self) -> None:
        if not self.is_stopping:
            self._flush()

    def _all(self) -> bytes:
        items = self._ids.items()
        return b"".join([CommittedId(hashed, value >> _SHIFT, value & _MESSAGES).encode() for hashed, value in items])

    def _replace(self, data: bytes) -> None:
        """Put new files in place; blocking."""
        self.close()
        files: list[File] = []
        try:
            for path in self._paths:
                files.append(self._fresh(path, data))
        except BaseException:
            for file in files:
                file.close()
            raise
        self._files = files

    def _fresh(self, path: str, data: bytes) -> File:
        fresh = f"{path}.new"
        with suppress(FileNotFoundError):
            self._disk.remove(fresh)
        file = self._disk.open(fresh, create=True)
        try:
            file.write(0, [data])
            file.sync()
            self._disk.rename(fresh, path)
            self._disk.sync_dir(path.rpartition("/")[0])
        except BaseException:
            file.close()
            raise
        return file

    def close(self) -> None:
        """Close the files."""
        files, self._files = self._files, []
        for file in files:
            file.close()
