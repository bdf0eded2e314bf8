"""The queues and topics that a connection sends to, and the messages collected for each in the current read.

Not in `send.py`, because that is compiled in the compiled build, and compiled objects have no weak references.
"""

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
        """The key of the numbered producer of the messages; empty without one."""
        self.numbers: dict[int, SequenceHeaders] = {}
        """For a numbered producer: the numbers in headers, by the message's place in `messages`."""
        self.destination = destination
        self.name: QueueName = destination.queue
        self.messages: list[Message] = []
        self.receipts: list[bytes | None] = []


class Targets:
    """The targets of a connection: one for each queue, whatever name of the queue the client uses.

    Two targets for a queue would not keep the order of its messages. Plans refer to their targets, so a target is freed
    once the parser has dropped all heads that refer to it.
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
