"""A message as it was delivered. What its head says is read when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from curbstone_client.content import KEY, PREFIX
from curbstone_client.errors import ClientError, Stale
from curbstone_client.wire import Delivery, parse_head

if TYPE_CHECKING:
    from curbstone_client.consuming import Subscription

_SERVERS = frozenset(
    ["subscription", "message-id", "destination", "ack", "content-length", "content-type", "timestamp"]
    + ["redelivered", "x-tries", "x-mature", KEY]
)
_ACK = b"\nack:"


class BaseMessage:
    """One delivery of a message. It belongs to the connection it came over, and can be settled once."""

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
        """All headers of the frame, as STOMP has them."""
        if self._all is None:
            self._all = parse_head(self._head)
        return self._all

    @property
    def headers(self) -> Mapping[str, str]:
        """What the application gave as headers, and those of other STOMP programs by their own names."""
        if self._headers is None:
            raw = self.raw_headers
            self._headers = {name.removeprefix(PREFIX): raw[name] for name in raw if name not in _SERVERS}
        return self._headers

    @property
    def id(self) -> str:
        """The server's id: the same in every protocol, and at each delivery."""
        return self.raw_headers.get("message-id", "")

    @property
    def tries(self) -> int:
        """How often it was handed out before; 0 at the first delivery."""
        return int(self.raw_headers.get("x-tries", "0"))

    @property
    def timestamp(self) -> float:
        """When it was published, in seconds since 1970."""
        return int(self.raw_headers.get("timestamp", "0")) / 1000

    @property
    def type(self) -> str:
        """Its content type; empty where it has none."""
        return self.raw_headers.get("content-type", "")

    @property
    def key(self) -> str:
        """Its ordering key; empty where it has none."""
        return self.raw_headers.get(KEY, "")

    @property
    def destination(self) -> str:
        """Where it was taken from, as STOMP calls it."""
        return self.raw_headers.get("destination", "")

    @property
    def reply_to(self) -> str | None:
        """Where its sender waits for an answer, as STOMP calls it."""
        return self.raw_headers.get("reply-to")

    @property
    def text(self) -> str:
        """The body as text; raise UnicodeDecodeError if it is none."""
        return self.body.decode()

    def json(self) -> Any:
        """Return what the body says as JSON; raise ValueError if it is none."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<message {self.id} of {len(self.body)} bytes, tries {self.tries}>"

    # ------------------------------------------------------------ how it ends

    @property
    def is_stale(self) -> bool:
        """Whether its delivery has ended: it was settled, or its connection is gone."""
        return self.is_settled or self.epoch != self.subscription.consumer.epoch

    def ack_id(self) -> bytes:
        """Return what names the delivery, and count it as settled; raise Stale if it has ended."""
        if self.is_settled or self.epoch != self.subscription.consumer.epoch:
            self.subscription.consumer.stale += 1
            raise Stale(
                "the delivery was settled before" if self.is_settled else "the connection of this delivery is gone"
            )
        head = self._head
        at = head.find(_ACK)
        if at < 0:
            raise ClientError("this subscription needs no acks")
        self.is_settled = True
        end = head.find(b"\n", at + 5)
        return head[at + 5 : end if end >= 0 else None]
