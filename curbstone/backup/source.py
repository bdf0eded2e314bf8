"""The server's side of a backup: a snapshot of the files, sent while the server continues.

No disk job is running at the snapshot (see `core.snapshots`), and each file gets a hard link in `.backup` of the data
directory. This takes as long as a few syncs, and publishers notice nothing else. Files that a queue drops in the
meantime take disk space until the backup is sent.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from curbstone import __version__
from curbstone.backup.files import DATA, INDEX, OFFSET, PIECE_BYTES, SUMS, PresentPart, encode_index, encode_sums
from curbstone.core.engine.broker import Broker
from curbstone.core.errors import Conflict, CurbstoneError, Unavailable
from curbstone.core.host import AsyncioHost
from curbstone.core.snapshots.snapshot import Content, contents, pin

FOLDER = ".backup"
WAIT_MS = 2000
"""How long publishers may have to wait for the end of other disk jobs."""
TRIES = 5
STALLED_MS = 300_000

_NOT_WHOLE = (".new",)
_COMING_IN = "t."
"""The prefix of a part of a staged transaction that is still being uploaded."""

logger = logging.getLogger("curbstone")


class Kept(NamedTuple):
    """A file of the snapshot: its path in the data directory, the number of valid bytes, and the path of its link."""

    path: str
    size: int
    at: Path


class Backups:
    """Takes backups of a running server, one at a time. Implements `gateway.resources.backup.Source`."""

    def __init__(self, broker: Broker, host: AsyncioHost, root: Path) -> None:
        self._broker = broker
        self._host = host
        self._root = root
        self._is_busy = False
        clear(root)

    def begin(
        self, had: Mapping[str, tuple[int, str]], on_done: Callable[[CurbstoneError | None, Archive | None], None]
    ) -> None:
        """Take a snapshot. The archive that `on_done` gets must be closed. Raise Conflict if another one is open."""
        if self._is_busy:
            raise Conflict("another backup is running; only one at a time is supported")
        self._is_busy = True
        self._take({path: PresentPart(*each) for path, each in had.items()}, on_done, TRIES)

    def _take(
        self,
        had: Mapping[str, PresentPart],
        on_done: Callable[[CurbstoneError | None, Archive | None], None],
        tries: int,
    ) -> None:
        unpin: Callable[[], None] | None = None
        taken_at = datetime.now(UTC)

        def plan() -> Callable[[], list[Kept]]:
            nonlocal unpin, taken_at
            wanted = contents(self._broker)
            unpin = pin(self._broker)
            taken_at = datetime.now(UTC)

            def job() -> list[Kept]:
                self._broker.disk.catch_up()
                return _keep(self._root, wanted)

            return job

        def closed() -> None:
            # Another one may begin at once: it waits for the removal of these files, as for any other job.
            self._is_busy = False

        def over() -> None:
            if unpin is not None:
                unpin()

        def kept(files: list[Kept] | None, error: BaseException | None) -> None:
            if files is not None:
                facts = {**self._facts(files), "taken": taken_at.isoformat(timespec="milliseconds")}
                on_done(None, Archive(self._host, self._root, archive(facts, files, had), closed, over))
            elif isinstance(error, TimeoutError) and tries > 1:
                over()  # the disk took too long; the next attempt pins the logs again
                self._host.call_later(WAIT_MS, lambda: self._take(had, on_done, tries - 1))
            else:
                closed()
                over()
                logger.error("a backup can't be taken: %s", error)
                on_done(Unavailable(f"a backup can't be taken: {error}"), None)

        self._host.submit_alone(plan, kept, WAIT_MS)

    def _facts(self, files: list[Kept]) -> dict[str, object]:
        return {
            "curbstone": __version__,
            "sync": str(self._broker.sync),
            "queues": len(self._broker.queues()),
            "files": len(files),
            "bytes": sum(file.size for file in files),
        }


class Archive:
    """A backup that is being sent. It is aborted if the client reads nothing for `STALLED_MS`.

    `closed` is called when it is closed, and `over` when its links are removed.
    """

    def __init__(
        self,
        host: AsyncioHost,
        root: Path,
        pieces: Iterator[bytes],
        closed: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self._host = host
        self._root = root
        self._pieces = pieces
        self._closed = closed
        self._over = over
        self._is_closed = False
        self._reads = 0
        self._watch(-1)

    def _watch(self, reads: int) -> None:
        if self._reads == reads:
            logger.warning("a backup is aborted: its client has read nothing for %d s", STALLED_MS // 1000)
            self.close()
        elif not self._is_closed:
            seen = self._reads
            self._host.call_later(STALLED_MS, lambda: self._watch(seen))

    def read(self) -> bytes:
        """Return the next piece, empty at the end. Blocks; call it on one thread at a time. Raise OSError."""
        self._reads += 1
        if self._is_closed:
            raise OSError(errno.ETIMEDOUT, "the backup was aborted")
        return next((piece for piece in self._pieces if piece), b"")

    def close(self) -> None:
        """End the backup, complete or not. Call this on the host's thread."""
        if not self._is_closed:
            self._is_closed = True
            self._closed()
            self._host.submit(lambda: clear(self._root), lambda _result, _error: self._over())


def clear(root: Path) -> None:
    """Remove the links of a backup, also those of a killed process. Blocks."""
    shutil.rmtree(root / FOLDER, ignore_errors=True)


def _keep(root: Path, wanted: list[Content]) -> list[Kept]:
    """Link each file, or copy it if it will be overwritten. Blocks; no other job may run."""
    clear(root)
    folder = root / FOLDER
    folder.mkdir(mode=0o700)
    kept: list[Kept] = []
    for content in wanted:
        path = root / content.path
        paths = sorted(path.rglob("*")) if path.is_dir() else [path]
        for each in paths:
            if each.is_symlink() or not each.is_file():
                continue
            if path != each and (each.suffix in _NOT_WHOLE or each.name.startswith(_COMING_IN)):
                continue
            size = each.stat().st_size if content.size is None else content.size
            at = folder / str(len(kept))
            if content.is_rewritten:
                at.write_bytes(each.read_bytes()[:size])
            else:
                _link(each, at)
            kept.append(Kept(each.relative_to(root).as_posix(), size, at))
    return kept


def _link(path: Path, at: Path) -> None:
    try:
        os.link(path, at)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise OSError(error.errno, "the file system of the data directory has no hard links") from error
        raise


def archive(facts: Mapping[str, object], files: list[Kept], had: Mapping[str, PresentPart]) -> Iterator[bytes]:
    """Yield a tar archive of these files. Raise OSError if one can't be read; the archive then has no `SHA256SUMS`."""
    index = encode_index(facts)
    sums = {INDEX: hashlib.sha256(index).hexdigest()}
    yield _entry(INDEX, len(index)) + _padded(index)
    for file in files:
        name = f"{DATA}/{file.path}"
        with file.at.open("rb") as opened:
            known, hashed = _known(opened.read, had.get(name), file.size)
            opened.seek(known)
            yield _entry(name, file.size - known, known)
            left = file.size - known
            while left:
                piece = opened.read(min(PIECE_BYTES, left))
                if not piece:
                    raise OSError(errno.EIO, f"{file.path} was truncated")
                hashed.update(piece)
                left -= len(piece)
                yield piece
            yield bytes(-(file.size - known) % tarfile.BLOCKSIZE)
        sums[name] = hashed.hexdigest()
    text = encode_sums(sums)
    yield _entry(SUMS, len(text)) + _padded(text) + bytes(2 * tarfile.BLOCKSIZE)


def _known(read: Callable[[int], bytes], had: PresentPart | None, size: int) -> tuple[int, hashlib._Hash]:
    """Return how many bytes of a file the receiver has, and their hash; 0 if its checksum does not match."""
    if had is None or not 0 < had.size <= size:
        return 0, hashlib.sha256()
    hashed = hashlib.sha256()
    left = had.size
    while left and (piece := read(min(PIECE_BYTES, left))):
        hashed.update(piece)
        left -= len(piece)
    return (had.size, hashed) if not left and hashed.hexdigest() == had.sha256 else (0, hashlib.sha256())


def _entry(name: str, size: int, offset: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    if offset:
        info.pax_headers = {OFFSET: str(offset)}
    return info.tobuf(tarfile.PAX_FORMAT)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)
