"""Sessions and tickets, which a login creates for a limited time. They exist only in memory.

A session ends half an hour after its last request, and at the latest twelve hours after its login. A ticket can be used
once, within half a minute, for one purpose, and for one queue if the purpose needs one. It may be put into a URL, where
a token may not.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from curbstone.access.authorization import AuthorizedBroker
from curbstone.access.errors import TooMany
from curbstone.access.secrets import TICKET, Secret, new_secret
from curbstone.core.host import Host
from curbstone.core.names import QueueName

IDLE_MS, LONGEST_MS = 30 * 60_000, 12 * 3_600_000
SESSIONS_MAX, SESSIONS_OF_USER_MAX = 10_000, 100
TICKET_MS = 30_000
TICKETS_MAX, TICKETS_OF_USER_MAX = 10_000, 100
RESERVED = 100
"""How many of all sessions, and of all tickets, are reserved for administrators."""
PURPOSES = ("publish", "consume", "events", "stomp", "queues")
"""The purposes of tickets."""
WITHOUT_QUEUE = ("stomp", "queues")
"""The purposes for which the client names its queues later, over the connection."""


class Session:
    """A login for many requests."""

    __slots__ = ("access", "digest", "id", "used_ms")

    def __init__(self, secret: Secret, access: AuthorizedBroker, now_ms: int) -> None:
        self.id = secret.id
        self.digest = secret.digest
        self.access = access
        self.used_ms = now_ms


class Sessions:
    """All sessions. Called on the host's thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sessions: dict[str, Session] = {}
        self._of_user: dict[str, dict[str, Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, secret: Secret, access: AuthorizedBroker) -> None:
        """Open a session with a secret from `new_secret`; raise TooMany.

        If its user has too many, close the least recently used one that has no connections.
        """
        user = access.identity.user
        most = SESSIONS_MAX if access.identity.is_admin else SESSIONS_MAX - RESERVED
        if len(self._sessions) >= most:
            self.sweep()
        if len(self._of_user.get(user, ())) >= SESSIONS_OF_USER_MAX:
            idle = [each for each in self._of_user[user].values() if not each.access.identity.is_watched]
            if not idle:
                raise TooMany(f"this user has {SESSIONS_OF_USER_MAX} sessions with open connections, the limit", 60)
            self.close(min(idle, key=lambda each: each.used_ms).id)
        elif len(self._sessions) >= most:
            raise TooMany(f"the server has {len(self._sessions)} sessions, its limit", 60)
        session = Session(secret, access, self._host.now_ms())
        self._sessions[session.id] = self._of_user.setdefault(user, {})[session.id] = session

    def find(self, secret: Secret) -> AuthorizedBroker | None:
        """Return the access of a secret's session, and mark it as used now; None if there is no such session."""
        session = self._sessions.get(secret.id)
        if session is None or not secret.is_of(session.digest):
            return None
        if self._is_expired(session):
            self.close(session.id)
            return None
        session.used_ms = self._host.now_ms()
        return session.access

    def close(self, identifier: str) -> None:
        """End a session and the connections that use it."""
        session = self._sessions.pop(identifier, None)
        if session is not None:
            user = session.access.identity.user
            del self._of_user[user][identifier]
            if not self._of_user[user]:
                del self._of_user[user]
            session.access.identity.end("the session ended")

    def sweep(self) -> None:
        """Close the sessions that have expired."""
        for session in [session for session in self._sessions.values() if self._is_expired(session)]:
            self.close(session.id)

    def _is_expired(self, session: Session) -> bool:
        identity = session.access.identity
        if identity.end_reason or self._host.wall_ms() >= identity.expires_ms:
            return True
        # A connection that uses the session keeps it alive.
        return not identity.is_watched and self._host.now_ms() - session.used_ms > IDLE_MS


class Ticket(NamedTuple):
    """An unused ticket."""

    digest: bytes
    access: AuthorizedBroker
    purpose: str
    queue: QueueName | None
    """The queue; None if the client names its queues later."""
    until_ms: int


class Tickets:
    """All unused tickets. Called on the host's thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tickets: dict[str, Ticket] = {}
        """The tickets by id, the oldest first."""
        self._of_user: Counter[str] = Counter()

    def make(self, access: AuthorizedBroker, purpose: str, queue: QueueName | None) -> Secret:
        """Return a new ticket; raise TooMany."""
        now_ms = self._host.now_ms()
        while self._tickets and next(iter(self._tickets.values())).until_ms <= now_ms:
            self._remove(next(iter(self._tickets)))
        user = access.identity.user
        if self._of_user[user] >= TICKETS_OF_USER_MAX:
            raise TooMany(f"this user has {TICKETS_OF_USER_MAX} unused tickets, the limit", 30)
        if len(self._tickets) >= (TICKETS_MAX if access.identity.is_admin else TICKETS_MAX - RESERVED):
            raise TooMany(f"the server has {len(self._tickets)} unused tickets, its limit", 30)
        secret = new_secret(TICKET)
        self._of_user[user] += 1
        self._tickets[secret.id] = Ticket(secret.digest, access, purpose, queue, now_ms + TICKET_MS)
        return secret

    def use(self, secret: Secret, purpose: str, queue: QueueName | None) -> AuthorizedBroker | None:
        """Use up a ticket. Return its owner's access, or None if it is not for this purpose and queue."""
        ticket = self._tickets.get(secret.id)
        if ticket is None or not secret.is_of(ticket.digest):
            return None
        self._remove(secret.id)
        fits = (ticket.purpose, ticket.queue) == (purpose, queue) and ticket.until_ms > self._host.now_ms()
        return ticket.access if fits else None

    def _remove(self, identifier: str) -> None:
        user = self._tickets.pop(identifier).access.identity.user
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]
