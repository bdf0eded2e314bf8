"""An identity: a user, its rights and their expiry, and the watchers that are notified of changes.

Sessions and connections hold identities. A reload or a revocation changes the object itself, so it applies to the next
request, subscription or batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from curbstone.access.rate_limit import Meter
from curbstone.access.rights import EVERYTHING, ON_QUEUES, ON_SERVER, ON_TOPICS, Grants, Right
from curbstone.core.names import DEFAULT_PROJECT, QueueName
from curbstone.core.values import ignore

KNOWN_MAX = 10_000

_K = TypeVar("_K")

LOCAL = "local"
"""The user of every client if there are no users."""


class Identity:
    """Called on the host's thread."""

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
        """Each of `layers` narrows the rights of those before it. `expires_ms`: wall clock, 0 for never."""
        self.user = user
        self.home = home
        """The default project of names."""
        self.credential = credential
        """How the client logged in, for logs: the id of a token, or the kind of credential."""
        self.owner = user if owner is None else owner
        """The owner of its leases, staged transactions and idempotency keys."""
        self.expires_ms = expires_ms
        self.end_reason = ""
        """Why the identity has ended; empty while it is valid."""
        self.meter: Meter | None = None
        """Measures the user's publishes; None if the user has no rate limit."""
        self._layers = tuple(layers)
        self._queues: dict[QueueName, int] = {}
        self._topics: dict[tuple[str, str], int] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    @property
    def layers(self) -> tuple[Grants, ...]:
        """The grants that its rights are derived from. A narrower identity has one more."""
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
        """Return the union of the rights on all queues of a project. It is not cached."""
        rights = 0 if self.end_reason else int(ON_QUEUES)
        for layer in self._layers:
            rights &= layer.in_project(project)
        return rights

    def on_topic(self, project: str, event: str) -> int:
        key = (project, event)
        rights = self._topics.get(key)
        if rights is None:
            rights = 0 if self.end_reason else ON_TOPICS
            for layer in self._layers:
                rights &= layer.on_topic(project, event)
            _remember(self._topics, key, rights)
        return rights

    def on_server(self) -> int:
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
        """Call `fn` when the rights have changed or the identity has ended; return a function that stops this."""

        def unwatch() -> None:
            nonlocal fn
            self._watchers.pop(fn, None)
            fn = ignore  # breaks the reference cycle: the object that `fn` belongs to usually keeps `unwatch`

        self._watchers[fn] = None
        return unwatch

    def change(self, layers: Sequence[Grants], home: str) -> None:
        """Replace the rights and the home project."""
        before = [layer.all for layer in self._layers], self.home
        if ([layer.all for layer in layers], home) == before:
            return
        self._layers, self.home = tuple(layers), home
        self._changed()

    def end(self, reason: str) -> None:
        """End the identity and its connections, with this reason."""
        if not self.end_reason:
            self.end_reason = reason
            self._changed()

    def _changed(self) -> None:
        self._queues.clear()
        self._topics.clear()
        for fn in list(self._watchers):
            if fn in self._watchers:  # an earlier watcher may have removed it
                fn()


def local_identity() -> Identity:
    """Return the identity of every client if there are no users; it has all rights."""
    return Identity(LOCAL, [EVERYTHING], owner="")


def _remember(known: dict[_K, int], key: _K, rights: int) -> None:
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[key] = rights
