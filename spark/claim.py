"""Ensures one archive at a time for a checkpoint, because two would do the same batches and disturb each other.

On a local disk this is a lock, which the system releases when the process ends in any way; a second archive is refused.
Elsewhere it is a file that names the last archive that started; the one before it ends at its next batch. Neither is
needed to keep a lake exact, because the commit of each batch names the batch (see `table`).
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from curbstone.spark.failure import PipelineError

if TYPE_CHECKING:
    from curbstone.spark.lake import Lake

OWNER = "_owner"

Check = Callable[[], None]


@contextmanager
def claimed(lake: Lake, checkpoint: str) -> Iterator[Check]:
    """Claim a checkpoint. Yield a function to call before each batch is stored. Both raise PipelineError."""
    folder = lake.local(checkpoint)
    if folder is not None:
        with locked(folder):
            yield _nothing_to_check
        return
    mine = f"{_who()} {uuid.uuid4().hex}"
    lake.write(f"{checkpoint}/{OWNER}", mine)

    def check() -> None:
        now = lake.text(f"{checkpoint}/{OWNER}")
        if now != mine:
            other = (now or "nobody").rpartition(" ")[0]
            raise PipelineError(f"another archive has taken over {checkpoint}: {other}; this one ends")

    yield check


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a checkpoint on a local disk. Raise PipelineError if another archive has it, or it can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise PipelineError(f"can't write to {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(file, 200).decode(errors="replace") or "unknown"
            advice = "wait for its end, or give this one another --checkpoint and --group"
            raise PipelineError(f"another archive is at work with {folder}: {other}; {advice}") from None
        os.ftruncate(file, 0)
        os.pwrite(file, _who().encode(), 0)
        yield
    finally:
        os.close(file)


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _nothing_to_check() -> None:
    """Do nothing, because the lock is held as long as this process lives."""
