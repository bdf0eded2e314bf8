"""What the objects in RabbitMQ are called, and what they are made with. Pure."""

from __future__ import annotations

from typing import NamedTuple

from curbstone.core.errors import BadRequest
from curbstone.core.names import QueueName
from curbstone.core.options import QueueOptions
from curbstone.core.values import UNNAMED

NAME_BYTES_MAX = 255
DELIVERY_LIMIT = 1_000_000
"""Returned messages are served first only if there is a limit; without one they go to the tail."""
CONSUMER_TIMEOUT_MS = 8 * 86_400_000
"""More than the longest lease. RabbitMQ heeds it on a queue from 3.12 on."""
LADDER_STEPS = 24
LADDER_STEP_MS = 64
LOST_MAX = 1000
TRANSACTIONS_BYTES_MAX = 256 * 1024 * 1024
REGISTRY_BYTES_MAX = 64 * 1024 * 1024
REGISTRY_SEGMENT_BYTES = 4 * 1024 * 1024


class Names(NamedTuple):
    """The names under one prefix."""

    prefix: str

    def queue(self, name: QueueName, group: str = UNNAMED) -> str:
        """Return the name of a queue, or that of one of its groups; raise BadRequest if it is too long."""
        text = f"{self.prefix}{name.project}/{name.queue}" + (f"#{group}" if group else "")
        if len(text) > NAME_BYTES_MAX:
            raise BadRequest(f"on a cluster project, queue and group have at most {NAME_BYTES_MAX} bytes together")
        return text

    def of_queue(self, text: str) -> str:
        """Return project/queue of the name of a queue, without its group."""
        return text.removeprefix(self.prefix).partition("#")[0]

    @property
    def registry(self) -> str:
        """The stream that all changes of queues are in."""
        return f"{self.prefix}registry"

    @property
    def events(self) -> str:
        """The exchange of events."""
        return f"{self.prefix}events"

    @property
    def dead(self) -> str:
        """The exchange of what the broker lets expire."""
        return f"{self.prefix}dead"

    @property
    def lost(self) -> str:
        """The exchange and the queue of what nobody gets."""
        return f"{self.prefix}lost"

    @property
    def due(self) -> str:
        """The exchange at the end of the ladder."""
        return f"{self.prefix}end"

    def step(self, step: int) -> str:
        """The exchange and the queue of one step of the ladder; below the last one is `due`."""
        return f"{self.prefix}d{step}" if step >= 0 else self.due

    def gateway(self, number: int) -> str:
        """The queue that gateway `number` holds, and hears the others by."""
        return f"{self.prefix}gw.{number}"

    @property
    def transactions(self) -> str:
        """The queue of transactions that are committed and not carried out."""
        return f"{self.prefix}tx"

    @property
    def gateways(self) -> str:
        """The exchange that all gateways hear."""
        return f"{self.prefix}gws"


def queue_arguments(names: Names, text: str, options: QueueOptions) -> dict[str, object]:
    """Return what a queue, or a group of it, is made with.

    One that drops its oldest messages has no dead letters of the broker: what it drops would be among them.
    """
    common: dict[str, object] = {
        "x-queue-type": "quorum",
        "x-max-length-bytes": options.cap,
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-consumer-timeout": CONSUMER_TIMEOUT_MS,
    }
    if options.drops_oldest:
        return {**common, "x-overflow": "drop-head"}
    return {
        **common,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": names.dead,
        "x-dead-letter-routing-key": text,
        "x-dead-letter-strategy": "at-least-once",
    }


def private_arguments(names: Names, options: QueueOptions, gateway: int) -> dict[str, object]:
    """Return what a client's own queue is made with: what it has no room for goes to its gateway, which ends it."""
    return {
        "x-max-length-bytes": options.cap,
        "x-overflow": "drop-head",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": names.gateway(gateway),
    }


def step_arguments(names: Names, step: int) -> dict[str, object]:
    """Return what a step of the ladder is made with."""
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": LADDER_STEP_MS << step,
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": names.step(step - 1),
        "x-dead-letter-strategy": "at-least-once",
    }


def registry_arguments() -> dict[str, object]:
    """Return what the registry is made with."""
    return {
        "x-queue-type": "stream",
        "x-max-length-bytes": REGISTRY_BYTES_MAX,
        "x-stream-max-segment-size-bytes": REGISTRY_SEGMENT_BYTES,
    }


def lost_arguments() -> dict[str, object]:
    """Return what the queue of what nobody gets is made with."""
    return {
        "x-queue-type": "quorum",
        "x-max-length": LOST_MAX,
        "x-overflow": "drop-head",
        "x-delivery-limit": 1_000_000,
    }


def transactions_arguments() -> dict[str, object]:
    """Return what the queue of committed transactions is made with: one gateway at a time takes from it, in order."""
    return {
        "x-queue-type": "quorum",
        "x-single-active-consumer": True,
        "x-max-length-bytes": TRANSACTIONS_BYTES_MAX,
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-consumer-timeout": CONSUMER_TIMEOUT_MS,
    }
