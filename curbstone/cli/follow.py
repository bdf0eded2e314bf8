"""`curbstone backup --follow`: records the changes of a server as a history, until SIGTERM or Ctrl-C.

After any failure the stored history is completed, and the next connection continues from its end.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from curbstone.backup.receive import private_files
from curbstone.cli.client import Client, Refused
from curbstone.cli.output import size
from curbstone.core.disk import OsDisk
from curbstone.exit_codes import WRONG, CommandFailed
from curbstone.http_client import Backoff
from curbstone.process import logs
from curbstone.standby.frames import BadFrame
from curbstone.standby.history import History, Part
from curbstone.standby.history_urls import is_url, objects_at
from curbstone.standby.part_store import DirectoryParts, WrongStore
from curbstone.standby.recording import Recorder
from curbstone.standby.restoring import shown

SILENT_S = 10
"""The timeout of the stream; the server sends its clock every second."""
SHOWN_S = 10
"""The interval at which the progress of a copy is logged."""
FINAL = (400, 401, 403, 404, 405, 501)
"""Statuses that are not retried."""

log = logging.getLogger("curbstone.follow")


def follow(target: str, *, keep_s: int, base_every_s: int, every_s: int) -> None:
    """Follow the server. Raise CommandFailed if it refuses permanently, BackupError if TARGET is not a history.

    `every_s` is how often an object is written. Raise WrongStore if TARGET is not an object store.
    """
    logs.begin("info", "text")
    pauses = Backoff(0.5, 30)
    recorded_bytes = 0
    is_stopped = False
    has_connected = False
    """Whether the server was reached, so that the options are right."""
    try:
        with private_files():
            store = objects_at(target, every_s * 1000) if is_url(target) else DirectoryParts(OsDisk(Path(target)))
            while True:
                try:
                    recorder = Recorder(
                        History(store), _now_ms, keep_ms=keep_s * 1000, base_every_ms=base_every_s * 1000
                    )
                    try:
                        for piece in _pieces(recorder):
                            recorded_bytes += piece
                            has_connected = True
                            pauses.reset()
                    except KeyboardInterrupt:
                        is_stopped = True
                        raise
                    finally:
                        recorder.close()
                except (BadFrame, OSError, CommandFailed) as error:
                    if is_stopped:  # the last part could not be stored
                        raise
                    if isinstance(error, Refused) and error.status in FINAL:
                        raise
                    is_wrong = isinstance(error, WrongStore) or isinstance(error, CommandFailed) and error.code == WRONG
                    if is_wrong and not has_connected:
                        raise
                    pause_s = pauses.next_s()
                    log.warning("%s; retrying in %g s", _reason(error), pause_s)
                    time.sleep(pause_s)
    except KeyboardInterrupt:
        log.info("stopped; %s recorded", size(recorded_bytes))


def _pieces(recorder: Recorder) -> Iterator[int]:
    """Record connections, one by one; yield the size of each piece. Never return."""
    while True:
        shown_s = time.monotonic()
        request = {"name": socket.gethostname()[:100], **recorder.request()}
        recorder.begin()
        with Client() as client, client.stream("POST", "/v2/standby/stream", json=request, timeout=SILENT_S) as pieces:
            was_attached = False
            for piece in pieces:
                bases = recorder.receive(piece)
                attached = recorder.attached
                if attached is not None and not was_attached:
                    was_attached = True
                    if not attached.is_resumed:
                        log.info("following %s: receiving a full copy", client.url)
                    else:
                        log.info("following %s: resuming", client.url)
                for base in bases:
                    log.info("%s", _complete(base))
                if recorder.is_copying and time.monotonic() - shown_s >= SHOWN_S:
                    shown_s = time.monotonic()
                    log.info("%s of at most %s copied", size(recorder.copy_bytes), size(recorder.copy_bytes_max))
                yield len(piece)
                if recorder.is_due:
                    break
            else:
                raise CommandFailed("the server ended the stream")


def _complete(base: Part) -> str:
    return f"full copy complete; every moment from {shown(base.last_ms)} on can be restored"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"can't write to TARGET: {where}{error.strerror or error}"
    return str(error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
