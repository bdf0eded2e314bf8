"""The state that all `AuthorizedBroker` of a server share: the audit log, and registries of what connections hold.

Without users there is no audit log.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.access.ack_ids import AckIds
from curbstone.access.audit import Audit
from curbstone.access.caller import CURRENT_CALLER
from curbstone.access.identity import Identity
from curbstone.access.private_queues import PrivateQueues
from curbstone.access.producer_claims import Key, ProducerClaims
from curbstone.core.host import Host
from curbstone.core.values import ignore


class Registries:
    """Called on the host's thread."""

    def __init__(self, host: Host, audit: Audit | None = None) -> None:
        self._audit = audit
        self.private = PrivateQueues(host)
        self.ack_ids = AckIds()
        """The deliveries that connections hold, so that they can be settled over other connections."""
        self.producing: dict[Key, ProducerClaims] = {}
        """The claims of numbered producers."""
        self.refusals: dict[str, int] = {}
        """The number of refused calls, by the missing right."""

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """Record that an identity lacked a right."""
        if self._audit is not None:
            self.refusals[right] = self.refusals.get(right, 0) + 1
            peer, protocol = _current_peer()
            self._audit.refused(right, user=identity.user, peer=peer, protocol=protocol, target=target)

    def changed(self, identity: Identity, action: str, target: str) -> None:
        """Record a change that required `manage` or `admin`."""
        self.audit_later(identity, action, target)()

    def audit_later(self, identity: Identity, action: str, target: str) -> Callable[[], None]:
        """Return a function that records a change by the current caller, to be called once the change is made."""
        audit = self._audit
        if audit is None or not identity.owner:
            return ignore
        peer, protocol = _current_peer()
        write = audit.note if identity.is_admin else audit.changed
        user, credential = identity.user, identity.credential
        return lambda: write(
            action, "ok", user=user, credential=credential, peer=peer, protocol=protocol, target=target
        )


def _current_peer() -> tuple[str, str]:
    """Return the address of the client whose request is being processed, and its protocol."""
    caller = CURRENT_CALLER.get()
    return (str(caller), caller.protocol) if caller is not None else ("", "")
