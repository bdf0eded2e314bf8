"""One redo file: prepared ahead, appended to and synced by one job at a time, and used again in another life.

Its records hold bytes that belong into segments but are not synced there. So the file stays as it is until each of
those segments has been synced. Each life has a generation, a salt and headers of its own, which are synced before its
first record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from curbstone.core.disk import Disk, File
from curbstone.core.engine.log.commit import Segment
from curbstone.core.engine.log.log import Salt
from curbstone.core.values import Done
from curbstone.core.wal.redo_format import (
    BLOCK_BYTES,
    RECORDS_AT,
    REDO_PREFIX,
    Header,
    Part,
    encode_header,
    encode_record,
)

ZEROS_BYTES = 1024 * 1024
MAKING_SUFFIX = ".new"
"""Of the name that a file has while it is being made."""


class NoRedoFile(OSError):
    """The file could not be made, so no record is in it."""


class RedoFile:
    """`append` and `remove` are called on worker threads, all else on the engine's."""

    def __init__(self, disk: Disk, number: int, size: int, salt: Salt) -> None:
        self._disk = disk
        self._salt = salt
        self._file: File | None = None
        self._header = Header(0, 0, size)
        self._headed = self._header
        """The header that the file has."""
        self._records = 0
        self.path = f"{REDO_PREFIX}{number}"
        self.size = size
        self.end = RECORDS_AT
        self.life = 0
        """The number of its life, or generation. Numbers grow with each life of any file."""
        self.has_failed = False
        """Whether nothing more may be written to it, because it is unknown how much of its last record is on disk."""
        self.touched: dict[Segment, None] = {}
        """The segments that this life has something of."""
        self.uids: set[int] = set()
        """The queues that the file may have something of, from any of its lives."""
        self.is_retiring = False
        """Whether its segments are being synced."""
        self.removed: list[Done] = []
        """Callbacks of those who wait until it is removed."""
        self.is_to_remove = False
        """Whether it is to be removed, and not used again."""

    def live(self, life: int) -> None:
        """Begin a new life. What the file has so far must be synced in the segments."""
        self.life = life
        self.end = RECORDS_AT
        self._records = 0
        self._header = Header(self._salt(), life, self.size)
        self.touched = {}
        self.is_retiring = False

    def append(self, parts: Sequence[Part], buffers: list[bytes]) -> None:
        """Write a record and sync it. Raise NoRedoFile if the file can't be made, OSError if the record failed."""
        file = self._file or self._make()
        record = encode_record(self._header, self._records + 1, parts, buffers)
        try:
            if self._headed != self._header:
                self._write_headers(file)
            file.write(self.end, record)
            file.sync()
        except OSError:
            self.has_failed = True
            raise
        self.end += sum(map(len, record))
        self._records += 1

    def _write_headers(self, file: File) -> None:
        """Begin a generation on disk. One copy is synced before the other is written, so that one is always whole."""
        header = encode_header(self._header)
        for offset in (0, BLOCK_BYTES):
            file.write(offset, [header])
            file.sync()
        self._headed = self._header

    def _make(self) -> File:
        """Make the file durably, filled with real zeros, so that later syncs change no size and no extents.

        It gets its name when it is complete and synced. So a file of that name is never one that was being made.
        """
        file: File | None = None
        fresh = self.path + MAKING_SUFFIX
        try:
            file = self._disk.open(fresh, create=True)
            file.write(0, [encode_header(self._header)] * 2)
            for offset in range(RECORDS_AT, self.size, ZEROS_BYTES):
                file.write(offset, [bytes(min(ZEROS_BYTES, self.size - offset))])
            file.sync()
            self._disk.rename(fresh, self.path)
            self._disk.sync_dir("")
        except OSError as error:
            if file is not None:
                file.close()
                for path in (fresh, self.path):
                    with suppress(OSError):
                        self._disk.remove(path)
            raise NoRedoFile(error.errno, f"{self.path} can't be made: {error.strerror or error}") from error
        self._file = file
        self._headed = self._header
        return file

    def remove(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            with suppress(FileNotFoundError):
                self._disk.remove(self.path)
            self._disk.sync_dir("")


def sync_segments(segments: Sequence[Segment]) -> Callable[[], list[tuple[Segment, OSError]]]:
    """Return a job that syncs those segments that need it, and returns those that failed."""

    def job() -> list[tuple[Segment, OSError]]:
        failed = []
        for segment in segments:
            file = segment.file
            if file is None or not segment.redo:  # it was synced before it was closed, or by a commit since
                continue
            try:
                file.sync()
            except OSError as error:
                failed.append((segment, error))
        return failed

    return job
