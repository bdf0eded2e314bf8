"""The audit: who logged in, who was refused, and who changed what, as JSON lines. It can't be turned off.

Changes and logins are in the file `access/audit`, refusals of users in `access/refused`, and failed logins in
`access/failed`. So nobody can push out entries of one kind by causing many of another, neither on disk nor in `recent`.

A login is written once in ten minutes for each user, credential and address. Failures, refusals and sessions are
written at once the first time, and then as a count every ten seconds. Within ten seconds a bounded number of different
ones is distinguished; all others are counted as one. No line contains a secret, a query or a body.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.access import files
from curbstone.access.throttle import source_of
from curbstone.core.host import Host

if TYPE_CHECKING:
    from curbstone.access.callers import Caller

FILES, FILE_BYTES = 10, 10 * 1024 * 1024
RECENT = 1000
RECENT_FAILED = RECENT_REFUSED = RECENT // 4
TAIL_BYTES = 256 * 1024
"""How much of the end of each file is read at a start."""
LOGIN_EVERY_MS = 10 * 60_000
COUNT_EVERY_MS = 10_000
KNOWN_MAX = 10_000
FAILED_MAX, REFUSED_MAX = 10, 100
"""How many different failures and refusals are distinguished between two counts."""

FAILED, REFUSED = "failed", "refused"

logger = logging.getLogger("curbstone.access")

Entry = dict[str, Any]


class _Kept:
    """Lines of one kind: the latest in memory, and many more in a file."""

    def __init__(self, path: Path | None, recent: int) -> None:
        self.path = path
        self.recent: deque[Entry] = deque(maxlen=recent)
        self.unwritten: list[bytes] = []


class Audit:
    """Called on the host's thread. Lines are written on another thread, in order."""

    def __init__(self, host: Host, path: Path | None) -> None:
        """`path` is the file of changes and logins; with None, nothing is kept after the process ends."""
        self._host = host
        self._done = _Kept(path, RECENT - RECENT_FAILED - RECENT_REFUSED)
        self._refused = _Kept(path and path.with_name(REFUSED), RECENT_REFUSED)
        self._failed = _Kept(path and path.with_name(FAILED), RECENT_FAILED)
        self._all = (self._done, self._refused, self._failed)
        self._is_writing = False
        self._is_failing = False
        self._logins: dict[tuple[str, str, str], int] = {}
        self._counts: dict[tuple[str, ...], tuple[Entry, int]] = {}
        """Repeated events since the last count: the entry, and how often it has come since it was written."""
        self._told: Counter[str] = Counter()
        """How many different entries `_counts` has, by outcome."""

    def load(self) -> None:
        """Read the latest lines from the files. Blocks."""
        for path in [kept.path for kept in self._all if kept.path is not None]:
            for line in files.read_tail(path, TAIL_BYTES).splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and isinstance(entry.get("time"), int):
                    self._kept(entry).recent.append(entry)

    @property
    def recent(self) -> list[Entry]:
        """The latest lines, the oldest first."""
        return list(merge(*(kept.recent for kept in self._all), key=lambda entry: int(entry["time"])))

    def note(
        self, action: str, outcome: str, *, user: str, credential: str = "", peer: str = "", protocol: str = "",
        target: str = "",
    ) -> None:  # fmt: skip
        """Write a line."""
        self._write(
            self._entry(action, outcome, user=user, credential=credential, peer=peer, protocol=protocol, target=target)
        )

    def _entry(
        self, action: str, outcome: str, *, user: str = "", credential: str = "", peer: str = "", protocol: str = "",
        target: str = "",
    ) -> Entry:  # fmt: skip
        entry: Entry = {"time": self._host.wall_ms(), "peer": peer, "protocol": protocol, "user": user}
        return entry | {"credential": credential, "action": action, "target": target, "outcome": outcome}

    def login(self, user: str, credential: str, caller: Caller) -> None:
        """Note that a login succeeded. Written only once in a while."""
        now_ms = self._host.now_ms()
        key = (user, credential, caller.address)
        if now_ms - self._logins.get(key, -LOGIN_EVERY_MS) < LOGIN_EVERY_MS:
            return
        if len(self._logins) >= KNOWN_MAX:
            self._logins.clear()
        self._logins[key] = now_ms
        self.note("login", "ok", user=user, credential=credential, peer=str(caller), protocol=caller.protocol)

    def session(self, user: str, credential: str, caller: Caller, target: str) -> None:
        """Note that a login became a session."""
        entry = self._entry("open session", "ok", user=user, credential=credential, peer=str(caller),
                            protocol=caller.protocol, target=target)  # fmt: skip
        self._again(("session", user, source_of(caller.address), caller.protocol), entry, REFUSED_MAX)

    def failed(self, user: str, caller: Caller) -> None:
        """Note that a login failed. `user` is a name in the users file, or empty."""
        entry = self._entry("login", FAILED, user=user, peer=str(caller), protocol=caller.protocol)
        self._again((FAILED, user, source_of(caller.address), caller.protocol), entry, FAILED_MAX)

    def refused(self, right: str, *, user: str, peer: str, protocol: str, target: str = "") -> None:
        """Note that a call was refused."""
        entry = self._entry(right, REFUSED, user=user, peer=peer, protocol=protocol, target=target)
        self._again((REFUSED, right, user, peer.rpartition(":")[0], protocol, target), entry, REFUSED_MAX)

    def _again(self, key: tuple[str, ...], entry: Entry, most: int) -> None:
        """Write the first event of a kind, then count it. Beyond `most` kinds, all others are counted as one."""
        if not self._counts:
            self._host.call_later(COUNT_EVERY_MS, self._write_counts)
        outcome = entry["outcome"]
        if key not in self._counts and self._told[outcome] >= most:
            key = (outcome,)
            action = entry["action"] if outcome == FAILED else ""
            entry = self._entry(action, outcome, target="others")
        if key in self._counts:
            first, count = self._counts[key]
            self._counts[key] = (first, count + 1)
        elif len(key) == 1:
            self._counts[key] = (entry, 1)
        else:
            self._told[outcome] += 1
            self._counts[key] = (entry, 0)
            self._write(entry)

    def _write_counts(self) -> None:
        counts, self._counts = self._counts, {}
        self._told.clear()
        for entry, count in counts.values():
            if count:
                self._write({**entry, "time": self._host.wall_ms(), "count": count})

    def _kept(self, entry: Entry) -> _Kept:
        if entry.get("outcome") == REFUSED:
            return self._refused
        is_failure = entry.get("action") == "login" and entry.get("outcome") == FAILED
        return self._failed if is_failure else self._done

    def _write(self, entry: Entry) -> None:
        kept = self._kept(entry)
        kept.recent.append(entry)
        if kept.path is not None:
            kept.unwritten.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._flush()

    def _flush(self) -> None:
        lines = [(kept.path, b"".join(kept.unwritten)) for kept in self._all if kept.path and kept.unwritten]
        if self._is_writing or not lines:
            return
        for kept in self._all:
            kept.unwritten.clear()
        self._is_writing = True

        def done(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            if error is not None and not self._is_failing:
                logger.error("the audit can't be written: %s", error)
            self._is_failing = error is not None
            self._flush()

        def write() -> None:
            for path, data in lines:
                files.append(path, data, FILE_BYTES, FILES)

        self._host.submit(write, done)
