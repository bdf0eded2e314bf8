"""Where a connection sends to, and what was collected for each of these places in the current read."""

from __future__ import annotations

from weakref import WeakValueDictionary

from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.numbers import Wish


class Target:
    """A queue or topic that is sent to, and the messages for it of the current read."""

    __slots__ = ("__weakref__", "destination", "messages", "name", "producer", "receipts", "wishes")

    def __init__(self, destination: Destination, producer: bytes) -> None:
        self.producer = producer
        """If its messages are a numbered producer's: the key of that producer."""
        self.wishes: dict[int, Wish] = {}
        """Likewise: what the heads say of the messages' numbers, by place in `messages`."""
        self.destination = destination
        self.name: QueueName = destination.queue
        self.messages: list[Message] = []
        self.receipts: list[bytes | None] = []


class Targets:
    """The targets of a connection: one for each queue, whatever name it is sent to by.

    With two, the order of its messages would be lost. Plans hold their targets; so a target goes when the parser has
    forgotten all heads that led to it.
    """

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[Kind, QueueName, str, bytes], Target] = WeakValueDictionary()

    def get(self, destination: Destination, producer: bytes = b"") -> Target:
        """Return the target of a destination, and of a numbered producer if there is one."""
        key = destination.kind, destination.queue, destination.event, producer
        target = self._held.get(key)
        if target is None:
            target = self._held[key] = Target(destination, producer)
        return target
