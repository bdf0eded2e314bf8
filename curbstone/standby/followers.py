"""The server's side of those who follow it: each has a place in the stream, and gets a copy of everything where needed.

No thread is held while there is nothing to send: `Follower.read` returns at once, and `wake` says when to call again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from curbstone.core.disk import Disk
from curbstone.core.errors import Conflict, Gone, Unavailable
from curbstone.gateway.resources.server.standby import DIGEST_BYTES, Ack, Hello
from curbstone.standby.copying import Copy
from curbstone.standby.frames import Attached
from curbstone.standby.place import Place
from curbstone.standby.stream import Cursor, Stream

FOLLOWERS_MAX = 4
GATHER_S = 0.02
"""How long to wait for more before something is sent, because each piece costs a thread and a system call."""
TIME_S = 1.0
"""How often the server's wall clock is in the stream while a follower is attached."""

_PIECE_BYTES = 512 * 1024

logger = logging.getLogger("curbstone")


class FollowerEnded(OSError):
    """Nothing more can be sent to a follower on this connection. It may attach again."""


class FollowerFigures(NamedTuple):
    """What is known of one follower."""

    name: str
    since_ms: int
    position: int
    """Up to where the stream was handed to its connection."""
    lag_bytes: int
    """What waits for it."""
    sent_bytes: int
    is_copying: bool
    is_standby: bool
    """Whether it can take over."""
    acknowledged: int
    """Of a standby: up to where it has everything."""
    is_usable: bool
    """Of a standby: whether a server could start on what it has."""


class Figures(NamedTuple):
    """What is known of the stream and its followers."""

    server: str
    term: int
    life: int
    position: int
    backlog_bytes: int
    """So much of the stream is kept for followers."""
    followers: list[FollowerFigures]
    copies: int
    """How often a copy of everything was begun."""
    resumes: int
    cut_off: int
    """How many followers were too slow."""
    sent_bytes: int


class Follower:
    """One that is attached. `read` is called on one thread at a time."""

    def __init__(
        self, followers: Followers, hello: Hello, attached: Attached, cursor: Cursor, copy: Copy | None
    ) -> None:
        self._followers = followers
        self._cursor = cursor
        self._copy = copy
        self._first = attached.encode()
        self._is_closed = False
        self.name = hello.name
        self.key = hello.key
        self.is_standby = bool(hello.server)
        self.acknowledged = 0
        self.is_usable = False
        self.gather_s = 0.0 if attached.waits else GATHER_S
        self.since_ms = attached.time_ms
        self.sent_bytes = 0

    def read(self) -> bytes:
        """Return what comes next, or b"" if there is nothing now. Raise FollowerEnded or another OSError."""
        if self._first:
            data, self._first = self._first, b""
            return data
        self._followers.note_time()
        if self._cursor.is_cut_off:
            self._followers.cut_off += 1
            raise FollowerEnded("it was slower than the backlog allows, or a change failed so that it has to compare")
        while self._copy is not None and self._cursor.pending_bytes < _PIECE_BYTES:
            if not self._copy.step():
                logger.info("%s has a copy of everything: %d bytes", self.name, self._copy.copied_bytes)
                self._copy = None
        data = b"".join(self._cursor.take(_PIECE_BYTES))
        self.sent_bytes += len(data)
        return data

    def figures(self) -> FollowerFigures:
        """Return what is known of it."""
        lag_bytes = self._cursor.pending_bytes
        position = self._followers.stream.end - lag_bytes
        is_copying = self._copy is not None
        return FollowerFigures(
            self.name, self.since_ms, position, lag_bytes, self.sent_bytes, is_copying,
            self.is_standby, self.acknowledged, self.is_usable,
        )  # fmt: skip

    def close(self) -> None:
        """End it. It may attach again and resume, as long as what it lacks is kept. May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._followers.left(self, self._cursor)


class Followers:
    """All followers of a server. Implements `gateway.resources.server.standby.Source`."""

    def __init__(
        self, stream: Stream, disk: Disk, wall_ms: Callable[[], int], place: Place, replaced: Callable[[int], None]
    ) -> None:
        """`disk` is the one whose changes are in the stream, `place` has the server's id and term.

        `replaced` is called on any thread if there is a server with a higher term. Nothing is confirmed any more then.
        """
        self.stream = stream
        self._place = place
        self._replaced = replaced
        self.cut_off = 0
        self._disk = disk
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._followers: list[Follower] = []
        self._attaching = 0
        self._copies = self._resumes = self._sent_bytes = 0
        self._timed_s = 0.0

    def attach(self, hello: Hello, wake: Callable[[], None]) -> Follower:
        """See `Source`. One that can't go on where it was gets a copy of everything that it does not have.

        A standby that knows of a higher term ends this server: another one was promoted.
        """
        self._check(hello)
        with self._lock:
            if len(self._followers) + self._attaching >= FOLLOWERS_MAX:
                raise Conflict(f"{FOLLOWERS_MAX} followers are attached, which is the limit; end one of them")
            self._attaching += 1
        try:
            follower = self._attached(hello, lambda _is_urgent: wake())
        except BaseException as error:
            with self._lock:
                self._attaching -= 1
            if isinstance(error, OSError):
                raise Unavailable(f"what is on the disk can't be listed: {error.strerror}") from error
            raise
        with self._lock:
            self._attaching -= 1
            self._followers.append(follower)
        return follower

    def _check(self, hello: Hello) -> None:
        state = self._place.state
        if not hello.server:
            return
        if hello.server != state.server:
            raise Conflict(f"{hello.name} has the copy of another server, {hello.server[:8]}, and not of this one")
        if hello.term > state.term:
            self._replaced(hello.term)
            raise Conflict(f"this server, of term {state.term}, was replaced by one of term {hello.term}; it ends now")

    def _attached(self, hello: Hello, wake: Callable[[bool], None]) -> Follower:
        stream = self.stream
        copy = None
        with stream.lock:
            resumed = stream.resume(hello.position, wake) if hello.life == stream.life else None
            is_resumed = resumed is not None
            if not is_resumed and hello.only_resumes:
                raise Gone("the stream is not kept from there on")
            cursor = resumed or stream.begin(wake)
            try:
                if not is_resumed or hello.wants_copy:
                    had = {path: _split(digests) for path, digests in hello.had.items()}
                    copy = Copy(stream, self._disk, had, wake, cursor)
            except BaseException:
                stream.detach(cursor)
                raise
        with self._lock:
            self._copies += copy is not None
            self._resumes += is_resumed
        how = "continues" if is_resumed else "is new, or was away for too long"
        what = "compares what it has" if hello.had else "gets a copy of everything"
        logger.info("%s follows: it %s%s", hello.name, how, f", and {what}" if copy is not None else "")
        attached = Attached(stream.life, cursor.position, is_resumed, self._wall_ms(), lacks=bool(hello.server))
        return Follower(self, hello, attached, cursor, copy)

    def acknowledge(self, ack: Ack) -> None:
        """See `Source`."""
        with self._lock:
            follower = next((each for each in self._followers if each.key and each.key == ack.key), None)
        if follower is None:
            raise Conflict("it is not attached")
        follower.acknowledged, follower.is_usable = ack.durable, ack.is_usable

    def note_time(self) -> None:
        """Have the wall clock in the stream now and then."""
        now_s = time.monotonic()
        if now_s - self._timed_s >= TIME_S:
            self._timed_s = now_s
            self.stream.note_time()

    def left(self, follower: Follower, cursor: Cursor) -> None:
        """Forget a follower."""
        self.stream.detach(cursor)
        with self._lock:
            self._followers.remove(follower)
            self._sent_bytes += follower.sent_bytes
        logger.info("%s follows no more", follower.name)

    def figures(self) -> Figures:
        """Return what is known."""
        with self._lock:
            each = [follower.figures() for follower in self._followers]
            sent_bytes = self._sent_bytes + sum(one.sent_bytes for one in each)
            stream = self.stream
            state = self._place.state
            return Figures(
                state.server, state.term, stream.life, stream.end, stream.kept_bytes, each,
                self._copies, self._resumes, self.cut_off, sent_bytes,
            )  # fmt: skip


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
