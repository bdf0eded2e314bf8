"""SUBSCRIBE and UNSUBSCRIBE: creates, finds and ends the subscriptions of one connection."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from curbstone.access.ack_ids import Held
from curbstone.access.caller import client_info_of
from curbstone.access.rights import Right
from curbstone.core.errors import CurbstoneError, NoSuchQueue
from curbstone.core.names import QueueName, private_name
from curbstone.stomp import arguments, durable, extensions, frames, header_values, temp_queues
from curbstone.stomp.codec import V10, Head
from curbstone.stomp.destinations import Destination, Kind
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.session_state import SessionState
from curbstone.stomp.subscription import ACK_MODES, AUTO, CountSubscription, Subscription
from curbstone.stomp.unsupported import HEADERS, check_headers

if TYPE_CHECKING:
    from curbstone.core.port import Queue


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The options in the headers of a SUBSCRIBE."""

    mode: str
    window: int
    weight: int
    group: str
    selector: str = ""
    """The filter of a subscription to a topic; empty if there is none."""


class Subscriptions:
    """The subscriptions of one connection."""

    def __init__(self, connection: SessionState) -> None:
        self._connection = connection
        self._named: dict[str, Subscription | CountSubscription] = {}
        self._waiting: dict[QueueName, Subscription] = {}
        """Subscriptions to temporary queues that were created for a `reply-to`."""
        self._next_index = 1
        self.by_handle: dict[bytes, Subscription] = {}
        """All subscriptions with deliveries to settle, including unsubscribed ones, oldest first."""

    def subscribe(self, head: Head, receipt: bytes | None) -> None:
        """Carry out a SUBSCRIBE, and send its RECEIPT; raise ProtocolError or an error of the engine.

        The RECEIPT is sent once the subscription gets all later messages; for a durable subscription, when its queue's
        binding is on disk.
        """
        connection = self._connection
        text = header_values.required(head, "destination")
        key, lines = self._identity(head, text)
        if key in self._named:
            if extensions.WINDOW in connection.extensions:
                self._change_window(self._named[key], text, head)
                connection.receipt(receipt)
                return
            raise ProtocolError(f"subscription [{key[:80]}] already exists", head.lines.get("id", ""))
        self.count(1)
        destination = connection.destination(text)
        if not HEADERS.isdisjoint(head.headers):
            check_headers(head, destination.shown_kind)
        options = self._options(head)
        if destination.kind is Kind.REPLY:
            raise ProtocolError(
                "a reply queue is for SEND; subscribe to /temp-queue/{name} to receive replies",
                head.lines["destination"],
            )
        if destination.private and destination.kind is Kind.QUEUE:
            self._end_waiting(destination.queue)
        waiting_in = None if durable.HEADERS.isdisjoint(head.headers) else self._durable(head, destination)
        if waiting_in is not None:
            destination = replace(destination, queue=waiting_in, private=False)
        if not arguments.HEADERS.isdisjoint(head.headers):
            arguments.apply(connection, head, destination)
        index = self._index()
        if destination.kind is Kind.COUNT:
            name = destination.queue
            queue = self._queue(destination, name, Right.PEEK)
            self._named[key] = CountSubscription(connection, index, lines, queue, destination)
        else:
            subscription = Subscription(connection, index, key, options.mode, destination, lines)
            self._named[key] = self._consume(subscription, options)
            if waiting_in is not None:
                # Clients expect the RECEIPT before the first MESSAGE.
                subscription.consumer.hold()
                answered = self._answering(receipt, subscription)
                connection.access.bind(destination.event, waiting_in, answered, options.selector)
                return
            subscription.consumer.when_open(partial(self._opened, receipt))
            return
        connection.receipt(receipt)

    def _opened(self, receipt: bytes | None) -> None:
        if not self._connection.lost:
            self._connection.receipt(receipt)

    def _durable(self, head: Head, destination: Destination) -> QueueName | None:
        """Return the queue of a durable subscription, or None; raise ProtocolError if it is bound to another topic."""
        connection = self._connection
        name = durable.queue_of(head, destination, connection.client_id, connection.access.home)
        if name is None or head.headers.get(durable.QUEUE):
            return name
        earlier = durable.earlier_name(head, connection.client_id, connection.access.home)
        if earlier is not None and destination.event in self._bound_to(earlier):
            return earlier
        bound = self._bound_to(name)
        if bound and destination.event not in bound:
            others = ", ".join(sorted(bound))[:200]
            raise ProtocolError(
                f"the durable subscription {name} belongs to the topic {others}", head.lines["destination"]
            )
        return name

    def _bound_to(self, name: QueueName) -> Collection[str]:
        try:
            return self._connection.access.bindings(name)
        except NoSuchQueue:
            return ()

    def _answering(
        self, receipt: bytes | None, held: Subscription | None = None
    ) -> Callable[[CurbstoneError | bool | None], None]:
        """Return a callback that sends a frame's RECEIPT and resumes `held`. The connection waits for it to end."""
        connection = self._connection
        connection.started(1)

        def on_done(outcome: CurbstoneError | bool | None) -> None:
            if isinstance(outcome, CurbstoneError):
                connection.fail(outcome, receipt)
            elif not connection.lost:
                connection.receipt(receipt)
                if held is not None and not connection.is_paused:
                    held.consumer.resume()
            connection.confirmed(1)

        return on_done

    def _change_window(self, named: Subscription | CountSubscription, text: str, head: Head) -> None:
        """Set a subscription's window to the one in a SUBSCRIBE with an id in use."""
        destination = self._connection.destination(text)
        if not isinstance(named, Subscription) or not named.destination.is_same(destination):
            raise ProtocolError("the subscription with this id has another destination", head.lines["destination"])
        named.consumer.resize(self._options(head).window)

    def wait_for_reply(self, text: str, queue: QueueName) -> None:
        """Subscribe to a temporary queue that a `reply-to` named, unless the client has subscribed to it."""
        if queue in self._connection.private:
            return
        self.count(1)
        shown = frames.escape(text, self._connection.version)
        lines = f"subscription:{shown}\ndestination:{shown}\n"
        destination = Destination(Kind.QUEUE, queue, private=True)
        subscription = Subscription(self._connection, self._index(), text, AUTO, destination, lines)
        self._consume(subscription, SubscribeOptions(AUTO, self._connection.limits.window, 1, ""))
        self._waiting[queue] = subscription

    def _end_waiting(self, queue: QueueName) -> None:
        """End the subscription created for a `reply-to`: the client now subscribes to the temporary queue."""
        waiting = self._waiting.pop(queue, None)
        if waiting is not None:
            waiting.active = False
            self.drop_drained(waiting)

    def unsubscribe(self, head: Head, receipt: bytes | None) -> None:
        """Carry out an UNSUBSCRIBE, and send its RECEIPT; raise ProtocolError.

        Unsettled deliveries stay with the connection and can still be settled. The queue of a durable subscription
        stays, unless the frame has the headers of a durable subscription: then the queue is deleted with its messages.
        These headers can also name one that this connection has not subscribed to.
        """
        connection = self._connection
        headers = head.headers
        if "id" in headers or durable.is_named(head):
            key = headers.get("id")
        elif self._connection.version == V10:
            key = "destination " + header_values.required(head, "destination")
        else:
            key = header_values.required(head, "id")
        subscription = None if key is None else self._named.pop(key, None)
        if key is None or subscription is None:
            if durable.is_wanted(head):
                self._delete_durable(self._durable_elsewhere(head), receipt)
                return
            raise ProtocolError(f"no subscription [{(key or '')[:80]}] found", head.lines.get("id", ""))
        if isinstance(subscription, CountSubscription):
            subscription.close()
            connection.receipt(receipt)
            return
        subscription.active = False
        subscription.consumer.pause()
        destination = subscription.destination
        name = subscription.queue.name
        if destination.kind is Kind.TOPIC and not destination.private and durable.is_wanted(head):
            self._named[key] = subscription
            self._delete_durable(name, receipt)
            return
        if destination.kind is Kind.TOPIC and destination.private:
            connection.access.unlisten(destination.event, name, destination.project)
        self.drop_drained(subscription)
        connection.receipt(receipt)

    def _durable_elsewhere(self, head: Head) -> QueueName:
        """Return the queue of a durable subscription of another connection; raise ProtocolError."""
        connection = self._connection
        client_id, home = connection.client_id, connection.access.home
        event = ""
        if not client_id and not durable.is_named(head):
            header_values.required(head, "id")
            event = connection.destination(header_values.required(head, "destination")).event
        earlier = durable.earlier_name(head, client_id, home)
        if earlier is not None and event in self._bound_to(earlier):
            return earlier
        name = durable.name_of(head, event, client_id, home)
        if not self._bound_to(name):
            raise ProtocolError(f"no durable subscription [{name}] found", head.lines.get("id", ""))
        return name

    def _delete_durable(self, name: QueueName, receipt: bytes | None) -> None:
        """End the connection's subscriptions to the queue of a durable subscription, and delete the queue."""
        for key, subscription in list(self._named.items()):
            if isinstance(subscription, Subscription) and subscription.queue.name == name:
                del self._named[key]
                self.by_handle.pop(subscription.handle.encode(), None)
                subscription.consumer.close()
        self._connection.access.delete(name, self._answering(receipt))

    def active(self, key: str) -> Subscription | None:
        """Return the subscription with that id, or one that was unsubscribed but still has deliveries to settle."""
        found = self._named.get(key)
        if isinstance(found, Subscription):
            return found
        return next((s for s in self.by_handle.values() if s.key == key), None)

    def named(self, ack_id: bytes) -> tuple[Subscription, int] | None:
        """Return the delivery that an `ack` header of this connection names; None if it is not unsettled."""
        try:
            handle, seq_text, tries = ack_id.split(b".")
            subscription = self.by_handle[handle]
            seq = int(seq_text)
            if subscription.consumer.unsettled[seq].tries == int(tries):
                return subscription, seq
        except (ValueError, KeyError):
            pass
        return None

    @property
    def owner(self) -> str:
        return self._connection.access.identity.owner

    def held(self, ack_id: str) -> Held | None:
        found = self.named(ack_id.encode("utf-8", "replace"))
        if found is None or found[0].queue.name.is_private:
            return None
        subscription, seq = found
        return Held(subscription.queue, subscription.consumer, seq)

    def ended(self, ack_id: str) -> None:
        subscription = self.by_handle.get(ack_id.partition(".")[0].encode())
        if subscription is not None:
            self.drop_drained(subscription)

    def drop_drained(self, subscription: Subscription) -> None:
        """Close a subscription if it was unsubscribed and has nothing left to settle."""
        if subscription.drained:
            self.by_handle.pop(subscription.handle.encode(), None)
            subscription.consumer.close()
            # In the other modes acks may not be on disk yet, so the queue is deleted with the connection.
            destination = subscription.destination
            if destination.kind is Kind.TOPIC and destination.private and subscription.mode == AUTO:
                self._connection.private.discard(subscription.queue.name)
                self._connection.access.drop_private([subscription.queue.name])

    def pause(self) -> None:
        """Pause all deliveries: the socket is full."""
        for subscription in self.by_handle.values():
            subscription.consumer.hold()

    def resume(self) -> None:
        """Resume deliveries after `pause`."""
        for subscription in self.by_handle.values():
            subscription.consumer.resume()
        for named in self._named.values():
            if isinstance(named, CountSubscription):
                named.changed()

    def close(self) -> None:
        """End all subscriptions; unsettled deliveries are requeued."""
        subscriptions, self.by_handle = self.by_handle, {}
        named, self._named = self._named, {}
        for count in named.values():
            if isinstance(count, CountSubscription):
                count.close()
        for subscription in subscriptions.values():
            subscription.consumer.close()

    def delete_private(self) -> None:
        """Delete the private queues. Called last, when no commit of the connection is pending."""
        names = list(self._connection.private)
        self._connection.private.clear()
        self._connection.access.drop_private(names)

    def count(self, more: int = 0) -> None:
        """Report the number of subscriptions, with `more` new ones; raise ProtocolError or TooMany."""
        most = self._connection.limits.subscriptions_max
        found = max(len(self.by_handle), len(self._named)) + more
        if more and found > most:
            raise ProtocolError(f"a connection has at most {most} subscriptions")
        if self._connection.open_connection is not None:
            self._connection.open_connection.set_subscriptions(found)

    def _index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def _identity(self, head: Head, text: str) -> tuple[str, str]:
        """Return the subscription's key, and the lines that all its MESSAGEs have, as encoded by the client."""
        destination = f"destination:{header_values.as_written(head, 'destination')}\n"
        if self._connection.version == V10 and "id" not in head.headers:
            return "destination " + text, destination
        key = header_values.required(head, "id")
        return key, f"subscription:{header_values.as_written(head, 'id')}\n{destination}"

    def _options(self, head: Head) -> SubscribeOptions:
        limits = self._connection.limits
        mode = head.headers.get("ack", AUTO)
        if mode not in ACK_MODES:
            raise ProtocolError(f"ack must be one of {', '.join(ACK_MODES)}", head.lines["ack"])
        window = header_values.number(head, "x-wsize", 1, 10**15)
        prefetch = header_values.number(head, "prefetch-count", 1, 10**15)
        activemq = header_values.number(head, "activemq.prefetchSize", 1, 10**15)
        window = window or prefetch or activemq or limits.window
        weight = header_values.number(head, "x-parallel", 1, limits.parallel_max) or 1
        groups = header_values.groups(head, "x-ks-group")
        if len(groups) > 1:
            raise ProtocolError("x-ks-group must name one group", head.lines["x-ks-group"])
        group = groups[0] if groups else ""
        return SubscribeOptions(mode, min(window, limits.window_max), weight, group, header_values.selector(head))

    def _consume(self, subscription: Subscription, options: SubscribeOptions) -> Subscription:
        connection = self._connection
        destination = subscription.destination
        name = destination.queue
        is_topic = destination.kind is Kind.TOPIC
        if is_topic:
            connection.access.check_topic(Right.RECEIVE, destination.event, destination.project)
        if is_topic and destination.private:
            name = private_name(f"{name.queue}.{subscription.index}")
        queue = self._queue(destination, name, Right.RECEIVE)
        if is_topic and destination.private:
            connection.access.listen(destination.event, name, self._bound, destination.project, options.selector)
        consumer = queue.subscribe(
            subscription.deliver,
            window=options.window,
            weight=options.weight,
            group=options.group,
            auto=options.mode == AUTO,
            client_info=client_info_of(
                connection.caller, connection.access.identity, connection.client_id, subscription.key
            ),
            on_closed=partial(self._lost, destination.private),
        )
        subscription.bind(queue, consumer)
        if connection.is_paused:
            consumer.hold()
        self.by_handle[subscription.handle.encode()] = subscription
        return subscription

    def _queue(self, destination: Destination, name: QueueName, right: Right) -> Queue:
        if destination.private:
            return temp_queues.make(self._connection, name)
        return self._connection.access.ensure(name, right)

    def check(self) -> None:
        """Raise NotAllowed if a subscription has lost its right."""
        access = self._connection.access
        for subscription in self._named.values():
            destination = subscription.destination
            if destination.kind is Kind.TOPIC:
                access.check_topic(Right.RECEIVE, destination.event, destination.project)
            if not destination.private:
                access.check(Right.PEEK if destination.kind is Kind.COUNT else Right.RECEIVE, destination.queue)

    @property
    def unsettled(self) -> int:
        """How many deliveries of the connection are unsettled."""
        return sum([len(subscription.consumer.unsettled) for subscription in self.by_handle.values()])

    def _bound(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._connection.fail(error)

    def _lost(self, is_private: bool, error: CurbstoneError) -> None:
        """End the connection: the queue of a subscription was deleted, or the engine stopped."""
        connection = self._connection
        if not connection.lost:
            connection.fail(temp_queues.subscriber_error(error, connection) if is_private else error)
