"""The audit: who came, who was refused, who changed what. JSON lines in `access/audit`; it can't be turned off.

Logins are written once in ten minutes for each user, credential and address; failures and refusals at once the first
time, and then as a count every ten seconds. No line holds a secret, a query or a body.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.access import files
from curbstone.core.host import Host

if TYPE_CHECKING:
    from curbstone.access.gate import Caller

FILES, FILE_BYTES = 10, 10 * 1024 * 1024
RECENT = 1000
LOGIN_EVERY_MS = 10 * 60_000
COUNT_EVERY_MS = 10_000
KNOWN_MAX = 10_000

logger = logging.getLogger("curbstone.access")

Entry = dict[str, Any]


class Audit:
    """Called on the host's thread; lines are written on another, in order."""

    def __init__(self, host: Host, path: Path | None) -> None:
        """`path`: the file; None where nothing is kept beyond the process."""
        self._host = host
        self._path = path
        self.recent: deque[Entry] = deque(maxlen=RECENT)
        self._unwritten: list[bytes] = []
        self._is_writing = False
        self._is_failing = False
        self._logins: dict[tuple[str, str, str], int] = {}
        self._counts: dict[tuple[str, ...], tuple[Entry, int]] = {}
        """What happens again and again: the entry, and how often it has since it was written."""

    def load(self) -> None:
        """Read what was written last; blocking."""
        if self._path is None:
            return
        for line in files.read_tail(self._path, 256 * 1024).splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                self.recent.append(entry)

    def note(
        self, action: str, outcome: str, *, user: str, credential: str = "", peer: str = "", protocol: str = "",
        target: str = "", count: int = 0,
    ) -> None:  # fmt: skip
        """Write a line."""
        entry: Entry = {"time": self._host.wall_ms(), "peer": peer, "protocol": protocol, "user": user}
        entry |= {"credential": credential, "action": action, "target": target, "outcome": outcome}
        if count:
            entry["count"] = count
        self._write(entry)

    def login(self, user: str, credential: str, caller: Caller) -> None:
        """A login succeeded; written once in a while."""
        now_ms = self._host.now_ms()
        key = (user, credential, caller.address)
        if now_ms - self._logins.get(key, -LOGIN_EVERY_MS) < LOGIN_EVERY_MS:
            return
        if len(self._logins) >= KNOWN_MAX:
            self._logins.clear()
        self._logins[key] = now_ms
        self.note("login", "ok", user=user, credential=credential, peer=str(caller), protocol=caller.protocol)

    def refused(self, action: str, outcome: str, *, user: str, peer: str, protocol: str, target: str = "") -> None:
        """A login failed or a call was refused: written the first time, then counted."""
        key = (action, outcome, user, peer.rpartition(":")[0], protocol, target)
        if key in self._counts:
            entry, count = self._counts[key]
            self._counts[key] = (entry, count + 1)
            return
        self.note(action, outcome, user=user, peer=peer, protocol=protocol, target=target)
        if len(self._counts) < KNOWN_MAX:
            if not self._counts:
                self._host.call_later(COUNT_EVERY_MS, self._write_counts)
            self._counts[key] = (self.recent[-1], 0)

    def _write_counts(self) -> None:
        counts, self._counts = self._counts, {}
        for entry, count in counts.values():
            if count:
                self._write({**entry, "time": self._host.wall_ms(), "count": count})

    def _write(self, entry: Entry) -> None:
        self.recent.append(entry)
        if self._path is not None:
            self._unwritten.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._flush()

    def _flush(self) -> None:
        path = self._path
        if self._is_writing or not self._unwritten or path is None:
            return
        data = b"".join(self._unwritten)
        self._unwritten.clear()
        self._is_writing = True

        def done(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            if error is not None and not self._is_failing:
                logger.error("the audit can't be written: %s", error)
            self._is_failing = error is not None
            self._flush()

        self._host.submit(lambda: files.append(path, data, FILE_BYTES, FILES), done)
