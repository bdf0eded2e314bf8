"""Consuming: subscriptions that survive reconnects, and settling. Without a socket.

A delivery belongs to its connection. When that is lost, the server redelivers the message to another consumer. So
messages that were not handed out to the application yet are dropped here, and settling one that was handed out raises
`Stale` and sends nothing. The acks of one flush share one receipt per subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from curbstone_client.content import milliseconds
from curbstone_client.errors import ClientError, Closed, NotSupported, Unknown
from curbstone_client.link import Link, error_of
from curbstone_client.outcome import Outcome, S
from curbstone_client.wire import Delivery, frame, parse_head

if TYPE_CHECKING:
    from curbstone_client.message import BaseMessage

PREFETCH = 100
_REASON_MAX = 1000
_NEVER = float("inf")


class Subscription:
    """A subscription to one destination. It is renewed on each new connection."""

    def __init__(
        self,
        consumer: Consumer[Any],
        key: bytes,
        destination: str,
        prefetch: int,
        headers: dict[str, str],
        is_acked: bool,
    ) -> None:
        self.consumer = consumer
        self.key = key
        self.destination = destination
        self.prefetch = prefetch
        self.inbox: deque[Any] = deque()
        """Messages of the shell that were not handed out to the application yet."""
        self.on_arrival: Callable[[], None] | None = None
        """Set by the shell. Called once, when a message arrives or the subscription ends; then it is None again."""
        self.error: ClientError | None = None
        """Why the subscription has ended; None while it lasts."""
        self.established = Outcome()
        """Ends once the server has the subscription for the first time. Later messages to an event are delivered."""
        self.is_acked = is_acked
        self.acks: list[bytes] = []
        self.settled: Any = None
        self._headers = headers

    def request(self) -> bytes:
        """Return the SUBSCRIBE frame."""
        headers = {
            "id": self.key.decode(),
            "destination": self.destination,
            "ack": "client-individual" if self.is_acked else "auto",
            "prefetch-count": str(self.prefetch),
            "receipt": f"s.{self.key.decode()}",
        }
        return frame("SUBSCRIBE", headers | self._headers)

    def arrived(self) -> None:
        """Call `on_arrival`, once."""
        on_arrival, self.on_arrival = self.on_arrival, None
        if on_arrival is not None:
            on_arrival()

    def end(self, error: ClientError) -> None:
        """End the subscription. Only the first error is kept."""
        self.error = self.error or error
        self.established.finish(error)
        self.arrived()


class Consumer(Generic[S]):
    """The subscriptions of one client. Not thread-safe: the shell for threads calls it under a lock."""

    def __init__(
        self,
        link: Link,
        make: Callable[[Delivery, Subscription, int], Any],
        outcome: Callable[[], S],
        *,
        owner: Any = None,
    ) -> None:
        """`make` and `outcome` create the messages and outcomes of the shell."""
        self._link = link
        self._make = make
        self._outcome = outcome
        self.owner = owner
        """The client of the shell."""
        self._subscriptions: dict[bytes, Subscription] = {}
        self._prefixes: dict[bytes, Subscription] = {}
        self._waiting: dict[bytes, Outcome] = {}
        self._keys = 0
        self._receipts = 0
        self._with_acks: list[Subscription] = []
        self.on_lost: Callable[[], None] | None = None
        """Set by the shell. Called when the connection is lost, which ends all its deliveries."""
        self.epoch = 0
        """Changes with each connection and each loss. A delivery of another epoch is stale."""
        self.delivered_count = self.stale = 0

    # ------------------------------------------------------------ subscribing

    def subscribe(
        self, destination: str, prefetch: int, headers: dict[str, str] | None = None, *, acked: bool = True
    ) -> Subscription:
        """Subscribe on this connection and on all later ones."""
        self._keys += 1
        key = b"%d" % self._keys
        subscription = Subscription(self, key, destination, prefetch, headers or {}, acked)
        self._subscriptions[key] = subscription
        if self._link.is_up:
            self._link.write(subscription.request())
        else:
            self._link.want()
        return subscription

    def widen(self, subscription: Subscription, prefetch: int) -> None:
        """Change the prefetch of a subscription. Raise NotSupported if the server can't change it."""
        if self._link.is_up and "window" not in self._link.features:
            raise NotSupported("this server can't change the window of a subscription")
        subscription.prefetch = prefetch
        if self._link.is_up:
            self._link.write(subscription.request())

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription.

        Messages that were not handed out return to the queue at once. Others can still be settled.
        """
        if self._subscriptions.pop(subscription.key, None) is None:
            return
        self._prefixes = {prefix: each for prefix, each in self._prefixes.items() if each is not subscription}
        if self._link.is_up:
            self._link.write(frame("UNSUBSCRIBE", {"id": subscription.key.decode()}))
            unused, subscription.inbox = list(subscription.inbox), deque()
            if subscription.is_acked:
                for message in unused:
                    if not message.is_stale:
                        self._link.write(frame("NACK", {"id": message.ack_id().decode(), "x-delta-t": "0"}))
        subscription.inbox.clear()
        subscription.end(Closed("the subscription was closed"))

    # ------------------------------------------------------------ settling

    def ack(self, message: BaseMessage[Any]) -> S:
        """Ack a message, together with others of this flush. Raise Stale. A message of an event needs no ack."""
        subscription = message.subscription
        if not subscription.is_acked:
            return self._nothing_to_end()
        acks = subscription.acks
        acks.append(message.ack_id())
        settled: S | None = subscription.settled
        if settled is None:
            settled = subscription.settled = self._outcome()
            self._with_acks.append(subscription)
            self._link.changed()
        return settled

    def nack(self, message: BaseMessage[Any], delay: float | None, error: str) -> S:
        """Requeue a message, to be redelivered after `delay` seconds or the queue's own delay. Raise Stale."""
        headers = {} if delay is None else {"x-delta-t": str(milliseconds(delay, "delay"))}
        return self._nack(message, headers, error)

    def reject(self, message: BaseMessage[Any], error: str) -> S:
        """Dead-letter a message. Raise Stale."""
        return self._nack(message, {"requeue": "false"}, error)

    def _nack(self, message: BaseMessage[Any], headers: dict[str, str], error: str) -> S:
        if error:
            headers["error"] = error[:_REASON_MAX].replace("\0", "")
        headers["id"] = message.ack_id().decode()
        settled = self._outcome()
        headers["receipt"] = self._receipt(settled)
        self._link.write(frame("NACK", headers))
        return settled

    def commit(self, sends: Sequence[tuple[dict[str, str], bytes]], messages: Iterable[BaseMessage[Any]]) -> S:
        """Send messages and ack others in one transaction. `sends` are the headers and bodies of SENDs.

        Raise Stale if one of the deliveries has ended, and Unknown if there is no connection; nothing is sent then.
        """
        if not self._link.is_up:
            raise Unknown("not connected: the transaction was not sent")
        settling = list(messages)
        acks = [message.ack_id().decode() for message in settling]
        settled = self._outcome()
        receipt = self._receipt(settled)
        name = f"t{receipt}"
        parts = [frame("BEGIN", {"transaction": name})]
        parts += [frame("SEND", headers | {"transaction": name}, body) for headers, body in sends]
        parts += [frame("ACK", {"id": ack_id, "transaction": name}) for ack_id in acks]
        parts.append(frame("COMMIT", {"transaction": name, "receipt": receipt}))
        self._link.write(b"".join(parts))
        settled.on_done(partial(_not_settled, settled, settling))
        return settled

    def send(self, headers: dict[str, str], body: bytes) -> S:
        """Send a request or a reply over this connection. It is not sent again on another connection."""
        settled = self._outcome()
        if not self._link.is_up:
            settled.finish(Unknown("not connected"))
            return settled
        self._link.write(frame("SEND", headers | {"receipt": self._receipt(settled)}, body))
        return settled

    def settled_all(self) -> list[Outcome]:
        """Return the pending outcomes, including those of acks that are not sent yet."""
        gathered = [each.settled for each in self._with_acks if each.settled is not None]
        return [*self._waiting.values(), *gathered]

    def close(self) -> None:
        """End all outcomes as `Unknown`, and all subscriptions as `Closed`."""
        self._end_waiting(Unknown("the client was closed before the reply arrived"))
        self._end_subscriptions(Closed("the client was closed"))

    # ------------------------------------------------------------ see `link.Role`

    def up(self) -> None:
        self.epoch += 1
        for subscription in self._subscriptions.values():
            self._link.write(subscription.request())

    def down(self) -> None:
        self.epoch += 1
        for subscription in self._subscriptions.values():
            subscription.inbox.clear()
        for subscription in self._with_acks:
            settled, subscription.settled, subscription.acks = subscription.settled, None, []
            if settled is not None:
                settled.finish(Unknown("the connection was lost before the ack was on disk"))
        self._with_acks.clear()
        self._end_waiting(Unknown("the connection was lost before the reply arrived"))
        if self.on_lost is not None:
            self.on_lost()

    def unreachable(self, error: ClientError) -> None:
        self._end_subscriptions(error)

    def collect(self) -> None:
        if not self._with_acks:
            return
        opened, self._with_acks = self._with_acks, []
        for subscription in opened:
            settled, subscription.settled = subscription.settled, None
            acks, subscription.acks = subscription.acks, []
            if settled is not None and acks:
                receipt = self._receipt(settled).encode()
                ids = b"\n\n\0ACK\nid:".join(acks)
                self._link.output.append(b"ACK\nid:%b\nreceipt:%b\n\n\0" % (ids, receipt))

    def receipts(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            receipt, _, more = piece.partition(b"\n")
            settled = self._waiting.pop(receipt, None)
            if settled is None:
                if (subscription := self._subscriptions.get(receipt[2:])) is not None:
                    subscription.established.finish()
            else:
                headers = parse_head(more) if b"x-error-code:" in more else None
                settled.finish(error_of(headers, headers.get("x-error", "")) if headers is not None else None)

    def delivered(self, deliveries: list[Delivery]) -> None:
        make = self._make
        epoch = self.epoch
        prefixes = self._prefixes
        self.delivered_count += len(deliveries)
        woken: Subscription | None = None
        for delivery in deliveries:
            head = delivery[0]
            # Curbstone writes the header `subscription` first, so its line is looked up before the head is parsed.
            line = head[: head.find(b"\n")]
            subscription = prefixes.get(line)
            if subscription is None:
                subscription = self._named(head, line)
                if subscription is None:
                    self._give_back(head)
                    continue
            subscription.inbox.append(make(delivery, subscription, epoch))
            if subscription is not woken:
                if woken is not None:
                    woken.arrived()
                woken = subscription
        if woken is not None:
            woken.arrived()

    def failed(self, receipt: bytes | None, error: ClientError) -> None:
        if receipt is None:
            return
        if receipt.startswith(b"s."):
            subscription = self._subscriptions.pop(receipt[2:], None)
            if subscription is not None:
                subscription.end(error)
        elif settled := self._waiting.pop(receipt, None):
            settled.finish(error)

    def tick(self, now: float) -> float:
        return _NEVER

    # ------------------------------------------------------------ inside

    def _named(self, head: bytes, line: bytes) -> Subscription | None:
        """Return the subscription of a message, or None if it has ended. Cache `line` if it has the name."""
        key = parse_head(head).get("subscription", "").encode()
        subscription = self._subscriptions.get(key)
        if subscription is not None and line == b"subscription:" + key:
            self._prefixes[line] = subscription
        return subscription

    def _give_back(self, head: bytes) -> None:
        """Requeue a message of a subscription that has ended."""
        ack_id = parse_head(head).get("ack")
        if ack_id is not None:
            self._link.write(frame("NACK", {"id": ack_id, "x-delta-t": "0"}))

    def _receipt(self, settled: Outcome) -> str:
        self._receipts += 1
        receipt = f"r.{self._receipts}"
        self._waiting[receipt.encode()] = settled
        return receipt

    def _nothing_to_end(self) -> S:
        outcome = self._outcome()
        outcome.finish()
        return outcome

    def _end_subscriptions(self, error: ClientError) -> None:
        subscriptions, self._subscriptions = self._subscriptions, {}
        self._prefixes = {}
        for subscription in subscriptions.values():
            subscription.inbox.clear()
            subscription.end(error)

    def _end_waiting(self, error: ClientError) -> None:
        waiting, self._waiting = self._waiting, {}
        for outcome in waiting.values():
            outcome.finish(error)


def _not_settled(settled: Outcome, messages: Iterable[BaseMessage[Any]]) -> None:
    """Allow the messages of a refused transaction to be settled again, because none of them was acked."""
    if settled.error is not None and not isinstance(settled.error, Unknown):
        for message in messages:
            message.is_settled = False
