"""A WebSocket for several queues of a project (subprotocol `queues`): it can consume from each and publish to each.

Every frame from the client is a JSON object, except an empty one, which ends all deliveries. `{"subscribe": queue}`
with `ack`, `limit`, `encoding`, `group` and `lease` begins a subscription, and is answered by `{"subscribed"}`.
`{"window": queue, "limit"}` changes how many deliveries may be unsettled. `{"unsubscribe": queue}` ends the
subscription, and is answered by `{"unsubscribed"}`. Deliveries are those of a consuming socket with `queue` in
addition, and settling is the same as there with `confirm=json`. `{"publish": queue, "message"}` is answered by
`{"published", "id"}`, in the order of the messages.

A refusal is sent as an error with the member that named it. It ends neither the other subscriptions nor the socket. If
a subscription can't continue, it is sent `unsubscribed` with the reason.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.access.errors import TooMany
from curbstone.access.rights import Right
from curbstone.core.errors import BadRequest, Conflict, CurbstoneError, NoSuchQueue
from curbstone.core.message import Message
from curbstone.core.names import QueueName, queue_name
from curbstone.core.traffic import Traffic
from curbstone.core.values import Done
from curbstone.gateway.formats.idempotency import MEMBER
from curbstone.gateway.formats.json_message import check_message, message_of, put_body
from curbstone.gateway.formats.parameters import encoding_named, group_named, lease_ms, refuse_filter, whole_number
from curbstone.gateway.http.json_body import check_members
from curbstone.gateway.http.problem import Problem, reason_of, status_of
from curbstone.gateway.limits import SUBSCRIPTIONS_MAX, UNREAD_BYTES_MAX, WINDOW_MAX
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.websocket.codec import Inbound, text_frame
from curbstone.gateway.websocket.foreign_acks import ForeignAcks
from curbstone.gateway.websocket.login import SocketLogin, token_in
from curbstone.gateway.websocket.ordered_confirms import Batch, OrderedConfirms
from curbstone.gateway.websocket.publish_targets import ToQueue
from curbstone.gateway.websocket.socket_leases import SocketLeases
from curbstone.gateway.websocket.subscription import SETTLING, Subscription, command_of, stale_frame
from curbstone.net.websocket_port import GOING_AWAY, WebSocketPort

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.caller import Caller
    from curbstone.access.connections import Connections
    from curbstone.core.port import Queue

_SUBSCRIBE, _UNSUBSCRIBE, _WINDOW, _PUBLISH = "subscribe", "unsubscribe", "window", "publish"
_COMMANDS = (_SUBSCRIBE, _UNSUBSCRIBE, _WINDOW, _PUBLISH, *SETTLING)
"""The members that name a command. Each command has one of them; its value says what the command is about."""
_SUBSCRIBE_MEMBERS = (_SUBSCRIBE, "ack", "limit", "encoding", "group", "lease")
_BESIDE = (MEMBER, "queue")
"""Further members that a message to publish may have. `queue` is ignored: a delivery that is sent on as it came has
it."""


class QueuesSession:
    """Consumes from and publishes to several queues; see the module's docstring. Implements `session.Session`."""

    subprotocol = "queues"
    delivers = True

    def __init__(
        self,
        project: str,
        connections: Connections,
        access: AuthorizedBroker,
        caller: Caller,
        settings: GatewaySettings,
        traffic: Traffic,
    ) -> None:
        self._project = project
        self._settings = settings
        self._traffic = traffic
        self._host = connections.host
        self._login = SocketLogin(connections, access, caller, self._check)
        self._confirms = OrderedConfirms(traffic, self._answer)
        self._subscriptions: dict[str, Subscription] = {}
        """The subscriptions by queue."""
        self._by_name: dict[str, Subscription] = {}
        """The subscriptions by the first part of their ackIds."""
        self._foreign_acks = ForeignAcks(self._login, traffic, confirms=True)
        self._is_held = False
        # State of the current read.
        self._targets: dict[str, ToQueue] = {}
        self._run: list[Message] = []
        self._run_place = ""
        self._settling: dict[Subscription, None] = {}
        self._stale: list[str] = []
        self._shares_queues = access.shares_queues
        self._looked_for = ""
        """The queue that was looked up on other servers after the last read. If still unknown, it does not exist."""
        self._unlooked: CurbstoneError | None = None
        """Why other servers could not be queried; then it is unknown whether the queue exists."""

    @property
    def expires_ms(self) -> int:
        return self._login.access.identity.expires_ms

    def start(self, wire: WebSocketPort) -> None:
        self._wire = wire
        wire.limit_unsent(UNREAD_BYTES_MAX)
        self._confirms.begin(wire, self.receive)
        self._login.begin(self._fail, lambda: sum([each.unsettled for each in self._subscriptions.values()]))

    # ------------------------------------------------------------ from the client

    def receive(self, messages: list[Inbound]) -> None:
        """Carry out the commands of one read; settles, and messages to the same queue, go to the engine together."""
        meter = self._login.meter
        if not self._confirms.takes_more or (self._confirms.is_waiting and self._confirms.keep(messages, meter)):
            return
        looked_for, self._looked_for = self._looked_for, ""
        failure: CurbstoneError | None = None
        has_paid = meter is None
        for at, (is_text, data) in enumerate(messages):
            if not data:
                self._pause()
                continue
            try:
                command = command_of(is_text, data)
            except BadRequest as error:
                failure = error
                break
            if self._shares_queues and self._has_to_look(command, looked_for):
                self._confirms.keep_until(messages[at:], self._find_queue)
                break
            if _PUBLISH in command:
                if not has_paid and self._confirms.keep(messages[at:], meter):
                    break
                has_paid = True
                self._publish(command, len(data))
            else:
                self._take(command)
        self._end_run()
        self._targets.clear()
        for subscription in list(self._settling):
            subscription.flush()
        self._settling.clear()
        if self._stale:
            stale, self._stale = self._stale, []
            self._wire.send(stale_frame(stale))
        if not self._looked_for:
            self._unlooked = None
        if failure is not None:
            self._fail(failure)

    def _has_to_look(self, command: dict[str, Any], looked_for: str) -> bool:
        """Return whether a command names a queue, not `looked_for`, that another server may have just created."""
        place = command.get(_PUBLISH, command.get(_SUBSCRIBE))
        if not isinstance(place, str) or place in self._targets or place == looked_for:
            return False
        try:
            if not self._login.access.may_be_new(queue_name(place, self._project)):
                return False
        except BadRequest:  # it is reported when it is
            return False
        self._looked_for = place
        return True

    def _find_queue(self, on_done: Done) -> None:
        def looked(error: CurbstoneError | None) -> None:
            self._unlooked = error
            on_done(error)

        self._login.access.catch_up(looked)

    def _queue(self, name: QueueName, right: Right) -> Queue:
        try:
            return self._login.queue(name, right)
        except NoSuchQueue:
            if self._unlooked is not None:
                raise self._unlooked from None
            raise

    def _take(self, command: dict[str, Any]) -> None:
        """Carry out a command that does not publish."""
        if token := token_in(command):
            self._login.renew(token, self._wire)
            return
        try:
            if _SUBSCRIBE in command:
                self._subscribe(command)
            elif _UNSUBSCRIBE in command:
                self._unsubscribe(command)
            elif _WINDOW in command:
                check_members(command, (_WINDOW, "limit"), "a window")
                window = whole_number("limit", command.get("limit"), 1, WINDOW_MAX)
                self._subscription(command[_WINDOW]).resize(window)
            else:
                self._settle(command)
        except (CurbstoneError, Problem) as error:
            self._refuse(error, command)

    def _refuse(self, error: CurbstoneError | Problem, command: dict[str, Any]) -> None:
        self._traffic.refuse(error, reason_of(error))
        self._wire.send(_refusal(error, _named(command)))

    # --- subscriptions

    def _subscribe(self, command: dict[str, Any]) -> None:
        refuse_filter(command)
        check_members(command, _SUBSCRIBE_MEMBERS, "a subscribe")
        name = self._queue_name(command[_SUBSCRIBE])
        key = name.queue
        if key in self._subscriptions:
            raise Conflict(f"this connection has a subscription to {name}: window changes it, unsubscribe ends it")
        count = len(self._subscriptions) + 1
        if count > SUBSCRIPTIONS_MAX:
            raise TooMany(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions")
        subscription = self._new_subscription(self._queue(name, Right.RECEIVE), command)
        self._login.holds(count)
        try:
            subscription.start(self._wire, partial(self._ended, key), self._login)
        except CurbstoneError:
            self._login.holds(count - 1)
            raise
        self._subscriptions[key] = subscription
        if subscription.settles:
            self._by_name[subscription.name] = subscription
        if self._is_held:
            subscription.hold()
        subscription.when_open(partial(self._opened, key, subscription))

    def _new_subscription(self, queue: Queue, command: dict[str, Any]) -> Subscription:
        settles = command.get("ack", False)
        if not isinstance(settles, bool):
            raise BadRequest("bad ack: true, or leave it out")
        group = command.get("group", "")
        if not isinstance(group, str):
            raise BadRequest("bad group: it must be a string")
        leases = None
        if "lease" in command:
            if not settles:
                raise BadRequest("lease needs ack")
            leases = SocketLeases(self._host, lease_ms(command["lease"]))
        return Subscription(
            queue,
            settles=settles,
            confirms=True,
            limit=whole_number("limit", command.get("limit", self._settings.default_limit), 1, WINDOW_MAX),
            encoding=encoding_named(command["encoding"]) if "encoding" in command else None,
            group=group_named(group),
            traffic=self._traffic,
            leases=leases,
            label=b'"queue":%b,' % orjson.dumps(queue.name.queue),
            refused=self._refuse,
        )

    def _opened(self, key: str, subscription: Subscription) -> None:
        if self._subscriptions.get(key) is subscription:
            self._send({"subscribed": key})

    def _unsubscribe(self, command: dict[str, Any]) -> None:
        check_members(command, (_UNSUBSCRIBE,), "an unsubscribe")
        self._subscription(command[_UNSUBSCRIBE]).flush()
        self._drop(command[_UNSUBSCRIBE])
        self._send({"unsubscribed": command[_UNSUBSCRIBE]})

    def _subscription(self, key: object) -> Subscription:
        name = self._queue_name(key)
        if name.queue not in self._subscriptions:
            raise NoSuchQueue(f"this connection has no subscription to {name}")
        return self._subscriptions[name.queue]

    def _drop(self, key: str) -> None:
        """End a subscription: its unsettled deliveries return to the queue."""
        subscription = self._subscriptions.pop(key)
        self._by_name.pop(subscription.name, None)
        self._settling.pop(subscription, None)
        subscription.close()
        self._login.holds(len(self._subscriptions))

    def _ended(self, key: str, error: CurbstoneError) -> None:
        """End a subscription that can't continue; all others do."""
        self._drop(key)
        self._traffic.refuse(error)
        self._send({"unsubscribed": key, "code": status_of(error), "error": str(error)})

    def _settle(self, command: dict[str, Any]) -> None:
        named = _named(command)
        if not named:
            raise BadRequest(f"unrecognized command: it has one of {', '.join(_COMMANDS)}")
        [(member, ack_id)] = named.items()
        if not isinstance(ack_id, str):
            raise BadRequest(f"bad {member}: it must be the ackId of a delivery")
        subscription = self._by_name.get(ack_id.partition(".")[0])
        if subscription is None:
            if not self._foreign_acks.settle(self._wire, command, self._refuse):
                self._stale.append(ack_id)
            return
        self._settling[subscription] = None
        subscription.carry_out(command)

    # --- publishing

    def _publish(self, command: dict[str, Any], size: int) -> None:
        place = command.pop(_PUBLISH)
        try:
            target = self._target(place)
            check_message(command, _BESIDE)
            message = message_of(command, self._settings.max_ttl_s)
            put_body(message, command, min(self._settings.max_message_size, target.bytes_max))
            key = command.get(MEMBER)
            if key is not None and not isinstance(key, str):
                raise BadRequest(f"bad {MEMBER}: it must be a string")
            once = None if key is None else target.once(key, message)
        except CurbstoneError as error:
            self._end_run()
            self._confirms.refuse(place, size, error)
            return
        if once is not None or place != self._run_place:
            self._end_run()
        self._count_paid(message)
        if once is None:
            self._run_place = place
            self._run.append(message)
        else:
            self._confirms.publish(target, [message], len(message.body), key=once, place=place)

    def _count_paid(self, message: Message) -> None:
        meter = self._login.meter
        if meter is not None:
            meter.count(1, len(message.body) + len(message.headers))

    def _target(self, place: object) -> ToQueue:
        """Return the target for a queue; its right is checked once for each read."""
        target = self._targets.get(place) if isinstance(place, str) else None
        if target is None:
            name = self._queue_name(place)
            queue = self._queue(name, Right.SEND)
            target = ToQueue(queue, lambda: self._login.access, label=b'"published":%b,' % orjson.dumps(name.queue))
            self._targets[name.queue] = target
        return target

    def _end_run(self) -> None:
        """Publish the collected messages, which are consecutive ones to the same queue."""
        if self._run:
            run, self._run = self._run, []
            size = sum([len(message.body) for message in run])
            self._confirms.publish(self._targets[self._run_place], run, size, place=self._run_place)

    def _answer(self, batch: Batch, error: CurbstoneError | None, first_seq: int, count: int) -> bool:
        """Confirm or refuse `count` messages. The connection always continues."""
        if error is None:
            assert batch.target is not None
            self._traffic.confirmed += count
            self._wire.send(batch.target.confirms(first_seq, count))
        else:
            self._traffic.refuse(error)
            self._wire.send(_refusal(error, {_PUBLISH: batch.place}) * count)
        return True

    # ------------------------------------------------------------ output, and the end

    def _queue_name(self, text: object) -> QueueName:
        if not isinstance(text, str):
            raise BadRequest("bad queue: it must be a string")
        return queue_name(text, self._project)

    def _send(self, fields: dict[str, Any]) -> None:
        self._wire.send(text_frame(orjson.dumps(fields)))

    def _check(self, access: AuthorizedBroker) -> None:
        """End the subscriptions that are no longer allowed: rights have changed."""
        for key in list(self._subscriptions):
            try:
                access.check(Right.RECEIVE, QueueName(self._project, key))
            except CurbstoneError as error:
                self._ended(key, error)

    def _pause(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.pause()

    def pause(self) -> None:
        """See `Session.hold`. Only deliveries pause: answers are small, and may wait up to `UNREAD_BYTES_MAX`."""
        self._is_held = True
        for subscription in self._subscriptions.values():
            subscription.hold()

    def resume(self) -> None:
        self._is_held = False
        for subscription in self._subscriptions.values():
            subscription.resume()

    def _fail(self, error: CurbstoneError) -> None:
        self._end(status_of(error), str(error))

    def _end(self, status: int, text: str) -> None:
        self._pause()
        self._confirms.end(status, text)

    def too_big(self) -> None:
        self._end(413, f"the message is larger than {self._settings.max_message_size} bytes")

    def refuse(self, status: int, reason: str) -> None:
        self._end(status, reason)

    def reading(self, on: bool) -> None:
        """See `Session.reading`: nothing here has a deadline."""

    def stop(self) -> None:
        """Deliver no more, take no more messages, answer those that were taken, and close."""
        self._end(GOING_AWAY, "the server is stopping")

    def closed(self) -> None:
        """See `Session.closed`. Unsettled deliveries return; messages that were taken are still published."""
        self._confirms.close()
        self._login.leave()
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()
        self._by_name.clear()


def _named(command: dict[str, Any]) -> dict[str, Any]:
    """Return the member that names a command, with its value; nothing if there is none."""
    return next(({name: command[name]} for name in _COMMANDS if name in command), {})


def _refusal(error: CurbstoneError | Problem, named: dict[str, Any]) -> bytes:
    return text_frame(orjson.dumps({"code": status_of(error), "error": str(error), **named}))
