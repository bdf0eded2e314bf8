"""A delivered message. Its headers are parsed on first use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic

from curbstone_client.content import (
    BATCH,
    BATCH_SIZE,
    BATCH_TO,
    KEY,
    PREFIX,
    PRIORITY,
    PRIORITY_DEFAULT,
    REPLACE,
    REPLACE_MAX,
    UNIQUE,
    UNIQUE_UNTIL,
)
from curbstone_client.errors import ClientError, Stale, end_of
from curbstone_client.outcome import S
from curbstone_client.wire import Delivery, parse_head

if TYPE_CHECKING:
    from curbstone_client.consuming import Subscription

_SERVERS = frozenset(
    ["subscription", "message-id", "destination", "ack", "content-length", "content-type", "timestamp"]
    + ["redelivered", "x-tries", "x-mature", KEY, PRIORITY, UNIQUE, UNIQUE_UNTIL, REPLACE, REPLACE_MAX]
    + [BATCH, BATCH_SIZE, BATCH_TO]
)
_ACK = b"\nack:"


class BaseMessage(Generic[S]):
    """A delivery of a message. It belongs to its connection, and can be settled once.

    `body` is the body's bytes.
    """

    __slots__ = ("_all", "_head", "_headers", "body", "epoch", "is_settled", "subscription")

    def __init__(self, delivery: Delivery, subscription: Subscription, epoch: int) -> None:
        self._head, self.body = delivery
        self.subscription = subscription
        self.epoch = epoch
        self.is_settled = False
        self._all: dict[str, str] | None = None
        self._headers: dict[str, str] | None = None

    # ------------------------------------------------------------ what it says

    @property
    def raw_headers(self) -> Mapping[str, str]:
        """All headers of the STOMP frame."""
        if self._all is None:
            self._all = parse_head(self._head)
        return self._all

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the publisher, by their original names, without those that the server adds."""
        if self._headers is None:
            raw = self.raw_headers
            self._headers = {name.removeprefix(PREFIX): raw[name] for name in raw if name not in _SERVERS}
        return self._headers

    @property
    def id(self) -> str:
        """The message id. It is the same in every protocol and at each delivery."""
        return self.raw_headers.get("message-id", "")

    @property
    def tries(self) -> int:
        """The number of earlier deliveries; 0 at the first one."""
        return int(self.raw_headers.get("x-tries", "0"))

    @property
    def timestamp(self) -> float:
        """When the message was published, in seconds since 1970."""
        return int(self.raw_headers.get("timestamp", "0")) / 1000

    @property
    def type(self) -> str:
        """The content type; empty if there is none."""
        return self.raw_headers.get("content-type", "")

    @property
    def key(self) -> str:
        """The ordering key; empty if there is none."""
        return self.raw_headers.get(KEY, "")

    @property
    def priority(self) -> int:
        """The priority, from 0 to 9; 4 if it was published without one."""
        text = self.raw_headers.get(PRIORITY, "")
        return min(int(text), 9) if text.isdecimal() else PRIORITY_DEFAULT

    @property
    def unique(self) -> str:
        """The unique name; empty if there is none."""
        return self.raw_headers.get(UNIQUE, "")

    @property
    def replace(self) -> str:
        """The name of a message that replaces waiting ones with the same name; empty if there is none."""
        return self.raw_headers.get(REPLACE, "")

    @property
    def batch(self) -> str:
        """The id of the batch; empty if there is none. The report of a batch has it, too."""
        return self.raw_headers.get(BATCH, "")

    @property
    def destination(self) -> str:
        """The STOMP destination that it was delivered from."""
        return self.raw_headers.get("destination", "")

    @property
    def reply_to(self) -> str | None:
        """The STOMP destination for the reply; None if the sender expects none."""
        return self.raw_headers.get("reply-to")

    @property
    def text(self) -> str:
        """The body as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the value of a JSON body. Raise ValueError if the body is not JSON."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<message {self.id} of {len(self.body)} bytes, tries {self.tries}>"

    # ------------------------------------------------------------ how it ends

    @property
    def is_stale(self) -> bool:
        """Whether the delivery has ended, because it was settled or because its connection was lost."""
        return self.is_settled or self.epoch != self.subscription.consumer.epoch

    def ack_id(self) -> bytes:
        """Return the id of the delivery for an ACK or NACK, and mark it as settled. Raise Stale if it has ended."""
        if self.is_settled or self.epoch != self.subscription.consumer.epoch:
            self.subscription.consumer.stale += 1
            raise Stale(
                "the delivery was settled before" if self.is_settled else "the connection of this delivery was lost"
            )
        head = self._head
        at = head.find(_ACK)
        if at < 0:
            raise ClientError("messages of an event and replies can't be nacked or rejected")
        self.is_settled = True
        end = head.find(b"\n", at + 5)
        return head[at + 5 : end if end >= 0 else None]

    def ack(self) -> S:
        """Ack the message. Raise Stale if the delivery has ended already. A message of an event needs no ack.

        The ack is sent with the next write; wait for the returned outcome to know that it is on disk.
        """
        ended: S = self.subscription.consumer.ack(self)
        return ended

    def nack(self, delay: float | None = None, error: str = "") -> S:
        """Requeue the message. It is redelivered after `delay` seconds, or after the queue's `nack_delay`.

        `error` is the reason that the server keeps with the message. Raise Stale if the delivery has ended already.
        """
        ended: S = self.subscription.consumer.nack(self, delay, error)
        return ended

    def reject(self, error: str = "") -> S:
        """Dead-letter the message; `error` is the reason. Raise Stale if the delivery has ended."""
        ended: S = self.subscription.consumer.reject(self, error)
        return ended

    def give_back(self, error: BaseException) -> S:
        """Settle the delivery like a worker whose handler raised this error. Messages of an event are not settled."""
        if not self.subscription.is_acked:
            return self.ack()
        end = end_of(error, self.tries)
        return self.reject(end.reason) if end.reject else self.nack(end.delay, end.reason)

    def _leave(self, error: BaseException | None) -> None:
        """Settle the delivery at the end of its `with` block, unless the block has done so."""
        if error is None:
            if not self.is_settled:
                self.ack()
        elif not self.is_stale:
            self.give_back(error)
