"""What all `Access` of a server share: the audit, and registries of what connections have.

Refusals and changes go into the audit if there are users. Without users nothing is noted.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.access.ack_ids import AckIds
from curbstone.access.audit import Audit
from curbstone.access.caller import ASKING
from curbstone.access.identity import Identity
from curbstone.access.private_queues import PrivateQueues
from curbstone.access.producer_claims import Key, ProducerClaims
from curbstone.core.host import Host
from curbstone.core.values import ignore


class Registries:
    """The shared part of all `Access`; see the module's docstring. Called on the host's thread."""

    def __init__(self, host: Host, audit: Audit | None = None) -> None:
        self._audit = audit
        self.private = PrivateQueues(host)
        """The private queues of connections."""
        self.ack_ids = AckIds()
        """The deliveries that connections hold, so that they can be settled over other connections."""
        self.producing: dict[Key, ProducerClaims] = {}
        """Which connection publishes as which numbered producer."""
        self.refusals: dict[str, int] = {}
        """The number of refused calls, by the name of the right they lacked."""

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """Note that an identity lacked a right."""
        if self._audit is not None:
            self.refusals[right] = self.refusals.get(right, 0) + 1
            peer, protocol = _asking()
            self._audit.refused(right, user=identity.user, peer=peer, protocol=protocol, target=target)

    def did(self, identity: Identity, action: str, target: str) -> None:
        """Note a change that needed `manage` or `admin`."""
        self.audit_later(identity, action, target)()

    def audit_later(self, identity: Identity, action: str, target: str) -> Callable[[], None]:
        """Return a function that notes a change by the client whose request is carried out now, once it is made."""
        audit = self._audit
        if audit is None or not identity.owner:
            return ignore
        peer, protocol = _asking()
        write = audit.note if identity.is_admin else audit.did
        user, credential = identity.user, identity.credential
        return lambda: write(
            action, "ok", user=user, credential=credential, peer=peer, protocol=protocol, target=target
        )


def _asking() -> tuple[str, str]:
    """Return the client whose request is being carried out, and its protocol."""
    caller = ASKING.get()
    return (str(caller), caller.protocol) if caller is not None else ("", "")
