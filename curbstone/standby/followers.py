"""The followers of a server: each has its position in the stream, and is sent a full copy if it can't resume.

No thread is held while there is nothing to send: `Follower.read` returns at once, and `wake` reports new data.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from curbstone.core.disk import Disk
from curbstone.core.errors import BadRequest, Conflict, Gone, Unavailable
from curbstone.gateway.resources.server.standby import DIGEST_BYTES, Ack, AttachRequest
from curbstone.standby.barrier import ACK_TIMEOUT_MS, StandbyBarrier
from curbstone.standby.copying import Copy
from curbstone.standby.frames import Attached, Kind
from curbstone.standby.handover import Ending, Handover
from curbstone.standby.state_files import StateFiles
from curbstone.standby.stream import Cursor, Stream
from curbstone.standby.verifying import Compared, compare, is_segment

if TYPE_CHECKING:
    from curbstone.standby.lease_keeper import LeaseFigures, LeaseKeeper

FOLLOWERS_MAX = 4
GATHER_S = 0.02
"""How long to collect data before it is sent, because each piece costs a thread and a system call."""
TIME_S = 1.0
"""How often the server's wall clock is added to the stream while a follower is attached."""

_PIECE_BYTES = 512 * 1024

logger = logging.getLogger("curbstone")


class ServerEnding(Ending, Protocol):
    """Shuts down a server, which may also lose its lease."""

    def end_for(self, reason: str) -> None:
        """Shut down. Called on any thread."""


class FollowerEnded(OSError):
    """Nothing more can be sent to a follower on this connection. It may attach again."""


class FollowerFigures(NamedTuple):
    """The state of one follower."""

    name: str
    since_ms: int
    position: int
    """The end of what was handed to its connection."""
    lag_bytes: int
    """How much is queued for it."""
    sent_bytes: int
    is_copying: bool
    is_standby: bool
    """Whether it is a standby, which can take over."""
    acknowledged: int
    """The last position that a standby has acknowledged."""
    is_usable: bool
    """Whether a server could start on the copy of a standby."""


class Figures(NamedTuple):
    """The state of the stream and its followers."""

    server: str
    term: int
    life: int
    position: int
    backlog_bytes: int
    """How much of the stream is kept for followers."""
    followers: list[FollowerFigures]
    confirms: str
    """Whether confirms wait for a standby: `local`, or the state of the barrier."""
    lease: LeaseFigures | None
    """The lease that the server needs to confirm, if it is run with one."""
    copies: int
    """How many full copies were begun."""
    resumes: int
    cut_off: int
    """How many followers were disconnected because they were too slow."""
    sent_bytes: int


class Follower:
    """An attached follower. `read` is called on one thread at a time."""

    def __init__(
        self, followers: Followers, request: AttachRequest, attached: Attached, cursor: Cursor, copy: Copy | None
    ) -> None:
        self._followers = followers
        self._cursor = cursor
        self._copy = copy
        self._first = attached.encode()
        self.is_closed = self.is_disconnected = False
        self.name = request.name
        self.key = request.key
        self.copy = request.copy
        self.is_standby = bool(request.server)
        self.acknowledged = 0
        self.is_usable = False
        self.gather_s = 0.0 if attached.confirms_wait else GATHER_S
        self.since_ms = attached.time_ms
        self.sent_bytes = 0

    def read(self) -> bytes:
        """Return the next bytes, or b"" if there are none now. Raise FollowerEnded or another OSError."""
        if self._first:
            data, self._first = self._first, b""
            return data
        self._followers.add_time()
        if self._cursor.is_cut_off:
            self._followers.cut_off += 1
            raise FollowerEnded("it was slower than the backlog allows, or has to compare because a change failed")
        while self._copy is not None and self._cursor.pending_bytes < _PIECE_BYTES:
            if not self._copy.step():
                logger.info("copy sent to follower %s: %d bytes", self.name, self._copy.copied_bytes)
                self._copy = None
        data = b"".join(self._cursor.take(_PIECE_BYTES))
        self.sent_bytes += len(data)
        return data

    @property
    def is_nonblocking(self) -> bool:
        """Whether `read` only takes what is queued, and reads no file."""
        return self._copy is None

    def compare(self, path: str, first: int, had: Sequence[bytes]) -> Compared:
        """See `verifying.compare`. Raise Conflict if it is being copied."""
        if self._copy is not None or self.is_disconnected:
            raise Conflict("it is being copied")
        return compare(self._followers.stream, self._followers.disk, self._cursor, path, first, had)

    def figures(self) -> FollowerFigures:
        lag_bytes = self._cursor.pending_bytes
        position = self._followers.stream.end - lag_bytes
        is_copying = self._copy is not None
        return FollowerFigures(
            self.name, self.since_ms, position, lag_bytes, self.sent_bytes, is_copying,
            self.is_standby, self.acknowledged, self.is_usable,
        )  # fmt: skip

    def disconnect(self) -> None:
        """Close its connection."""
        self.is_disconnected = True
        with self._followers.stream.lock:
            self._cursor.cut_off()

    def take_over(self) -> None:
        """Have it become the server, once it has applied everything up to here."""
        self._cursor.add_own(Kind.TAKE_OVER)

    def close(self) -> None:
        """Detach it. It may attach again and resume while the stream is kept from its position on. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._followers.remove(self, self._cursor)


class Followers:
    """All followers of a server. Implements `gateway.resources.server.standby.Source`."""

    def __init__(
        self,
        stream: Stream,
        disk: Disk,
        wall_ms: Callable[[], int],
        files: StateFiles,
        ending: ServerEnding,
        lease: LeaseKeeper | None = None,
    ) -> None:
        """`disk` is the one whose changes are in the stream; `files` has the server's id and term.

        `ending` shuts down the server. `lease` is the one that the server needs to confirm, if it is run with one.
        """
        self.stream = stream
        self._state_files = files
        self._ending = ending
        self._lease = lease
        self.cut_off = 0
        self.disk = disk
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._followers: list[Follower] = []
        self._standby: Follower | None = None
        """The standby that confirms wait for."""
        self._barrier: StandbyBarrier | None = None
        self.has_failed: Callable[[], bool] = lambda: False
        """Whether a sync of the server has failed, so that data read from the page cache may not be on its disk."""
        self._attaching = 0
        self._copies = self._resumes = self._sent_bytes = 0
        self._timed_s = 0.0

    def set_barrier(self, barrier: StandbyBarrier) -> None:
        """Have confirms wait for a standby."""
        self._barrier = barrier

    def attach(self, request: AttachRequest, wake: Callable[[], None]) -> Follower:
        """See `Source`. A follower that can't resume is sent a copy of everything that it does not have.

        A standby of a higher term shuts this server down: another one was promoted.
        """
        self._check(request)
        with self._lock:
            if len(self._followers) + self._attaching >= FOLLOWERS_MAX:
                raise Conflict(f"{FOLLOWERS_MAX} followers are attached, which is the limit; stop one of them")
            self._attaching += 1
        try:
            follower = self._attached(request, lambda _is_urgent: wake())
        except BaseException as error:
            with self._lock:
                self._attaching -= 1
            if isinstance(error, OSError):
                raise Unavailable(f"the data directory can't be listed: {error.strerror}") from error
            raise
        with self._lock:
            self._attaching -= 1
            self._followers.append(follower)
        return follower

    def _check(self, request: AttachRequest) -> None:
        state = self._state_files.state
        if not request.server:
            return
        if request.server != state.server:
            raise Conflict(f"{request.name} has a copy of another server, {request.server[:8]}")
        if request.term > state.term:
            self._ending(request.term)
            raise Conflict(f"this server (term {state.term}) was replaced by one of term {request.term}; it shuts down")
        if self._barrier is None:
            return
        if self._barrier.may_be_in_sync and state.believed not in ("", request.copy):
            raise Conflict(
                f"confirms wait for copy {state.believed[:8]}, not for {request.name}. If that copy no longer exists,"
                " start the server once with a --standby-patience that is not never"
            )
        with self._lock:
            other = next((each for each in self._followers if each.is_standby and not each.is_disconnected), None)
        if other is not None and other.copy != request.copy:
            raise Conflict(f"confirms wait for {other.name}; only one standby is supported")
        if other is not None:  # its connection is lost, which was not noticed yet
            other.disconnect()
            self._standby_lost(other)

    def _attached(self, request: AttachRequest, wake: Callable[[bool], None]) -> Follower:
        stream = self.stream
        copy = None
        with stream.lock:
            resumed = stream.resume(request.position, wake) if request.life == stream.life else None
            is_resumed = resumed is not None
            if not is_resumed and request.only_resumes:
                raise Gone("the stream is no longer kept from that position on")
            cursor = resumed or stream.begin(wake)
            try:
                if not is_resumed or request.wants_copy:
                    known = {path: _split(digests) for path, digests in request.digests.items()}
                    copy = Copy(stream, self.disk, known, wake, cursor)
            except BaseException:
                stream.detach(cursor)
                raise
        with self._lock:
            self._copies += copy is not None
            self._resumes += is_resumed
        sent = "sending what differs" if request.digests else "sending a full copy"
        steps = [*(["resuming"] if is_resumed else []), *([sent] if copy is not None else [])]
        logger.info("follower %s attached: %s", request.name, " and ".join(steps))
        barrier = self._barrier if request.server else None
        attached = Attached(
            *(stream.life, cursor.position, is_resumed, self._wall_ms()),
            is_out_of_sync=bool(request.server) and not (barrier is not None and barrier.may_be_in_sync),
            confirms_wait=barrier is not None,
        )
        return Follower(self, request, attached, cursor, copy)

    def acknowledge(self, ack: Ack) -> bool:
        """See `Source`."""
        barrier = self._barrier
        with self._lock:
            follower = next((each for each in self._followers if each.key and each.key == ack.key), None)
            if follower is None:
                raise Conflict("the follower is not attached")
            follower.acknowledged, follower.is_usable = ack.durable, ack.is_usable
            if barrier is None or not follower.is_standby or not ack.is_usable or follower.is_disconnected:
                return False
            is_believed = barrier.may_be_in_sync
            if self._standby is None:
                self._standby = follower
                barrier.standby_attached()
        try:
            barrier.acknowledge(ack.durable)
        except OSError as error:
            logger.error("can't record that %s is in sync: %s", follower.name, error)
        return is_believed

    def compare(self, key: str, path: str, first: int, had: Sequence[bytes]) -> Compared:
        """See `Source`."""
        with self._lock:
            follower = next((each for each in self._followers if each.key and each.key == key), None)
        if follower is None:
            raise Conflict("it is not attached")
        if not is_segment(path):
            raise BadRequest(f'bad "path" {path[:80]!r}: expected that of a segment')
        try:
            found = follower.compare(path, first, had)
        except OSError as error:
            raise Unavailable(f"{path} can't be read: {error.strerror}") from error
        if found.sent:
            logger.warning("%s of %s differs from this server's: %d blocks are sent", path, follower.name, found.sent)
        if found.damage:
            logger.error("%s is damaged here, and %s has something else: %s", path, follower.name, found.damage)
        return found

    def record_alone(self, is_alone: bool) -> None:
        """Record durably which copy may assume that it is in sync. Blocks; raise OSError."""
        standby = self._standby
        believed = "" if is_alone or standby is None else standby.copy
        self._state_files.change(believed=believed)
        if is_alone:
            logger.error("no standby: the server continues alone, and confirmed messages are on this disk only")
        else:
            logger.info("in sync with a standby: messages confirmed from now on are on both disks")

    def may_continue_alone(self) -> bool:
        """Have the lease name no standby; return whether it does."""
        if self._lease is None:
            return True
        self._lease.name_in_sync()
        return self._lease.holder.names_no_standby

    def tick(self) -> None:
        """Check the timeouts: of acknowledgements, of a missing standby, and of the lease."""
        barrier, standby = self._barrier, self._standby
        if self.has_failed() and not self._state_files.state.wants_full_copy:
            with suppress(OSError):  # it is tried again, and the alarm of the disk reports it
                self._state_files.change(wants_full_copy=True)
        try:
            if barrier is not None and not barrier.tick() and standby is not None:
                logger.warning("no acknowledgement from %s for %g s", standby.name, ACK_TIMEOUT_MS / 1000)
                standby.disconnect()
                self._standby_lost(standby)
        except OSError as error:
            logger.error("can't record the state of the standby: %s", error)
        if self._lease is not None:
            self._lease.heartbeat()
            if self.is_in_sync:
                self._lease.name_in_sync(self._state_files.state.believed)
            if reason := self._lease.end_reason:
                self._ending.end_for(reason)

    def _standby_lost(self, follower: Follower) -> None:
        with self._lock:
            if self._standby is not follower:
                return
            self._standby = None
        assert self._barrier is not None
        self._barrier.standby_lost()
        logger.warning("connection to standby %s lost", follower.name)

    # --- switchover

    def hand_over(self) -> Handover:
        """Begin to hand over to the standby. Raise Conflict if none could take over."""
        with self._lock:
            ready = next((each for each in self._followers if each.is_standby and each.is_usable), None)
        if ready is None:
            raise Conflict("no standby is attached whose copy is complete")
        lease = self._lease
        give = partial(lease.hand_over, ready.copy, ready.name) if lease is not None else None
        return Handover(self.stream, self._state_files, ready, self._ending, self.has_failed, give)

    def add_time(self) -> None:
        """Add the wall clock to the stream, once per `TIME_S`."""
        now_s = time.monotonic()
        if now_s - self._timed_s >= TIME_S:
            self._timed_s = now_s
            self.stream.add_time()

    def remove(self, follower: Follower, cursor: Cursor) -> None:
        """Remove a follower that is detached."""
        self._standby_lost(follower)
        self.stream.detach(cursor)
        with self._lock:
            self._followers.remove(follower)
            self._sent_bytes += follower.sent_bytes
        logger.info("follower %s detached", follower.name)

    @property
    def is_in_sync(self) -> bool:
        """See `Source`."""
        return self._barrier is not None and self._barrier.is_in_sync

    @property
    def end(self) -> int:
        """See `Source`."""
        return self.stream.end

    @property
    def confirms(self) -> str:
        """See `Figures`."""
        return "local" if self._barrier is None else self._barrier.state.value

    def figures(self) -> Figures:
        with self._lock:
            each = [follower.figures() for follower in self._followers]
            sent_bytes = self._sent_bytes + sum(one.sent_bytes for one in each)
            stream = self.stream
            state = self._state_files.state
            return Figures(
                state.server, state.term, stream.life, stream.end, stream.kept_bytes, each, self.confirms,
                self._lease.figures() if self._lease is not None else None,
                self._copies, self._resumes, self.cut_off, sent_bytes,
            )  # fmt: skip


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
