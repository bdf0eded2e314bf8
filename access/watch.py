"""What all `Access` of one gate share: where they tell of refusals and changes, and who holds what.

Refusals and changes go into the audit where there are users; without users there is nothing to write down.
"""

from __future__ import annotations

from curbstone.access.ack_ids import AckIds
from curbstone.access.audit import Audit
from curbstone.access.callers import ASKING
from curbstone.access.identity import Identity
from curbstone.access.private import PrivateQueues
from curbstone.access.producing import Key, Producing
from curbstone.core.host import Host


class Watch:
    """See the module's docstring. Called on the host's thread."""

    def __init__(self, host: Host, audit: Audit | None = None) -> None:
        self._audit = audit
        self.private = PrivateQueues(host)
        """The queues that connections have for themselves."""
        self.ack_ids = AckIds()
        """What connections hold, by which others may settle it."""
        self.producing: dict[Key, Producing] = {}
        """Which connection publishes as which numbered producer."""
        self.refusals: dict[str, int] = {}
        """How many calls lacked a right, by its name."""

    def refused(self, identity: Identity, right: str, target: str) -> None:
        """Somebody lacked a right."""
        if self._audit is not None:
            self.refusals[right] = self.refusals.get(right, 0) + 1
            peer, protocol = _asking()
            self._audit.refused(right, user=identity.user, peer=peer, protocol=protocol, target=target)

    def did(self, identity: Identity, action: str, target: str) -> None:
        """Somebody changed something that needs `manage` or `admin`."""
        if self._audit is not None:
            peer, protocol = _asking()
            user, credential = identity.user, identity.credential
            self._audit.note(
                action, "ok", user=user, credential=credential, peer=peer, protocol=protocol, target=target
            )


def _asking() -> tuple[str, str]:
    """Return who asks for what is being done, and over which protocol."""
    caller = ASKING.get()
    return (str(caller), caller.protocol) if caller is not None else ("", "")
