"""One consumer of a queue on a WebSocket: sends its deliveries as frames, and settles them by their `ackId`s.

An `ackId` names one delivery of one subscription of one connection, as in "5f0c91aa43d7.7". After a reconnect it names
nothing, so it can't settle another message. While the connection lasts, the delivery can also be settled over other
protocols (`access.ack_ids`). The socket, its login, and the effect of an error belong to the session.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from curbstone.access.ack_ids import Held
from curbstone.core.errors import BadRequest, CurbstoneError, StaleDelivery
from curbstone.core.message import Delivery
from curbstone.core.port import Consumer
from curbstone.core.traffic import DeliveryCounter, Traffic
from curbstone.core.values import Done, Outcome, ignore
from curbstone.gateway.formats.message_json import Encoding, body_json, metadata_json
from curbstone.gateway.formats.parameters import lease_ms, seconds_ms
from curbstone.gateway.http.json_body import check_members, parse_json
from curbstone.gateway.http.problem import Problem
from curbstone.gateway.websocket.codec import binary_frame, text_frame

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.gateway.websocket.login import SocketLogin
    from curbstone.gateway.websocket.socket_leases import SocketLeases
    from curbstone.net.websocket_port import WebSocketPort

UNKNOWN_ID = Problem(500, "Unrecognized acknowledgment ID")

ID = r"([0-9a-z]+)\.([1-9][0-9]{0,17})"
"""The form of an ackId: the subscription, and the number of the delivery."""
_AN_ID = re.compile(ID)
SETTLING = ("ackId", "ackToId", "nackId", "rejectId", "extendId")
"""The members of commands that name a delivery."""


Refused = Callable[[CurbstoneError, dict[str, Any]], None]


class Ending(NamedTuple):
    """How a client ends a delivery."""

    ack_id: str
    outcome: Outcome
    delay_ms: int | None = None
    error: str = ""


def ending_of(command: dict[str, Any]) -> Ending:
    """Return the delivery that a command ends, and how; raise BadRequest."""
    match command:
        case {"ackId": str(ack_id), **options}:
            _check_alone(options)
            return Ending(ack_id, Outcome.ACK)
        case {"nackId": str(ack_id), **options}:
            check_members(options, ("delay", "error"), "a nackId")
            delay_ms = seconds_ms("delay", options["delay"]) if options.get("delay") is not None else None
            return Ending(ack_id, Outcome.NACK, delay_ms, _text(options))
        case {"rejectId": str(ack_id), **options}:
            check_members(options, ("error",), "a rejectId")
            return Ending(ack_id, Outcome.REJECT, None, _text(options))
        case _:
            raise BadRequest("Unrecognized command.")


def command_of(is_text: bool, data: bytes) -> dict[str, Any]:
    """Return the JSON object in a frame of a consumer; raise BadRequest."""
    try:
        command = parse_json(data) if is_text else None
    except BadRequest:
        command = None
    if not isinstance(command, dict):
        raise BadRequest("Payload must be a JSON object.")
    return command


class Subscription:
    """One consumer on a WebSocket; see the module's docstring."""

    def __init__(
        self,
        queue: Queue,
        *,
        settles: bool,
        confirms: bool = False,
        limit: int,
        encoding: Encoding | None = None,
        group: str = "",
        traffic: Traffic | None = None,
        leases: SocketLeases | None = None,
        label: bytes = b"",
        refused: Refused | None = None,
    ) -> None:
        """`label` has the first members of each delivery. `confirms`: whether settling is answered.

        `leases` limits how long deliveries last; it needs `confirms`. `refused(error, command)` is called if the
        message of a rejectId can't be dead-lettered for now and waits in its queue. Without `refused`, this ends the
        subscription.
        """
        self.name = ""
        """The first part of its ackIds, from `start` on."""
        self.name_bytes = b""
        self.settles = settles
        self.confirms = confirms
        self.traffic = traffic or Traffic()
        self._refused = refused
        self.is_closed = True
        """True before `start` and after `close`, when nothing is delivered or settled."""
        self._leases = leases
        self._queue = queue
        self._handouts = DeliveryCounter(self.traffic, queue)
        self._limit = limit
        self._encoding = encoding
        self._group = group
        start = b"{" + label.replace(b"%", b"%%")
        self._metadata = start + b"%b}"
        self._whole = start + b"%b,%b}"
        self._consumer: Consumer | None = None
        self._last_id = 0
        self._seqs: dict[int, int] = {}
        """The unsettled deliveries, in order: the number in the ackId to the seq."""
        self._acked: list[int] = []
        """Seqs that were acked in the current read."""
        self._ids: list[str] = []
        """Their ackIds, if settling is answered."""
        self._stale: list[str] = []
        """The ackIds in the current read that name nothing, if settling is answered."""

    @property
    def unsettled(self) -> int:
        """How many deliveries are unsettled."""
        return len(self._seqs)

    def start(self, wire: WebSocketPort, failed: Callable[[CurbstoneError], None], login: SocketLogin) -> None:
        """Subscribe; deliveries begin. `failed` is called when there can be no more, unless it was closed before."""
        self._wire = wire
        self._login = login
        self._failed = failed
        if self._leases is not None:
            self._leases.begin(self._ran_out)
        self._consumer = self._queue.subscribe(
            self._deliver,
            window=self._limit,
            group=self._group,
            auto=not self.settles,
            client_info=login.client_info,
            on_closed=self._fail,
        )
        if self.settles:
            self.name = login.hold(self)
            self.name_bytes = self.name.encode()
        self.is_closed = False

    def when_open(self, on_open: Callable[[], None]) -> None:
        self._open.when_open(on_open)

    # ------------------------------------------------------------ to the client

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self.is_closed:
            return
        queue = self._queue
        metadata = self._metadata
        pieces = []
        for delivery in deliveries:
            message = delivery.message
            ack_id = b""
            if self.settles:
                self._last_id += 1
                self._seqs[self._last_id] = message.seq
                ack_id = b'"%b.%d"' % (self.name_bytes, self._last_id)
            inside = metadata_json(message, queue.message_id(message.seq), delivery.tries, ack_id)
            if self._encoding:
                pieces.append(text_frame(self._whole % (inside, body_json(message.body, self._encoding))))
            else:
                pieces.append(text_frame(metadata % inside))
                pieces.append(binary_frame(message.body))
        self._handouts.count(deliveries, auto=not self.settles)
        if self._leases is not None:
            self._leases.add(range(self._last_id - len(deliveries) + 1, self._last_id + 1))
        self._wire.send(b"".join(pieces))

    def hold(self) -> None:
        """Pause deliveries: the socket's buffer is full."""
        self._open.hold()

    def resume(self) -> None:
        """Resume deliveries: there is room again."""
        self._open.resume()

    def pause(self) -> None:
        """Deliver no more. Unsettled deliveries can still be settled."""
        self._open.pause()

    # ------------------------------------------------------------ from the client

    def ack(self, number: int) -> None:
        """Ack a delivery, together with the others of this read; raise Problem for a number that names none."""
        self._acked.append(self._claim(number))

    def number(self, ack_id: str) -> int:
        """Return the number in an ackId; 0, which names no delivery, if it is not an ackId of this subscription."""
        parts = _AN_ID.fullmatch(ack_id)
        return int(parts[2]) if parts and parts[1] == self.name else 0

    def resize(self, window: int) -> None:
        """Change how many deliveries may be unsettled."""
        self._open.resize(window)

    def carry_out(self, command: dict[str, Any]) -> None:
        """Settle or extend the delivery in a command; raise BadRequest, or Problem if it names none."""
        consumer = self._open
        if self.confirms and self._is_stale(consumer, command):
            return
        if self._leases is not None and "extendId" in command:
            self._extend(self._leases, command)
        else:
            self._settle(consumer, command)

    def flush(self) -> None:
        """Pass the acks of this read to the engine, together; report which of its commands named nothing."""
        self._flush_acks()
        if self._stale:
            stale, self._stale = self._stale, []
            self._wire.send(stale_frame(stale))

    @property
    def _open(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def _extend(self, leases: SocketLeases, command: dict[str, Any]) -> None:
        check_members(command, ("extendId", "seconds"), "an extendId")
        ack_id = command["extendId"]
        if not isinstance(ack_id, str):
            raise BadRequest("bad extendId: it must be the ackId of a delivery")
        leases.extend(self.number(ack_id), lease_ms(command.get("seconds")))
        self._wire.send(text_frame(orjson.dumps({"extended": [ack_id]})))

    def _ran_out(self, numbers: list[int]) -> None:
        """Requeue deliveries that were not settled in time, and notify the client."""
        consumer = self._consumer
        if consumer is None:
            return
        seqs = [seq for number in numbers if (seq := self._seqs.pop(number)) in consumer.unsettled]
        self.traffic.returned += len(seqs)
        self._wire.send(stale_frame([f"{self.name}.{number}" for number in numbers]))
        try:
            consumer.nack(seqs, 0, "the lease ran out", self._on_settled)
        except CurbstoneError as error:
            self._fail(error)

    def _is_stale(self, consumer: Consumer, command: dict[str, Any]) -> bool:
        """Return whether a command names a delivery that has ended. If so, this is reported at the end of the read."""
        ack_id = next((command[name] for name in SETTLING if isinstance(command.get(name), str)), None)
        if ack_id is None or self._seqs.get(self.number(ack_id)) in consumer.unsettled:
            return False
        self._forget(self.number(ack_id))
        self._stale.append(ack_id)
        return True

    def _settle(self, consumer: Consumer, command: dict[str, Any]) -> None:
        match command:
            case {"ackToId": str(ack_id), **options}:
                _check_alone(options)
                self._acked.extend(self._claim_up_to(ack_id, consumer))
            case _:
                ending = ending_of(command)
                if ending.outcome is Outcome.ACK:
                    self._acked.append(self._claim(self.number(ending.ack_id)))
                else:
                    self._give_back(consumer, ending)

    def _give_back(self, consumer: Consumer, ending: Ending) -> None:
        self._flush_acks()
        seqs = [self._claim(self.number(ending.ack_id))]
        on_settled = self._answer()
        if ending.outcome is Outcome.REJECT:
            consumer.reject(seqs, ending.error, self._dead_lettered(consumer, seqs[0], ending.ack_id, on_settled))
        else:
            consumer.nack(seqs, ending.delay_ms, ending.error, on_settled)
        self.traffic.settle(ending.outcome, 1)

    def _dead_lettered(self, consumer: Consumer, seq: int, ack_id: str, on_settled: Done) -> Done:
        """Return a callback for when a rejected message is in the dead-letter queue, or can't be moved for now."""
        refused = self._refused
        if refused is None:
            return on_settled

        def done(error: CurbstoneError | None) -> None:
            if error is None or seq in consumer.unsettled:  # after a failed write the consumer still has it
                on_settled(error)
            else:
                refused(error, {"rejectId": ack_id})

        return done

    # ------------------------------------------------------------ settled over other connections

    @property
    def owner(self) -> str:
        return self._login.access.identity.owner

    def held(self, ack_id: str) -> Held | None:
        seq = self._seqs.get(self.number(ack_id))
        if seq is None or self._consumer is None or seq not in self._consumer.unsettled:
            return None
        return Held(self._queue, self._consumer, seq)

    def ended(self, ack_id: str) -> None:
        self._forget(self.number(ack_id))

    # ------------------------------------------------------------ the unsettled deliveries

    def _claim(self, number: int) -> int:
        """Remove an unsettled delivery and return its seq; raise UNKNOWN_ID for a number that names none."""
        seq = self._forget(number)
        if seq is None:
            raise UNKNOWN_ID
        if self.confirms:
            self._ids.append(f"{self.name}.{number}")
        return seq

    def _forget(self, number: int) -> int | None:
        if self._leases is not None:
            self._leases.drop(number)
        return self._seqs.pop(number, None)

    def _claim_up_to(self, ack_id: str, consumer: Consumer) -> list[int]:
        last = self.number(ack_id)
        if last not in self._seqs:
            raise UNKNOWN_ID
        claimed = []
        for number in self._seqs:
            claimed.append(number)
            if number == last:
                break
        if self.confirms:
            ended = [number for number in claimed if self._seqs[number] not in consumer.unsettled]
            self._stale += [f"{self.name}.{number}" for number in ended if self._forget(number)]
            claimed = [number for number in claimed if number in self._seqs]
        return [self._claim(number) for number in claimed]

    def _flush_acks(self) -> None:
        if self._acked and self._consumer:
            acked, self._acked = self._acked, []
            self.traffic.acked += len(acked)
            try:
                self._consumer.ack(acked, self._answer())
            except StaleDelivery as error:
                self._fail(error)

    def _answer(self) -> Done:
        """Return a callback for when the deliveries that were just claimed are settled."""
        if not self.confirms:
            return self._on_settled
        ids, self._ids = self._ids, []

        def done(error: CurbstoneError | None) -> None:
            if error is None:
                self._wire.send(text_frame(orjson.dumps({"settled": ids})))
            self._on_settled(error)

        return done

    def _on_settled(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._fail(error)

    # ------------------------------------------------------------ the end

    def _fail(self, error: CurbstoneError) -> None:
        if not self.is_closed:
            self._failed(error)

    def close(self) -> None:
        """Close: unsettled deliveries are requeued at their places."""
        self.is_closed = True
        if self.name:
            self._login.detach(self.name)
        if self._leases is not None:
            self._leases.leave()
        self._failed, self._refused = ignore, None  # breaks the reference cycle with the session
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def stale_frame(ack_ids: list[str]) -> bytes:
    """Return the frame that reports deliveries that have ended."""
    return text_frame(orjson.dumps({"stale": ack_ids}))


def _check_alone(options: dict[str, Any]) -> None:
    if options:
        raise BadRequest(f"unknown member {next(iter(options))[:80]!r}; an ackId or ackToId has no options")


def _text(options: dict[str, Any]) -> str:
    error = options.get("error", "")
    if not isinstance(error, str):
        raise BadRequest("bad error: it must be a string")
    return error
