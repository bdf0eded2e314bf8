"""Who somebody is to the server: what may be done, until when, and who is to hear when that changes.

Sessions and connections hold identities. A reload or a revocation changes the object, so that the next request,
subscription or batch sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from curbstone.access.rates import Meter
from curbstone.access.rights import EVERYTHING, ON_QUEUES, ON_SERVER, ON_TOPICS, Grants, Right
from curbstone.core.names import DEFAULT_PROJECT, QueueName

KNOWN_MAX = 10_000

_K = TypeVar("_K")

LOCAL = "local"
"""The name of everyone where there are no users."""


def _nothing() -> None:
    """Watches no more."""


class Identity:
    """See the module's docstring. Called on the host's thread."""

    def __init__(
        self,
        user: str,
        layers: Sequence[Grants],
        *,
        home: str = DEFAULT_PROJECT,
        credential: str = "",
        owner: str | None = None,
        expires_ms: int = 0,
    ) -> None:
        """`layers`: each narrows what those before it give. `expires_ms`: wall clock, 0 for never."""
        self.user = user
        self.home = home
        """The project of names that have none."""
        self.credential = credential
        """How one proved it, for logs and the audit: the id of a token, or the kind of credential."""
        self.owner = user if owner is None else owner
        """Whose leases, staged transactions and idempotency keys these are."""
        self.expires_ms = expires_ms
        self.end_reason = ""
        """Why this is nobody any more; empty as long as it counts."""
        self.meter: Meter | None = None
        """What counts what its user publishes; None where that has no rate."""
        self._layers = tuple(layers)
        self._queues: dict[QueueName, int] = {}
        self._topics: dict[tuple[str, str], int] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    @property
    def layers(self) -> tuple[Grants, ...]:
        """The grants it has its rights from; a narrower identity adds one."""
        return self._layers

    def on_queue(self, name: QueueName) -> int:
        """Return the rights on a queue."""
        rights = self._queues.get(name)
        if rights is None:
            rights = 0 if name.is_private or self.end_reason else ON_QUEUES
            for layer in self._layers if rights else ():
                rights &= layer.on_queue(name)
            _remember(self._queues, name, rights)
        return rights

    def in_project(self, project: str) -> int:
        """Return the rights on any queue of a project, taken together; not looked up as fast as the others."""
        rights = 0 if self.end_reason else int(ON_QUEUES)
        for layer in self._layers:
            rights &= layer.in_project(project)
        return rights

    def on_topic(self, project: str, event: str) -> int:
        """Return the rights on an event."""
        key = (project, event)
        rights = self._topics.get(key)
        if rights is None:
            rights = 0 if self.end_reason else ON_TOPICS
            for layer in self._layers:
                rights &= layer.on_topic(project, event)
            _remember(self._topics, key, rights)
        return rights

    def on_server(self) -> int:
        """Return the rights on the server."""
        rights = 0 if self.end_reason else ON_SERVER
        for layer in self._layers:
            rights &= layer.on_server_all()
        return rights

    @property
    def is_admin(self) -> bool:
        """Whether it may administer the server."""
        return bool(self.on_server() & Right.ADMIN)

    @property
    def is_watched(self) -> bool:
        """Whether a connection holds it."""
        return bool(self._watchers)

    def watch(self, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` when the rights have changed or the identity has ended; returns what ends that."""

        def unwatch() -> None:
            nonlocal fn
            self._watchers.pop(fn, None)
            fn = _nothing  # whoever keeps this is mostly what it was for

        self._watchers[fn] = None
        return unwatch

    def change(self, layers: Sequence[Grants], home: str) -> None:
        """It has these rights from now on."""
        before = [layer.all for layer in self._layers], self.home
        if ([layer.all for layer in layers], home) == before:
            return
        self._layers, self.home = tuple(layers), home
        self._changed()

    def end(self, reason: str) -> None:
        """It is nobody from now on; `reason` is what its connections are told."""
        if not self.end_reason:
            self.end_reason = reason
            self._changed()

    def _changed(self) -> None:
        self._queues.clear()
        self._topics.clear()
        for fn in list(self._watchers):
            if fn in self._watchers:  # else one called before ended it
                fn()


def local_identity() -> Identity:
    """Return the one who is everyone on this machine where there are no users, and may everything."""
    return Identity(LOCAL, [EVERYTHING], owner="")


def _remember(known: dict[_K, int], key: _K, rights: int) -> None:
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[key] = rights
