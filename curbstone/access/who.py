"""Who takes from a queue: what an adapter says of its client, and how much of that others may see.

The address, the user and the ids of a client are for those who may manage the queue, and for the user itself. All
others who may look at the queue see only the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from curbstone.access.caller import Caller
from curbstone.access.identity import Identity
from curbstone.access.rights import Right
from curbstone.access.users import ANONYMOUS
from curbstone.core.names import QueueName
from curbstone.core.values import Holder, Who

ID_CHARS = 80
"""How much of an id that a client gave is kept."""


def who_of(caller: Caller, identity: Identity, client: str = "", subscription: str = "") -> Who:
    """Return what is kept of a client with a subscription or a lease; see `core.values.Who`."""
    user = identity.user if identity.owner else ""  # without users there are no logins
    return Who(caller.protocol, caller.address, caller.port, user, client[:ID_CHARS], subscription[:ID_CHARS])


def shown(identity: Identity, name: QueueName, holders: Iterable[Holder]) -> list[Holder]:
    """Return the holders of a queue as an identity may see them; see the module's docstring."""
    if identity.on_queue(name) & Right.MANAGE:
        return list(holders)
    user = "" if identity.user == ANONYMOUS else identity.user
    return [each if user and each.who.user == user else each._replace(who=Who(each.who.protocol)) for each in holders]
