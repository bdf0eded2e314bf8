"""The audit log: logins, refusals and changes, as JSON lines. It can't be turned off.

Changes and logins are in the file `access/audit`, refused calls in `access/refused`, and failed logins in
`access/failed`. So no client can displace entries of one kind by causing many of another, neither on disk nor in
`recent`.

A login is written once in ten minutes for each user, credential and address. Other events that a client can repeat at
will (failed and throttled logins, refusals, sessions, changes by users) are written the first time, and then as a count
every ten seconds. The number of distinct events is bounded; those beyond the bound are counted as one. Changes have
such a bound for each user. Actions of administrators are always written. No line contains a secret, a query or a body.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curbstone.access import files
from curbstone.core.host import Host
from curbstone.net.peer import source_of

if TYPE_CHECKING:
    from curbstone.access.caller import Caller

FILES, FILE_BYTES = 10, 10 * 1024 * 1024
RECENT = 1000
RECENT_FAILED = RECENT_REFUSED = RECENT // 4
TAIL_BYTES = 256 * 1024
"""How much of the end of each file is read at startup."""
LOGIN_EVERY_MS = 10 * 60_000
COUNT_EVERY_MS = 10_000
KNOWN_MAX = 10_000
FAILED_MAX, REFUSED_MAX = 10, 100
"""The most distinct failures and refusals that are written in ten seconds."""
CHANGES_MAX, CHANGES_MS = 1000, 10_000_000
"""The most distinct changes of one user that are written: at once, and in this period."""

FAILED, REFUSED, THROTTLED, SESSION, CHANGE = "failed", "refused", "throttled", "session", "change"

logger = logging.getLogger("curbstone.access")

Entry = dict[str, Any]


class _Log:
    """The entries of one kind: the latest in memory, and more in a file."""

    def __init__(self, path: Path | None, recent: int) -> None:
        self.path = path
        self.recent: list[Entry] = []
        self.unwritten: list[bytes] = []
        self._recent_max = recent

    def add(self, entry: Entry) -> None:
        """Keep an entry in memory. If there are too many, drop the oldest of the user with the most entries."""
        if len(self.recent) >= self._recent_max:
            users = [str(each.get("user")) for each in self.recent]
            [(user, _)] = Counter(users).most_common(1)
            del self.recent[users.index(user)]
        self.recent.append(entry)


class _Allowance:
    """Limits the distinct entries that are written: so many at once, and so many in each period."""

    def __init__(self, most: int, period_ms: int) -> None:
        self._most = most
        self._period_ms = period_ms
        self._left = float(most)
        self._at_ms = 0

    def take(self, now_ms: int) -> bool:
        """Return whether one more may be written, and count it."""
        back = (now_ms - self._at_ms) * self._most / self._period_ms
        self._left = min(float(self._most), self._left + back)
        self._at_ms = now_ms
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Audit:
    """Called on the host's thread. Lines are written on another thread, in order."""

    def __init__(self, host: Host, path: Path | None) -> None:
        """`path` is the file of changes and logins; with None, entries are in memory only."""
        self._host = host
        self._changes = _Log(path, RECENT - RECENT_FAILED - RECENT_REFUSED)
        self._refused = _Log(path and path.with_name(REFUSED), RECENT_REFUSED)
        self._failed = _Log(path and path.with_name(FAILED), RECENT_FAILED)
        self._logs = (self._changes, self._refused, self._failed)
        self._is_writing = False
        self._is_failing = False
        self._logins: dict[tuple[str, str, str], int] = {}
        self._counts: dict[tuple[str, ...], tuple[Entry, int]] = {}
        """Repeated events since the last count: the entry, and how often it was repeated since it was written."""
        most = {FAILED: FAILED_MAX, THROTTLED: FAILED_MAX, REFUSED: REFUSED_MAX, SESSION: REFUSED_MAX}
        self._allowances = {kind: _Allowance(number, COUNT_EVERY_MS) for kind, number in most.items()}
        self._of_users: dict[str, _Allowance] = {}

    def load(self) -> None:
        """Read the latest lines from the files. Blocks."""
        for path in [log.path for log in self._logs if log.path is not None]:
            for line in files.read_tail(path, TAIL_BYTES).splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict) and isinstance(entry.get("time"), int):
                    self._log_of(entry).add(entry)

    @property
    def recent(self) -> list[Entry]:
        """The latest lines, the oldest first."""
        return list(merge(*(log.recent for log in self._logs), key=lambda entry: int(entry["time"])))

    def note(
        self, action: str, outcome: str, *, user: str, credential: str = "", peer: str = "", protocol: str = "",
        target: str = "",
    ) -> None:  # fmt: skip
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
        """Note a successful login; it is written once in `LOGIN_EVERY_MS`."""
        now_ms = self._host.now_ms()
        key = (user, credential, caller.address)
        if now_ms - self._logins.get(key, -LOGIN_EVERY_MS) < LOGIN_EVERY_MS:
            return
        if len(self._logins) >= KNOWN_MAX:
            self._logins.clear()
        self._logins[key] = now_ms
        self.note("login", "ok", user=user, credential=credential, peer=str(caller), protocol=caller.protocol)

    def session(self, user: str, credential: str, caller: Caller, target: str) -> None:
        """Note that a session was opened with a login."""
        entry = self._entry("open session", "ok", user=user, credential=credential, peer=str(caller),
                            protocol=caller.protocol, target=target)  # fmt: skip
        self._write_or_count((SESSION, user, source_of(caller.address), caller.protocol), entry)

    def failed(self, user: str, caller: Caller) -> None:
        """Note that a login failed. `user` is a name in the users file, or empty."""
        entry = self._entry("login", FAILED, user=user, peer=str(caller), protocol=caller.protocol)
        self._write_or_count((FAILED, user, source_of(caller.address), caller.protocol), entry)

    def throttled(self, user: str, caller: Caller) -> None:
        """Note that a login was not checked because too many had failed. `user` as in `failed`."""
        entry = self._entry("login", THROTTLED, user=user, peer=str(caller), protocol=caller.protocol)
        self._write_or_count((THROTTLED, user, source_of(caller.address), caller.protocol), entry)

    def refused(self, right: str, *, user: str, peer: str, protocol: str, target: str = "") -> None:
        """Note that a call was refused because the user lacks this right."""
        entry = self._entry(right, REFUSED, user=user, peer=peer, protocol=protocol, target=target)
        self._write_or_count((REFUSED, right, user, peer.rpartition(":")[0], protocol, target), entry)

    def changed(
        self, action: str, outcome: str, *, user: str, credential: str, peer: str, protocol: str, target: str
    ) -> None:
        """Note a change by a user who is not an administrator."""
        entry = self._entry(action, outcome, user=user, credential=credential, peer=peer, protocol=protocol,
                            target=target)  # fmt: skip
        self._write_or_count((CHANGE, user, action, target, credential), entry)

    def _write_or_count(self, key: tuple[str, ...], entry: Entry) -> None:
        """Write the first event with this key, and count the repeats. Events beyond the allowance share one count."""
        if not self._counts:
            self._host.call_later(COUNT_EVERY_MS, self._write_counts)
        if key in self._counts:
            first, count = self._counts[key]
            self._counts[key] = (first, count + 1)
        elif self._allowance(key).take(self._host.now_ms()):
            self._counts[key] = (entry, 0)
            self._write(entry)
        else:
            self._count_as_others(key[0], entry)

    def _allowance(self, key: tuple[str, ...]) -> _Allowance:
        kind, user, *_ = key
        if kind != CHANGE:
            return self._allowances[kind]
        if user not in self._of_users:
            if len(self._of_users) >= KNOWN_MAX:
                self._of_users.clear()
            self._of_users[user] = _Allowance(CHANGES_MAX, CHANGES_MS)
        return self._of_users[user]

    def _count_as_others(self, kind: str, entry: Entry) -> None:
        action = "" if kind == REFUSED else entry["action"]
        user = entry["user"] if kind == CHANGE else ""
        key = (kind, action, user)
        others, count = self._counts.get(key) or (self._entry(action, entry["outcome"], user=user, target="others"), 0)
        self._counts[key] = (others, count + 1)

    def _write_counts(self) -> None:
        counts, self._counts = self._counts, {}
        for entry, count in counts.values():
            if count:
                self._write({**entry, "time": self._host.wall_ms(), "count": count})

    def _log_of(self, entry: Entry) -> _Log:
        if entry.get("outcome") == REFUSED:
            return self._refused
        is_failure = entry.get("action") == "login" and entry.get("outcome") in (FAILED, THROTTLED)
        return self._failed if is_failure else self._changes

    def _write(self, entry: Entry) -> None:
        log = self._log_of(entry)
        log.add(entry)
        if log.path is not None:
            log.unwritten.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._flush()

    def _flush(self) -> None:
        lines = [(log.path, b"".join(log.unwritten)) for log in self._logs if log.path and log.unwritten]
        if self._is_writing or not lines:
            return
        for log in self._logs:
            log.unwritten.clear()
        self._is_writing = True

        def done(_: object, error: BaseException | None) -> None:
            self._is_writing = False
            if error is not None and not self._is_failing:
                logger.error("can't write the audit log: %s", error)
            self._is_failing = error is not None
            self._flush()

        def write() -> None:
            for path, data in lines:
                files.append(path, data, FILE_BYTES, FILES)

        self._host.submit(write, done)
