"""One redo file: prepared ahead, appended to and synced by one job at a time, and used again in another life.

Its records hold bytes that belong into segments but are not synced there. So the file stays as it is until each of
those segments has been synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from curbstone.core.disk import Disk, File
from curbstone.core.log.commit import Segment
from curbstone.core.log.log import Salt
from curbstone.core.log.redo import REDO_PREFIX, Part, encode_header, encode_record
from curbstone.core.values import Done

ZEROS_BYTES = 1024 * 1024


class NoRedoFile(OSError):
    """The file could not be made, so no record is in it."""


class RedoFile:
    """`append` and `remove` are called on worker threads, all else on the engine's."""

    def __init__(self, disk: Disk, number: int, size: int, salt: Salt) -> None:
        self._disk = disk
        self._salt = salt
        self._file: File | None = None
        self._life_salt = salt()
        self._records = 0
        self.path = f"{REDO_PREFIX}{number}"
        self.size = size
        self.end = 0
        self.life = 0
        """The number of its life. Numbers grow with each life of any file."""
        self.has_failed = False
        """Whether nothing more may be written to it, because nobody knows how much of its last record is on disk."""
        self.touched: dict[Segment, None] = {}
        """The segments that this life has something of."""
        self.uids: set[int] = set()
        """The queues that the file may have something of, from any of its lives."""
        self.is_retiring = False
        """Whether its segments are being synced."""
        self.removed: list[Done] = []
        """Callbacks of those who wait until it is removed."""
        self.is_doomed = False
        """Whether it is to be removed, and not used again."""

    def live(self, life: int) -> None:
        """Begin a new life. What the file has so far must be synced in the segments."""
        self.life = life
        self.end = self._records = 0
        self._life_salt = self._salt()
        self.touched = {}
        self.is_retiring = False

    def append(self, parts: Sequence[Part], buffers: list[bytes]) -> None:
        """Write a record and sync it. Raise NoRedoFile if the file can't be made, OSError if the record failed."""
        file = self._file or self._make()
        record = encode_record(self._life_salt, self._records + 1, parts, buffers)
        if not self._records:
            record.insert(0, encode_header(self._life_salt))
        try:
            file.write(self.end, record)
            file.sync()
        except OSError:
            self.has_failed = True
            raise
        self.end += sum(map(len, record))
        self._records += 1

    def _make(self) -> File:
        """Make the file durably, filled with real zeros, so that later syncs change no size and no extents."""
        file: File | None = None
        try:
            file = self._disk.open(self.path, create=True)
            for offset in range(0, self.size, ZEROS_BYTES):
                file.write(offset, [bytes(min(ZEROS_BYTES, self.size - offset))])
            file.sync()
            self._disk.sync_dir("")
        except OSError as error:
            with suppress(OSError):
                if file is not None:
                    file.close()
                    self._disk.remove(self.path)
            raise NoRedoFile(error.errno, f"{self.path} can't be made: {error.strerror or error}") from error
        self._file = file
        return file

    def remove(self) -> None:
        """Remove it for good."""
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
