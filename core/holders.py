"""Who takes from a queue, and what each of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from curbstone.core.message import Delivery
from curbstone.core.values import LEAVING, Holder, Lease, Who


class Consumer(Protocol):
    """A consumer of any engine, as it is looked at here."""

    @property
    def group(self) -> str:
        """The group it reads for."""

    @property
    def who(self) -> Who:
        """Whose it is."""

    @property
    def unsettled(self) -> Mapping[int, Delivery]:
        """See `core.port.Consumer.unsettled`."""

    @property
    def limit(self) -> int:
        """How many deliveries it may hold; 0 if they are settled when they are sent."""

    @property
    def condition(self) -> str:
        """See `Holder.state`."""


def waiting_call(group: str, room: int, who: Who) -> Holder:
    """Return the holder for a call that waits for messages: a consumer that holds nothing."""
    return Holder("consumer", group, room, 0, "ready", 0, 0, who)


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
    there = [consumer for consumer in consumers if consumer.unsettled or consumer.condition != LEAVING]
    together: dict[tuple[str, Who], list[Lease]] = {}
    for lease in leases:
        together.setdefault((lease.group, lease.who), []).append(lease)
    return [
        *(_of_consumer(consumer, consumer.unsettled.values()) for consumer in there),
        *waiting,
        *(_of_leases(each) for each in together.values()),
    ]


def _of_consumer(consumer: Consumer, deliveries: Iterable[Delivery]) -> Holder:
    held = list(deliveries)
    oldest_ms = min((delivery.handed_ms for delivery in held), default=0)
    return Holder(
        *("consumer", consumer.group, consumer.limit, len(held), consumer.condition, 0, oldest_ms), consumer.who
    )


def _of_leases(leases: list[Lease]) -> Holder:
    until_ms = min(lease.expires_ms for lease in leases)
    oldest_ms = min(lease.delivery.handed_ms for lease in leases)
    return Holder("leases", leases[0].group, 0, len(leases), "leased", until_ms, oldest_ms, leases[0].who)
