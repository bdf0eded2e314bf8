"""`curbstone backup --follow`: keeps the changes of a server as a history, until SIGTERM or Ctrl-C.

Whatever goes wrong on either side, what is stored is completed, and the next connection continues from its end.
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
"""A server that sends nothing for so long counts as lost; it sends its clock each second."""
SHOWN_S = 10
"""How often the progress of a copy is shown."""
FINAL = (400, 401, 403, 404, 405, 501)
"""Refusals that another attempt does not change."""

log = logging.getLogger("curbstone.follow")


def follow(target: str, *, keep_s: int, base_every_s: int, every_s: int) -> None:
    """Follow the server. Raise CommandFailed if it refuses for good, BackupError if TARGET is something else.

    `every_s` is how often an object is written. Raise WrongStore if TARGET is no object store.
    """
    logs.begin("info", "text")
    pauses = Backoff(0.5, 30)
    recorded_bytes = 0
    is_stopped = False
    has_connected = False
    """Whether the server was reached: then no option is wrong."""
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
                    if is_stopped:  # and the last part could not be stored
                        raise
                    if isinstance(error, Refused) and error.status in FINAL:
                        raise
                    is_wrong = isinstance(error, WrongStore) or isinstance(error, CommandFailed) and error.code == WRONG
                    if is_wrong and not has_connected:
                        raise
                    pause_s = pauses.next_s()
                    log.warning("%s; trying again in %g s", _why(error), pause_s)
                    time.sleep(pause_s)
    except KeyboardInterrupt:
        log.info("stopped; %s recorded", size(recorded_bytes))


def _pieces(recorder: Recorder) -> Iterator[int]:
    """Record connections one after the other; yield the bytes of each piece. Return never."""
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
                        log.info("following %s: copying everything", client.url)
                    else:
                        log.info("following %s, from where it was left on", client.url)
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
    return f"a copy of everything is complete; what the server has from {shown(base.last_ms)} on can be restored"


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"can't write to TARGET: {where}{error.strerror or error}"
    return str(error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
