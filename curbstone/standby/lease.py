"""The lease: a small record in a shared store that decides which of several servers may confirm.

The store replaces the record only if it still has the version that the writer has read, and each write creates a new
version. So a late write has no effect, and while the version stays the same, the holder has not renewed the lease.

::

    L1  the holder confirms only while its lease is valid: for its TTL, by its own clock, from when it has sent the last
        write that succeeded, less `MARGIN_MS`
    L2  before it confirms alone, the record says that no standby is in sync
    L3  the record names a standby only once every confirm waits for that standby
    L4  a standby takes the lease when it has seen the same version for the TTL by its own clock, and the record names
        it, or its lag is within the limit

The holder measures its TTL from before its write reaches the store, and a watcher from after it. So the holder stops
before a watcher takes over, as long as no clock gains `MARGIN_MS` on another one in a TTL. No wall clock is used.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from curbstone.core.host import ConfirmBarrier

MARGIN_MS = 2000
"""How long before its end the holder stops confirming."""
RENEWALS = 3
"""How often the lease is renewed in its TTL."""
POLLS = 6
"""How often a watcher reads the lease in a TTL."""
HAND_OVER_MS_MAX = 20_000
"""How long a server that hands over may run without a lease before it is shut down."""


class BadLease(ValueError):
    """The object in the store is not a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The record."""

    server: str
    """The id that the server and all its copies have."""
    term: int
    holder: str
    """The id of the copy whose server holds it."""
    name: str
    """The name of the holder, for operators."""
    url: str
    """The URL of the holder for other machines; "" if it was not given."""
    sync: tuple[str, ...]
    """The ids of the copies that are in sync."""
    ttl_ms: int
    write: str = ""
    """The id of the write: no two writes make the same record."""

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Lease:
        """Decode a record. Raise BadLease."""
        try:
            facts: dict[str, Any] = json.loads(data)
            lease = cls(**{**facts, "sync": tuple(facts["sync"])})
        except (ValueError, KeyError, TypeError):
            raise BadLease("the object in the lease store is not a lease of Curbstone, or of a newer version") from None
        if not (isinstance(lease.term, int) and isinstance(lease.ttl_ms, int) and lease.ttl_ms > MARGIN_MS):
            raise BadLease("the lease is damaged")
        return lease


class Found(NamedTuple):
    """A record in the store, with its version."""

    lease: Lease
    version: str


class Call(NamedTuple):
    """A call to the store: replace `version` by `lease`, or, without a lease, read."""

    lease: Lease | None = None
    version: str | None = None
    """None if the record must not exist yet."""


class LeaseStore(Protocol):
    """A store of the record. Calls block, for about a third of the TTL at most."""

    def check(self) -> None:
        """Check that the store compares versions. Raise UnfitStore if it does not, or OSError."""

    def read(self) -> Found | None:
        """Return the record, or None if there is none. Raise OSError or BadLease."""

    def write(self, lease: Lease, version: str | None) -> str:
        """Replace a version of the record, and only that one, or create it; return the new version.

        Raise OSError if the write has failed or its outcome is unknown: it may even take effect later.
        """

    def close(self) -> None:
        """Close the connection. The next call opens another one."""


class Replaced(Exception):
    """Another server holds the lease."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"{lease.name} holds the lease, as the server of term {lease.term}")
        self.lease = lease


class UnfitStore(Exception):
    """The store does not compare versions."""


class NotFree(Exception):
    """The lease can't be taken. The text says why."""


def call_store(store: LeaseStore, call: Call) -> Found | None:
    """Make a call; return the record in the store after it. Raise what the store raises."""
    if call.lease is None:
        return store.read()
    return Found(call.lease, store.write(call.lease, call.version))


class Holder:
    """The lease in the server that holds it: rules L1 to L3.

    One thread makes the calls that `call` returns, one by one, and reports each result to `answer` or `failed`. All
    other methods may be called on any thread.
    """

    def __init__(self, lease: Lease, version: str | None, now_ms: Callable[[], int]) -> None:
        """`lease` is held once it has replaced `version` in the store."""
        self.lease = lease
        """The record that should be in the store."""
        self.valid_until_ms = 0
        self.failures = 0
        """How many calls have failed."""
        self._now_ms = now_ms
        self._version = version
        self._in_store = replace(lease, sync=("?",))
        """The record of this version. Before the first write it is unknown which copies it names."""
        self._renewed_ms: int | None = None
        self._sent: dict[str, tuple[Lease, int]] = {}
        """Writes that replace this version, with the times of sending. Each may have taken effect, or still may."""
        self._is_in_doubt = False
        self._handover_lease: Lease | None = None
        """The record that hands over the lease, until it is sent."""
        self._ends_ms = 0
        """During a handover: when the server is shut down at the latest."""
        self._lock = threading.Lock()

    # --- for the server

    @property
    def holds(self) -> bool:
        """Whether the server may confirm now (L1)."""
        return self._now_ms() < self.valid_until_ms

    @property
    def is_expired(self) -> bool:
        """Whether the server has to shut down: its lease has expired, or another server holds one."""
        now_ms = self._now_ms()
        return now_ms >= self.valid_until_ms and now_ms >= self._ends_ms

    @property
    def names_no_standby(self) -> bool:
        """Whether the record in the store certainly names no standby as in sync, and will not (L2)."""
        with self._lock:
            leases = [self.lease, self._in_store, *(lease for lease, _ in self._sent.values())]
            return not any(lease.sync for lease in leases)

    def name_in_sync(self, *copies: str) -> None:
        """Have the record name the copies that every confirm waits for (L3)."""
        with self._lock:
            self.lease = replace(self.lease, sync=copies)

    def hand_over(self, holder: str, name: str) -> None:
        """Give the lease to a copy. The server confirms nothing from now on; if this fails, until a renewal."""
        with self._lock:
            self.valid_until_ms = 0
            self._ends_ms = self._now_ms() + HAND_OVER_MS_MAX
            term = self.lease.term + 1
            self._renewed_ms = None
            self._handover_lease = replace(self.lease, holder=holder, name=name, term=term, url="", sync=())

    # --- the store

    def call(self) -> Call | None:
        """Return the call to make now, or None if none is due."""
        with self._lock:
            if self._is_in_doubt:
                return Call()
            handover_lease, self._handover_lease = self._handover_lease, None
            if handover_lease is None and self._pause_ms() > 0:
                return None
            if handover_lease is not None:
                self.valid_until_ms = 0
            lease = replace(handover_lease or self.lease, write=secrets.token_hex(8))
            self._sent[lease.write] = lease, self._now_ms()
            return Call(lease, self._version)

    def pause_ms(self) -> int:
        """Return after how many milliseconds a call is due."""
        with self._lock:
            return self._pause_ms()

    def _pause_ms(self) -> int:
        if (
            self._is_in_doubt
            or self._handover_lease
            or self._renewed_ms is None
            or self.lease.sync != self._in_store.sync
        ):
            return 0
        return max(self._renewed_ms + self.lease.ttl_ms // RENEWALS - self._now_ms(), 0)

    def failed(self) -> None:
        """Report that a call has failed, or that its outcome is unknown."""
        with self._lock:
            self._is_in_doubt = True
            self.failures += 1

    def answer(self, found: Found | None) -> None:
        """Report the record that is in the store now. Raise Replaced, or OSError if it was deleted."""
        with self._lock:
            if found is None:
                if self._version is not None:
                    raise OSError("the lease has been deleted from its store")
                self._is_in_doubt = False
                return
            lease, sent_ms = self._sent.get(found.lease.write, (found.lease, None))
            if (lease.holder, lease.term) != (self.lease.holder, self.lease.term):
                self.valid_until_ms = 0
                raise Replaced(found.lease)
            self._is_in_doubt = False
            if found.version != self._version:
                # Writes that replace an older version can't take effect any more.
                self._version, self._in_store, self._renewed_ms = found.version, found.lease, sent_ms
                self._sent.clear()
            if sent_ms is not None and self._handover_lease is None:
                self.valid_until_ms = sent_ms + lease.ttl_ms - MARGIN_MS
                self._ends_ms = 0


class Candidate(NamedTuple):
    """A copy that could become the server."""

    id: str
    server: str
    term: int
    is_complete: bool
    in_sync: bool
    """Whether it is in sync, by the last report of the server."""
    reaches_ms: int | None
    """The time up to which it has the stream; None if unknown."""


class Watch:
    """The lease in a process that does not hold it: rule L4. Times are by its own clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.found: Found | None = None
        """The record at the last read."""
        self.since_ms = 0
        """When this version was read for the first time."""
        self._now_ms = now_ms

    def observe(self, found: Found | None) -> None:
        """Report the result of a read that has ended just now."""
        if found is None or self.found is None or found.version != self.found.version:
            self.since_ms = self._now_ms()
        self.found = found

    @property
    def unrenewed_ms(self) -> int:
        """How long the holder has not renewed it."""
        return self._now_ms() - self.since_ms

    @property
    def is_expired(self) -> bool:
        """Whether the holder can't confirm any more."""
        return self.found is not None and self.unrenewed_ms >= self.found.lease.ttl_ms

    def possible_loss(self, copy: Candidate, lag_ms: int | None, *, accepts_loss: bool = False) -> str:
        """Return why confirmed messages may be missing if a copy takes the lease now, or "". Raise NotFree.

        `lag_ms` is how far behind the last renewal the copy may be. With `accepts_loss` it may lack anything; the lease
        has to be expired all the same.
        """
        if self.found is None:
            raise NotFree("no server holds the lease; start the server with curbstone serve")
        lease = self.found.lease
        if lease.server != copy.server:
            raise NotFree(f"the lease belongs to server {lease.server[:8]}, but this is a copy of {copy.server[:8]}")
        is_mine = lease.holder == copy.id
        if not is_mine and not self.is_expired:
            raise NotFree(f"{lease.name} holds the lease, and renewed it {self.unrenewed_ms / 1000:.1f} s ago")
        if lease.term != copy.term + is_mine:
            raise NotFree(f"the lease is of term {lease.term}, but this is a copy of term {copy.term}")
        if not copy.is_complete:
            raise NotFree("the copy is not complete")
        if copy.in_sync and (is_mine or copy.id in lease.sync):
            return ""
        if lag_ms is None and not accepts_loss:
            raise NotFree("the copy is not in sync, so something that was confirmed may be missing")
        is_near = copy.reaches_ms is not None and lag_ms is not None and self.since_ms - copy.reaches_ms <= lag_ms
        if not (is_near or is_mine or accepts_loss):
            raise NotFree(f"the copy is more than {(lag_ms or 0) / 1000:g} s behind")
        return "the server did not wait for this copy before it confirmed"

    def lease_for(self, server: Lease) -> Lease | None:
        """Return the record that the server of a directory writes to hold the lease; None if it has to wait.

        `server.sync` has the copies that the record may name, as stored in the directory. Raise Replaced, or NotFree if
        waiting does not help.
        """
        if self.found is None:
            return replace(server, sync=())
        lease = self.found.lease
        if lease.server != server.server:
            raise NotFree(
                f"it belongs to server {lease.server[:8]}, and this is {server.server[:8]}; each server needs its own"
            )
        if lease.holder == server.holder and lease.term <= server.term:
            return replace(server, sync=tuple(copy for copy in lease.sync if copy in server.sync))
        if lease.term >= server.term:
            raise Replaced(lease)
        return replace(server, sync=()) if self.is_expired else None


class LeaseBarrier:
    """Implements `core.host.ConfirmBarrier`: nothing is confirmed unless the server holds its lease."""

    def __init__(self, holder: Holder, inner: ConfirmBarrier | None) -> None:
        """`inner` may hold back more."""
        self._holder = holder
        self._inner = inner

    def begin(self) -> None:
        if self._inner is not None:
            self._inner.begin()

    def end(self) -> int:
        return self._inner.end() if self._inner is not None else 1

    def allows(self, mark: int) -> bool:
        return self._holder.holds and (self._inner is None or self._inner.allows(mark))
