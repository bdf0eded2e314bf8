"""Compares the copy of a standby with its server at intervals, over HTTP."""

from __future__ import annotations

import logging
import os
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path

from curbstone.cli.client import Client
from curbstone.cli.follow import SILENT_S
from curbstone.cli.output import size
from curbstone.core.disk import OsDisk
from curbstone.core.errors import CurbstoneError
from curbstone.exit_codes import CommandFailed
from curbstone.standby.second_copy import SecondCopy
from curbstone.standby.verifying import Compared, Verification

LOOK_S = 10
"""How often to check whether a comparison is due."""

log = logging.getLogger("curbstone.standby")


class CopyVerifier:
    """`run_every` needs a thread of its own; the figures may be read on any thread."""

    def __init__(self, data: Path, copy: Callable[[], SecondCopy]) -> None:
        """`copy` returns the current copy in `data`."""
        self.verified_bytes = 0
        """How many bytes were compared."""
        self.different_blocks = 0
        """How many blocks were missing or different."""
        self._data = data
        self._disk = OsDisk(data, is_shared=True)
        self._copy = copy

    def run_every(self, seconds: int, is_over: Callable[[], bool]) -> None:
        """Compare the copy with the server every `seconds` while it follows, until `is_over`."""
        due_s = time.monotonic() + seconds
        while not is_over():
            time.sleep(min(seconds, LOOK_S))
            if is_over() or time.monotonic() < due_s or not self._follows:
                continue
            before = self.verified_bytes
            try:
                with Client() as client:
                    ask = partial(self._ask, client)
                    Verification(self._disk, ask, time.sleep, self._note, self._uncached).run()
                log.info("compared %s with the server", size(self.verified_bytes - before))
            except (CommandFailed, CurbstoneError, OSError) as error:
                log.warning("can't compare the copy with the server: %s; trying again in %d s", error, seconds)
            due_s = time.monotonic() + seconds

    @property
    def _follows(self) -> bool:
        copy = self._copy()
        return copy.attached is not None and copy.applier.is_usable

    def _ask(self, client: Client, path: str, first: int, digests: list[bytes]) -> Compared:
        """Have the server compare. Raise CommandFailed if it can't, or if the connection of the copy has ended."""
        if not self._follows:
            raise CommandFailed("the copy is not connected any more")
        blocks = b64encode(b"".join(digests)).decode()
        body = {"key": self._copy().key, "path": path, "first": first, "digests": blocks}
        found = client.call("POST", "/v2/standby/stream/digests", json=body, timeout=SILENT_S).json()
        return Compared(found["size"], found["sent"], found["damage"])

    def _uncached(self, path: str) -> None:
        """Remove a file from the page cache, so that the next read is from the disk."""
        if not hasattr(os, "posix_fadvise"):  # only some systems have it
            return
        descriptor = os.open(self._data / path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def _note(self, path: str, read_bytes: int, found: Compared) -> None:
        self.verified_bytes += read_bytes
        self.different_blocks += found.sent
        if found.sent:
            log.error("%s: %d blocks are missing or different from the server's; they are copied", path, found.sent)
        if found.damage:
            log.error("%s is different from the server's, which is damaged and not copied: %s", path, found.damage)
