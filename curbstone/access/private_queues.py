"""The private queues of each user: limits for their number and for the bytes that they hold together.

They are the temporary queues and topic subscriptions of STOMP, and the reply queues of HTTP requests. They require no
right and are in no project, so no quota counts them. Each has a cap, but most are empty, so the sum of a user's caps
may exceed the limit. For users whose caps exceed it, the bytes in their queues are summed each second. If the sum
exceeds the limit, the largest queue, whose consumer is too slow, is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from curbstone.access.errors import TooMany
from curbstone.access.identity import Identity
from curbstone.core.errors import CurbstoneError
from curbstone.core.host import Host
from curbstone.core.names import QueueName

if TYPE_CHECKING:
    from curbstone.core.port import Queue

QUEUES_MAX = 2_000
"""The most private queues of one user."""
BYTES_MAX = 2 * 1024 * 1024 * 1024
"""The most bytes that a user's private queues may take on disk together."""
CHECK_EVERY_MS = 1_000
AT_ONCE = 20
"""How many queues are deleted in one turn of the event loop: each takes about 0.1 ms."""

End = Callable[[QueueName, CurbstoneError], object]


class _PrivateQueue(NamedTuple):
    queue: Queue
    cap: int
    end: End


class _QueuesOfUser:
    """The private queues of one user."""

    __slots__ = ("caps_bytes", "queues")

    def __init__(self) -> None:
        self.queues: dict[QueueName, _PrivateQueue] = {}
        self.caps_bytes = 0
        """The sum of their caps."""

    @property
    def may_exceed_limit(self) -> bool:
        """Whether the caps allow more than the limit. A single queue may always be as large as its cap."""
        return self.caps_bytes > BYTES_MAX and len(self.queues) > 1

    def make_room(self) -> None:
        """Delete the largest queues until the others are within the limit; at least one stays."""
        held = sorted((one.queue.counts().bytes, name) for name, one in self.queues.items() if not one.queue.is_closed)
        total = sum(size for size, _ in held)
        while total > BYTES_MAX and len(held) > 1:
            size, name = held.pop()
            total -= size
            reason = f"temporary queues and topics of this user hold more than {BYTES_MAX} bytes, and this one the most"
            if (one := self.queues.get(name)) is not None:  # it may have been deleted with the connection of another
                one.end(name, TooMany(reason))


class PrivateQueues:
    """The private queues of all users. Called on the host's thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_user: dict[str, _QueuesOfUser] = {}
        self._is_check_due = False

    def check(self, identity: Identity, name: QueueName) -> None:
        """Raise TooMany if a user may not have another private queue; `name` may exist already."""
        mine = self._by_user.get(identity.user)
        if mine is not None and name not in mine.queues and len(mine.queues) >= QUEUES_MAX:
            raise TooMany(f"this user has {QUEUES_MAX} temporary queues and topic subscriptions, the limit")

    def keep(self, identity: Identity, queue: Queue, end: End) -> None:
        """Add a user's private queue, or update it. `end` deletes it with an error for its consumer."""
        if identity.owner:
            mine = self._by_user.setdefault(identity.user, _QueuesOfUser())
            before = mine.queues.get(queue.name)
            one = mine.queues[queue.name] = _PrivateQueue(queue, queue.options.cap, end)
            mine.caps_bytes += one.cap - (before.cap if before is not None else 0)
            if mine.may_exceed_limit:
                self._check_later()

    def drop(self, identity: Identity, names: Sequence[QueueName], delete: Callable[[QueueName], object]) -> None:
        """Delete queues, `AT_ONCE` in each turn of the event loop, so that other connections need not wait."""
        for name in names[:AT_ONCE]:
            self._forget(identity, name)
            delete(name)
        if len(names) > AT_ONCE:
            self._host.call_soon(partial(self.drop, identity, names[AT_ONCE:], delete))

    def _forget(self, identity: Identity, name: QueueName) -> None:
        mine = self._by_user.get(identity.user)
        if mine is not None and name in mine.queues:
            mine.caps_bytes -= mine.queues.pop(name).cap
            if not mine.queues:
                del self._by_user[identity.user]

    def _check_later(self) -> None:
        if not self._is_check_due:
            self._is_check_due = True
            self._host.call_later(CHECK_EVERY_MS, self._check)

    def _check(self) -> None:
        self._is_check_due = False
        large = [each for each in self._by_user.values() if each.may_exceed_limit]
        for each in large:
            each.make_room()
        if large:
            self._check_later()
