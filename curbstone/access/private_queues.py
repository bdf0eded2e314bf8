"""The private queues of each user: bounds for their number, and for the bytes that they hold together.

They are the temporary queues and topic subscriptions of STOMP, and the reply queues of HTTP requests. They need no
right and are in no project, so no quota counts them. Each has a cap, but all caps of a user together may be more than
there should be, while most of the queues are empty. So the caps themselves are not bounded. Instead, for users whose
caps would allow too much, the bytes that their queues hold are added up each second. If they are too many, the queue
that holds the most, whose consumer is too slow, is ended.
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
"""How many queues are deleted in one turn: each takes about 0.1 ms."""

End = Callable[[QueueName, CurbstoneError], object]


class _One(NamedTuple):
    queue: Queue
    cap: int
    end: End


class _Kept:
    """The private queues of one user."""

    __slots__ = ("caps_bytes", "queues")

    def __init__(self) -> None:
        self.queues: dict[QueueName, _One] = {}
        self.caps_bytes = 0
        """The sum of their caps."""

    @property
    def may_be_too_much(self) -> bool:
        """Whether the caps allow more than a user may have. A single queue may always be as large as its cap."""
        return self.caps_bytes > BYTES_MAX and len(self.queues) > 1

    def make_room(self) -> None:
        """End the queues that hold the most until the others fit; at least one stays."""
        held = sorted((one.queue.counts().bytes, name) for name, one in self.queues.items() if not one.queue.is_closed)
        total = sum(size for size, _ in held)
        while total > BYTES_MAX and len(held) > 1:
            size, name = held.pop()
            total -= size
            reason = f"temporary queues and topics of this user hold more than {BYTES_MAX} bytes, and this one the most"
            if (one := self.queues.get(name)) is not None:  # else it is gone with the connection of one before it
                one.end(name, TooMany(reason))


class PrivateQueues:
    """The private queues of all users; see the module's docstring. Called on the host's thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._of: dict[str, _Kept] = {}
        self._is_looking = False

    def check(self, identity: Identity, name: QueueName) -> None:
        """Raise TooMany if a user may not have another private queue; `name` may exist already."""
        kept = self._of.get(identity.user)
        if kept is not None and name not in kept.queues and len(kept.queues) >= QUEUES_MAX:
            raise TooMany(f"this user has {QUEUES_MAX} temporary queues and topic subscriptions, the limit")

    def keep(self, identity: Identity, queue: Queue, end: End) -> None:
        """Note a user's private queue, new or not. `end` deletes it with an error for its consumer."""
        if identity.owner:
            kept = self._of.setdefault(identity.user, _Kept())
            before = kept.queues.get(queue.name)
            one = kept.queues[queue.name] = _One(queue, queue.options.cap, end)
            kept.caps_bytes += one.cap - (before.cap if before is not None else 0)
            if kept.may_be_too_much:
                self._check_later()

    def drop(self, identity: Identity, names: Sequence[QueueName], delete: Callable[[QueueName], object]) -> None:
        """Forget and delete queues, `AT_ONCE` in each turn of the loop, so that other connections need not wait."""
        for name in names[:AT_ONCE]:
            self._forget(identity, name)
            delete(name)
        if len(names) > AT_ONCE:
            self._host.call_soon(partial(self.drop, identity, names[AT_ONCE:], delete))

    def _forget(self, identity: Identity, name: QueueName) -> None:
        kept = self._of.get(identity.user)
        if kept is not None and name in kept.queues:
            kept.caps_bytes -= kept.queues.pop(name).cap
            if not kept.queues:
                del self._of[identity.user]

    def _check_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._host.call_later(CHECK_EVERY_MS, self._check)

    def _check(self) -> None:
        self._is_looking = False
        too_much = [kept for kept in self._of.values() if kept.may_be_too_much]
        for kept in too_much:
            kept.make_room()
        if too_much:
            self._check_later()
