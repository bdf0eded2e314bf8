"""The part of AMQP that the engine uses, as Protocols and plain values.

`rabbit.amqp.connection` implements it, and so does the tests' model of a broker. All methods and callbacks are called
on the host's thread. A violation of AMQP closes its channel: then `on_closed` and all calls that wait on the channel
get the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

LOST = 0
NOT_FOUND = 404
LOCKED = 405
REFUSED = 406


class AmqpError(Exception):
    """A channel or connection has ended. `code` is that of AMQP, or LOST."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Properties(NamedTuple):
    """The properties of a message."""

    headers: Mapping[str, object]
    message_id: str | None = None
    content_type: str | None = None
    expiration: str | None = None
    timestamp: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    app_id: str | None = None
    priority: int | None = None


class Arrived(NamedTuple):
    """A message from a delivery or a `get`."""

    tag: int
    redelivered: bool
    exchange: str
    key: str
    properties: Properties
    body: bytes


Settled = Callable[[AmqpError | None], None]
Declared = Callable[[AmqpError | None, int, int], None]
"""(error, count of ready messages, count of consumers)."""
Counted = Callable[[AmqpError | None, int], None]
Got = Callable[[AmqpError | None, Arrived | None], None]
Confirmed = Callable[[int, bool, bool], None]
"""(tag, whether it covers all earlier tags, whether the messages are stored)."""
Returned = Callable[[Properties], None]


class Channel(Protocol):
    """One channel. Its calls are carried out in order."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""

    def confirms(self, on_confirm: Confirmed, on_return: Returned, on_done: Settled) -> None:
        """Turn on confirms for messages published on this channel. The first message has the tag 1."""

    def publish(self, exchange: str, key: str, properties: Properties, body: bytes, *, mandatory: bool) -> None:
        """Publish a durable message. Raise AmqpError if it can't be sent; it then takes no tag."""

    def declare_queue(
        self,
        name: str,
        on_done: Declared,
        *,
        passive: bool = False,
        exclusive: bool = False,
        durable: bool = True,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Declare a queue, or check that it exists."""

    def delete_queue(self, name: str, on_done: Settled) -> None:
        """Delete a queue if it exists."""

    def purge_queue(self, name: str, on_done: Counted) -> None:
        """Remove the ready messages; `on_done` gets how many."""

    def bind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        """Bind a queue to an exchange with a routing key."""

    def unbind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        """Undo `bind_queue`."""

    def declare_exchange(
        self, name: str, kind: str, on_done: Settled, *, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Declare an exchange."""

    def bind_exchange(self, name: str, source: str, key: str, on_done: Settled) -> None:
        """Bind the exchange `name` to the exchange `source` with a routing key."""

    def qos(self, count: int, on_done: Settled) -> None:
        """Set the prefetch of each consumer created from now on."""

    def consume(
        self,
        queue: str,
        tag: str,
        on_message: Callable[[Arrived], None],
        on_done: Settled,
        *,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Create a consumer with this tag."""

    def on_cancelled(self, call: Callable[[str], None]) -> None:
        """Register `call(tag)` for consumers that the broker cancels."""

    def cancel(self, tag: str, on_done: Settled) -> None:
        """End a consumer. Its unacknowledged messages stay unacknowledged."""

    def get(self, queue: str, on_done: Got) -> None:
        """Take one message, which must be acknowledged. `on_done` gets None if there is none."""

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Settle a delivery, or with `multiple` all deliveries up to it."""

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue a delivery, or with `requeue=False` drop it."""

    def close(self, on_done: Callable[[], None]) -> None:
        """Close the channel. Unacknowledged messages are requeued."""


class Connection(Protocol):
    """One connection to one node."""

    @property
    def node(self) -> str:
        """The address of the node."""

    @property
    def version(self) -> str:
        """The version of RabbitMQ on the node."""

    def channel(self, on_open: Callable[[Channel], None], on_closed: Callable[[AmqpError], None]) -> None:
        """Open a channel."""

    def close(self) -> None:
        """Close the connection; `on_lost` is called."""


class Connector(Protocol):
    """Makes connections to the cluster."""

    def connect(
        self,
        name: str,
        on_open: Callable[[Connection], None],
        on_lost: Callable[[str], None],
        on_blocked: Callable[[str], None],
    ) -> None:
        """Connect to the next node. Either `on_open` or `on_lost` is called; after `on_open`, `on_lost` at the end.

        `on_blocked(reason)` is called when the broker stops accepting messages, and with an empty reason when it
        accepts them again.
        """
