"""The ids of staged transactions that were committed: a file that is appended to, and rewritten when half is old.

An id is kept as a hash of project and id for `KEPT_MS` by the wall clock. There are at most `IDS_MAX`; at that
bound the oldest are forgotten early, which a repeated commit then learns as "no such transaction". ::

    record   CRC of the rest (4), hash (16), wall clock in ms (8), messages (8)
"""

from __future__ import annotations

import logging
import struct
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from zlib import crc32

from curbstone.core.consumer import Done
from curbstone.core.disk import Disk, File
from curbstone.core.errors import Unavailable
from curbstone.core.host import Host

KEPT_MS = 7 * 86_400_000
IDS_MAX = 250_000
RETRY_MS = 1000
HASH_BYTES = 16

_RECORD = struct.Struct(f"<I{HASH_BYTES}sQQ")
_OLD_MIN = 1000
_SHIFT = 64
_PRUNED_AT_ONCE = 64

logger = logging.getLogger("curbstone.core")


def hash_of(project: str, identifier: str) -> bytes:
    """Return what stands for a transaction's id."""
    return blake2b(f"{project}/{identifier}".encode(), digest_size=HASH_BYTES).digest()


class Committed:
    """See the module's docstring. Opened blocking, written by jobs, one at a time."""

    def __init__(self, host: Host, disk: Disk, path: str) -> None:
        self._host = host
        self._disk = disk
        self._path = path
        self._ids: dict[bytes, int] = {}
        """The oldest first. The time and the count as one number: this is many times smaller than a tuple."""
        self._file: File | None = None
        self._end = 0
        self._records = 0
        self._rewrite = False
        self._waiting: list[tuple[bytes, bytes, Done]] = []
        self._busy = False
        self._is_full = False
        self.is_stopping = False

    def __len__(self) -> int:
        return len(self._ids)

    def recover(self) -> None:
        """Read the file; blocking."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        self._file = file
        data = file.read(0, file.size())
        size = _RECORD.size
        while self._end + size <= len(data):
            crc, hashed, time_ms, messages = _RECORD.unpack_from(data, self._end)
            if crc32(memoryview(data)[self._end + 4 : self._end + size]) != crc:
                break
            self._ids.pop(hashed, None)
            self._ids[hashed] = time_ms << _SHIFT | messages
            self._end += size
            self._records += 1
        if self._end < len(data):  # an append that was cut off, and was never answered
            file.truncate(self._end)
        file.sync()  # a process that was killed may not have
        self._prune(len(self._ids))

    def messages_of(self, hashed: bytes) -> int | None:
        """Return how many messages were committed under an id, or None where it is not known."""
        value = self._ids.get(hashed)
        if value is None or (value >> _SHIFT) + KEPT_MS <= self._host.wall_ms():
            return None
        return value & (1 << _SHIFT) - 1

    def add(self, hashed: bytes, messages: int, on_done: Done) -> None:
        """Remember an id; `on_done(None)` when that is on disk, an error only when the server stops."""
        time_ms = self._host.wall_ms()
        rest = _RECORD.pack(0, hashed, time_ms, messages)[4:]
        self._ids.pop(hashed, None)
        self._ids[hashed] = time_ms << _SHIFT | messages
        self._prune(_PRUNED_AT_ONCE)
        self._waiting.append((hashed, crc32(rest).to_bytes(4, "little") + rest, on_done))
        self._flush()

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
        rewrite = self._rewrite or self._file is None or self._records > 2 * len(self._ids) + _OLD_MIN
        data = self._all() if rewrite else b"".join(record for _, record, _ in waiting)
        records = len(self._ids) if rewrite else self._records + len(waiting)
        end = self._end
        self._busy = True

        def job() -> None:
            if rewrite:
                self._replace(data)
                return
            assert self._file is not None
            self._file.write(end, [data])
            self._file.sync()

        def done(_: object, error: BaseException | None) -> None:
            self._busy = False
            if error is not None:  # what was written may be there or not: the next attempt is a new file
                logger.error("%s can't be written: %s", self._path, error)
                self._rewrite = True
                if self.is_stopping:
                    for _, _, on_done in waiting:
                        on_done(Unavailable("the server is shutting down"))
                    return
                self._waiting = waiting + self._waiting
                self._host.call_later(RETRY_MS, self._try_again)
                return
            self._rewrite = False
            self._end = len(data) if rewrite else end + len(data)
            self._records = records
            for _, _, on_done in waiting:
                on_done(None)
            self._flush()

        self._host.submit(job, done)

    def _try_again(self) -> None:
        if not self.is_stopping:
            self._flush()

    def _all(self) -> bytes:
        records = []
        for hashed, value in self._ids.items():
            rest = _RECORD.pack(0, hashed, value >> _SHIFT, value & (1 << _SHIFT) - 1)[4:]
            records.append(crc32(rest).to_bytes(4, "little") + rest)
        return b"".join(records)

    def _replace(self, data: bytes) -> None:
        """Put a new file in place; blocking."""
        self.close()
        fresh = f"{self._path}.new"
        with suppress(FileNotFoundError):
            self._disk.remove(fresh)
        file = self._disk.open(fresh, create=True)
        try:
            file.write(0, [data])
            file.sync()
            self._disk.rename(fresh, self._path)
            self._disk.sync_dir(self._path.rpartition("/")[0])
        except BaseException:
            file.close()
            raise
        self._file = file

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
