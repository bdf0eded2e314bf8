"""The queues and topics that a connection sends to, and the messages collected for each in the current read."""

from __future__ import annotations

from weakref import WeakValueDictionary

from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.producer_sequence import SequenceHeaders


class Target:
    """A queue or topic that the connection sends to, and the messages collected for it."""

    __slots__ = ("__weakref__", "destination", "messages", "name", "producer", "receipts", "numbers")

    def __init__(self, destination: Destination, producer: bytes) -> None:
        self.producer = producer
        """The key of a numbered producer, if the messages are one's; else empty."""
        self.numbers: dict[int, SequenceHeaders] = {}
        """For a numbered producer: the numbers in headers, by the message's place in `messages`."""
        self.destination = destination
        self.name: QueueName = destination.queue
        self.messages: list[Message] = []
        self.receipts: list[bytes | None] = []


class Targets:
    """The targets of a connection: one for each queue, by whichever of its names it is sent to.

    With two targets for a queue, the order of its messages would be lost. Plans refer to their targets, so a target is
    freed when the parser has forgotten all heads that led to it.
    """

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[Kind, QueueName, str, bytes], Target] = WeakValueDictionary()

    def get(self, destination: Destination, producer: bytes = b"") -> Target:
        """Return the target of a destination, and of a numbered producer if one is given."""
        key = destination.kind, destination.queue, destination.event, producer
        target = self._held.get(key)
        if target is None:
            target = self._held[key] = Target(destination, producer)
        return target
