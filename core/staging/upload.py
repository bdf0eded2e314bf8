"""A part of a staged transaction that is coming in: checked and written piece by piece, it counts when it is whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from zlib import crc32

from curbstone.core.disk import File
from curbstone.core.errors import BadRequest, CurbstoneError, MessageTooLarge, Unavailable
from curbstone.core.staging.files import Part, disk_error, incoming_file, part_file
from curbstone.core.staging.frames import FrameCheck
from curbstone.core.staging.transaction import PART_BYTES_MIN, StagedTransaction
from curbstone.core.values import PART_BYTES_MAX, Done

WRITE_BYTES = 512 * 1024


class Upload:
    """A part that is coming in. Implements `core.port_staging.Upload`.

    One job writes at a time. Data that arrives meanwhile is kept in `_buffer` for the next one.
    """

    def __init__(self, transaction: StagedTransaction, name: str, version: int, check: FrameCheck) -> None:
        self._transaction = transaction
        self._name = name
        self._version = version
        self._check = check
        self._incoming = incoming_file(version)
        self._file: File | None = None
        self._buffer = bytearray()
        self._crc = 0
        self._written = 0
        self._is_writing = False
        self._error: CurbstoneError | None = None
        self._waiting: list[Done] = []
        self.size = 0
        """Bytes that have arrived so far."""
        self.is_over = False

    @property
    def is_behind(self) -> bool:
        return self._is_writing and len(self._buffer) >= WRITE_BYTES

    def feed(self, data: bytes) -> None:
        self._transaction.check_open()
        if self._error is not None:
            raise self._error
        if self.size + len(data) > PART_BYTES_MAX:
            raise MessageTooLarge(f"a part has at most {PART_BYTES_MAX} bytes")
        self._transaction.area.take(self._transaction.staged_by, len(data))
        self.size += len(data)
        self._check.feed(data)
        self._buffer += data
        if len(self._buffer) >= WRITE_BYTES and not self._is_writing:
            self._write()

    def when_written(self, on_done: Done) -> None:
        if self._is_writing:
            self._waiting.append(on_done)
        else:
            error = self._error
            self._transaction.area.host.call_soon(lambda: on_done(error))

    def _write(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        self._is_writing = True

        def done(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            if error is not None:
                self._error = disk_error(error)
            waiting, self._waiting = self._waiting, []
            for on_done in waiting:
                on_done(self._error)

        self._transaction.submit(lambda: self._append(data), done)

    def _append(self, data: bytes | bytearray) -> None:
        """Append to the file; blocking."""
        transaction = self._transaction
        if self._file is None:
            transaction.make_directory()
            self._file = transaction.disk.open(f"{transaction.directory}/{self._incoming}", create=True)
        self._crc = crc32(data, self._crc)
        self._file.write(self._written, [data])
        self._written += len(data)

    def finish(self, on_done: Callable[[CurbstoneError | None, Part | None], None]) -> None:
        """Make the part durable under its name. Raise BadRequest if the last frame is not whole, or QueueFull."""
        if not self._check.is_whole:
            raise BadRequest("the body ends in the middle of a frame")
        self._transaction.area.check(self._transaction.staged_by, max(PART_BYTES_MIN - self.size, 0))
        self.when_written(partial(self._finish, on_done))

    def _finish(
        self, on_done: Callable[[CurbstoneError | None, Part | None], None], error: CurbstoneError | None
    ) -> None:
        transaction = self._transaction
        if error is None and self.is_over:
            error = Unavailable("the client went away")
        error = error or transaction.refusal()
        if error is not None:
            on_done(error, None)
            return
        checked = self._check
        file_name = part_file(self._version, self._name)
        time_ms = transaction.area.host.wall_ms()

        def job() -> Part:
            self._append(self._buffer)
            numbers = (checked.messages, self.size, self._crc, time_ms)
            staged_by = transaction.staged_by
            part = Part(self._name, file_name, *numbers, checked.shares, staged_by.project, staged_by.owner)
            assert self._file is not None
            self._file.write(self._written, [part.encode()])
            self._file.sync()
            self._file.close()
            directory = transaction.directory
            transaction.disk.rename(f"{directory}/{self._incoming}", f"{directory}/{file_name}")
            transaction.sync_directories()
            return part

        def done(part: Part, failed: BaseException | None) -> None:
            if failed is not None:
                self._end()
                on_done(disk_error(failed), None)
                return
            refusal = transaction.staged(part)
            on_done(refusal, None if refusal else part)

        self.is_over = True  # from here on `cancel` does nothing
        transaction.submit(job, done)

    def cancel(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self._is_writing:
            self._waiting.append(lambda _error: self._end())
        else:
            self._end()

    def _end(self) -> None:
        """Remove what was written, then stop counting it.

        The order matters: a job must be under way when the transaction is found to be empty. Then its directory is
        removed after this file, and meanwhile no part of a new transaction with the same id can get the file's name.
        """
        if self._file is not None:
            self._transaction.remove_file(self._incoming, self._file.close)
        self._transaction.upload_ended(self.size)
