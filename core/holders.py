"""Who takes from a queue, and what each of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from curbstone.core.message import Delivery
from curbstone.core.values import LEAVING, ClientInfo, Holder, Lease


class Standing(NamedTuple):
    """How a consumer stands with its engine."""

    window: int
    """How many deliveries it may have unsettled."""
    is_auto: bool
    """Whether its deliveries are settled when they are sent."""
    is_leaving: bool
    """Whether it takes nothing more, but may still settle what it has."""
    is_held: bool
    """Whether it gets nothing for a while, because its client reads nothing."""
    is_full: bool
    """Whether it holds all that its engine lets it hold."""

    @property
    def limit(self) -> int:
        return 0 if self.is_auto else self.window

    @property
    def state(self) -> str:
        if self.is_leaving:
            return LEAVING
        if self.is_held:
            return "held"
        return "full" if self.is_full else "ready"


class Consumer(Protocol):
    """A consumer of any engine, as it is looked at here."""

    @property
    def group(self) -> str:
        """The group it reads for."""

    @property
    def client_info(self) -> ClientInfo:
        """Whose it is."""

    @property
    def unsettled(self) -> Mapping[int, Delivery]:
        """See `core.port.Consumer.unsettled`."""

    @property
    def standing(self) -> Standing:
        """How it stands now."""


def waiting_call(group: str, window: int, client_info: ClientInfo) -> Holder:
    """Return the holder for a call that waits for messages: a consumer that holds nothing."""
    return Holder("consumer", group, window, 0, "ready", 0, 0, client_info)


def holders(
    consumers: Iterable[Consumer], leases: Iterable[Lease], waiting: Iterable[Holder], seq: int = 0
) -> list[Holder]:
    """Return a holder for each consumer, those of calls that wait, and one for all leases of each client in a group.

    A consumer that is leaving is left out if it holds nothing. With a `seq` only those who hold that message are
    returned, each as if it held nothing else.
    """
    if seq:
        having = [consumer for consumer in consumers if seq in consumer.unsettled]
        leases = [lease for lease in leases if lease.delivery.message.seq == seq]
        return [_of_consumer(each, [each.unsettled[seq]]) for each in having] + [_of_leases([each]) for each in leases]
    there = [consumer for consumer in consumers if consumer.unsettled or not consumer.standing.is_leaving]
    together: dict[tuple[str, ClientInfo], list[Lease]] = {}
    for lease in leases:
        together.setdefault((lease.group, lease.client_info), []).append(lease)
    return [
        *(_of_consumer(consumer, consumer.unsettled.values()) for consumer in there),
        *waiting,
        *(_of_leases(each) for each in together.values()),
    ]


def _of_consumer(consumer: Consumer, deliveries: Iterable[Delivery]) -> Holder:
    held, standing = list(deliveries), consumer.standing
    oldest_ms = min((delivery.handed_ms for delivery in held), default=0)
    return Holder(
        *("consumer", consumer.group, standing.limit, len(held), standing.state, 0, oldest_ms), consumer.client_info
    )


def _of_leases(leases: list[Lease]) -> Holder:
    until_ms = min(lease.expires_ms for lease in leases)
    oldest_ms = min(lease.delivery.handed_ms for lease in leases)
    return Holder("leases", leases[0].group, 0, len(leases), "leased", until_ms, oldest_ms, leases[0].client_info)
