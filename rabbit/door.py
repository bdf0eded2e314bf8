"""What the engine asks of AMQP, in Protocols and plain values.

`rabbit.connection` has the real thing; the tests have a model of a broker behind the same. Everything is called on the
host's thread, and callbacks come there. A broken rule of AMQP closes the channel it was broken on: all calls that wait
on it then get the error, and so does `on_closed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

LOST = 0
NOT_FOUND = 404
LOCKED = 405
REFUSED = 406


class AmqpError(Exception):
    """A channel or connection has ended; `code` is AMQP's, or LOST."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Properties(NamedTuple):
    """What goes with a body."""

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
    """A message that was delivered or got."""

    tag: int
    redelivered: bool
    exchange: str
    key: str
    properties: Properties
    body: bytes


Settled = Callable[[AmqpError | None], None]
Declared = Callable[[AmqpError | None, int, int], None]
"""(error, messages that are ready, consumers)."""
Counted = Callable[[AmqpError | None, int], None]
Got = Callable[[AmqpError | None, Arrived | None], None]
Confirmed = Callable[[int, bool, bool], None]
"""(tag, whether all before it are meant too, whether they are stored)."""
Returned = Callable[[Properties], None]


class Channel(Protocol):
    """One channel; calls on it are carried out in their order."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""

    def confirms(self, on_confirm: Confirmed, on_return: Returned, on_done: Settled) -> None:
        """Have what is published here confirmed; the first message has the tag 1."""

    def publish(self, exchange: str, key: str, properties: Properties, body: bytes, *, mandatory: bool) -> None:
        """Publish a durable message; raise AmqpError if it can't be sent, and then it has no tag."""

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
        """Make a queue, or look at it."""

    def delete_queue(self, name: str, on_done: Settled) -> None:
        """Delete a queue, if there is one."""

    def purge_queue(self, name: str, on_done: Counted) -> None:
        """Remove what is ready; tells how many."""

    def bind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        """Have what an exchange gets under a key copied to a queue."""

    def unbind_queue(self, name: str, exchange: str, key: str, on_done: Settled) -> None:
        """Undo `bind_queue`."""

    def declare_exchange(
        self, name: str, kind: str, on_done: Settled, *, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Make an exchange."""

    def bind_exchange(self, name: str, source: str, key: str, on_done: Settled) -> None:
        """Have what `source` gets under a key go on to the exchange `name`."""

    def qos(self, count: int, on_done: Settled) -> None:
        """Let each consumer that is made from now on have so many unacknowledged."""

    def consume(
        self,
        queue: str,
        tag: str,
        on_message: Callable[[Arrived], None],
        on_done: Settled,
        *,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Make a consumer called `tag`."""

    def on_cancelled(self, call: Callable[[str], None]) -> None:
        """Have `call(tag)` called if the broker ends a consumer."""

    def cancel(self, tag: str, on_done: Settled) -> None:
        """End a consumer; what it has unacknowledged stays so."""

    def get(self, queue: str, on_done: Got) -> None:
        """Take one message, to be acknowledged; None if there is none."""

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Settle a delivery, or all up to it."""

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Give a delivery back."""

    def close(self, on_done: Callable[[], None]) -> None:
        """End it; what is unacknowledged goes back."""


class Connection(Protocol):
    """One connection to one node."""

    @property
    def node(self) -> str:
        """The address of the node."""

    @property
    def version(self) -> str:
        """The version of RabbitMQ there."""

    def channel(self, on_open: Callable[[Channel], None], on_closed: Callable[[AmqpError], None]) -> None:
        """Open a channel."""

    def close(self) -> None:
        """End it; `on_lost` is called."""


class Door(Protocol):
    """The way to the cluster."""

    def connect(
        self,
        name: str,
        on_open: Callable[[Connection], None],
        on_lost: Callable[[str], None],
        on_blocked: Callable[[str], None],
    ) -> None:
        """Connect to the next node: one of `on_open` or `on_lost`, and after `on_open` one `on_lost` at the end.

        `on_blocked(reason)`: the broker takes no messages; with an empty reason it does again.
        """
