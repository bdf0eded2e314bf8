"""A WebSocket that consumes (subprotocol `consume`).

Each message leaves as a metadata frame and a binary payload frame, or with `encoding` as one JSON frame. With
`ack` the client settles: `{"ackId"}`, `{"ackToId"}`, `{"nackId"}`, `{"rejectId"}`; an empty frame ends the
deliveries; `{"token"}` logs in anew. An `ackId` names one delivery of one connection, as in "5f0c91aa.7": one that
comes after a reconnect names nothing, and can't settle another message. With `confirm=json` settling is answered: by
`{"settled": [ids]}` when it is on disk, by `{"stale": [ids]}` where a delivery has ended; and `{"window"}` changes how
many may be unsettled. With `lease` as well a delivery ends after so many seconds, which is told as `stale`, unless
`{"extendId", "seconds"}` gives it more.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

import orjson

from curbstone.core.errors import BadRequest, CurbstoneError, StaleDelivery
from curbstone.core.message import Delivery
from curbstone.core.port import Consumer
from curbstone.core.traffic import Handouts, Traffic
from curbstone.core.values import Done
from curbstone.gateway.formats.message_json import Encoding, body_json, metadata_json
from curbstone.gateway.formats.parameters import lease_ms, seconds_ms, whole_number
from curbstone.gateway.http.json_body import check_members, parse_json
from curbstone.gateway.http.problem import Problem, reason_of, status_of
from curbstone.gateway.limits import WINDOW_MAX
from curbstone.gateway.websocket.codec import Inbound, binary_frame, text_frame
from curbstone.gateway.websocket.login import token_in
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.net.wire import GOING_AWAY, Wire

if TYPE_CHECKING:
    from curbstone.core.port import Queue
    from curbstone.gateway.websocket.login import SocketLogin
    from curbstone.gateway.websocket.socket_leases import SocketLeases

_UNKNOWN_ID = Problem(500, "Unrecognized acknowledgment ID")

_ID = r"([0-9a-z]+)\.([1-9][0-9]{0,17})"
_AN_ID = re.compile(_ID)
_NAMES = ("ackId", "ackToId", "nackId", "rejectId", "extendId")
_PLAIN_ACK = re.compile(rf'\{{"ackId": ?"{_ID}"\}}'.encode())
"""What nearly all commands are; it is worth a way of its own, without a JSON parser."""


class ConsumeSession:
    """See the module's text. Implements `sockets.Session`."""

    subprotocol = "consume"

    def __init__(
        self,
        queue: Queue,
        login: SocketLogin,
        *,
        settles: bool,
        confirms: bool = False,
        limit: int,
        encoding: Encoding | None = None,
        group: str = "",
        traffic: Traffic | None = None,
        name: str = "",
        leases: SocketLeases | None = None,
    ) -> None:
        """`name` is what the ackIds of this connection begin with; without one it is drawn.

        `confirms`: whether settling is answered. `leases`: how long deliveries last, if that is answered.
        """
        self._leases = leases
        self._name = name or secrets.token_hex(4)
        self._name_bytes = self._name.encode()
        self._queue = queue
        self._login = login
        self._traffic = traffic or Traffic()
        self._handouts = Handouts(self._traffic, queue)
        self._settles = settles
        self._confirms = confirms
        self._limit = limit
        self._encoding = encoding
        self._group = group
        self._consumer: Consumer | None = None
        self._last_id = 0
        self._seqs: dict[int, int] = {}
        """What is unsettled: the number in the ackId to seq, in the order of delivery."""
        self._acked: list[int] = []
        """Seqs acknowledged in the read that is being worked off."""
        self._ids: list[str] = []
        """If settling is answered: the ackIds of those."""
        self._stale: list[str] = []
        """Likewise: those of this read that name nothing."""

    @property
    def expires_ms(self) -> int:
        """See `Session.expires_ms`."""
        return self._login.access.identity.expires_ms

    def start(self, wire: Wire) -> None:
        """Subscribe; deliveries begin."""
        self._wire = wire
        self._login.begin(self._fail, lambda: len(self._seqs))
        if self._leases is not None:
            self._leases.begin(self._ran_out)
        self._consumer = self._queue.subscribe(
            self._deliver, window=self._limit, group=self._group, auto=not self._settles, on_closed=self._fail
        )

    # ------------------------------------------------------------ to the client

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if self._consumer is None:
            return
        queue = self._queue
        pieces = []
        for delivery in deliveries:
            message = delivery.message
            ack_id = b""
            if self._settles:
                self._last_id += 1
                self._seqs[self._last_id] = message.seq
                ack_id = b'"%b.%d"' % (self._name_bytes, self._last_id)
            inside = metadata_json(message, queue.message_id(message.seq), delivery.tries, ack_id)
            if self._encoding:
                pieces.append(text_frame(b"{%b,%b}" % (inside, body_json(message.body, self._encoding))))
            else:
                pieces.append(text_frame(b"{%b}" % inside))
                pieces.append(binary_frame(message.body))
        self._handouts.count(deliveries, auto=not self._settles)
        if self._leases is not None:
            self._leases.add(range(self._last_id - len(deliveries) + 1, self._last_id + 1))
        self._wire.send(b"".join(pieces))

    def hold(self) -> None:
        """See `Session.hold`."""
        if self._consumer:
            self._consumer.hold()

    def resume(self) -> None:
        """See `Session.resume`."""
        if self._consumer:
            self._consumer.resume()

    # ------------------------------------------------------------ from the client

    def receive(self, messages: list[Inbound]) -> None:
        """Settle what the client asks for; acknowledgments of one read go to the engine together."""
        try:
            for is_text, data in messages:
                if self._consumer is None:
                    return
                self._take(self._consumer, is_text, data)
            self._flush()
            if self._stale:
                stale, self._stale = self._stale, []
                self._wire.send(text_frame(orjson.dumps({"stale": stale})))
        except (CurbstoneError, Problem) as error:
            self._flush()
            self._fail(error)

    def _take(self, consumer: Consumer, is_text: bool, data: bytes) -> None:
        if not data:
            consumer.pause()
            return
        if is_text and self._settles and not self._confirms and (plain := _PLAIN_ACK.fullmatch(data)):
            self._acked.append(self._claim(int(plain[2]) if plain[1] == self._name_bytes else 0))
            return
        command = self._command(is_text, data)
        if token := token_in(command):
            self._login.renew(token, self._wire)
            return
        if not self._settles:
            raise BadRequest("Acks can only be sent on connections without immediate acks.")
        if self._confirms and "window" in command:
            check_members(command, ("window",), "a window")
            consumer.resize(whole_number("window", command["window"], 1, WINDOW_MAX))
        elif not (self._confirms and self._is_stale(consumer, command)):
            if self._leases is not None and "extendId" in command:
                self._extend(self._leases, command)
            else:
                self._settle(consumer, command)

    def _extend(self, leases: SocketLeases, command: dict[str, Any]) -> None:
        check_members(command, ("extendId", "seconds"), "an extendId")
        ack_id = command["extendId"]
        if not isinstance(ack_id, str):
            raise BadRequest("bad extendId: it must be the ackId of a delivery")
        leases.extend(self._number(ack_id), lease_ms(command.get("seconds")))
        self._wire.send(text_frame(orjson.dumps({"extended": [ack_id]})))

    def _ran_out(self, numbers: list[int]) -> None:
        """Give back what was not settled in time, and say so."""
        consumer = self._consumer
        if consumer is None:
            return
        seqs = [seq for number in numbers if (seq := self._seqs.pop(number)) in consumer.unsettled]
        self._traffic.returned += len(seqs)
        self._wire.send(text_frame(orjson.dumps({"stale": [f"{self._name}.{number}" for number in numbers]})))
        try:
            consumer.nack(seqs, 0, "the lease ran out", self._on_settled)
        except CurbstoneError as error:
            self._fail(error)

    def _is_stale(self, consumer: Consumer, command: dict[str, Any]) -> bool:
        """Return whether a command names a delivery that has ended; then that is told at the end of the read."""
        ack_id = next((command[name] for name in _NAMES if isinstance(command.get(name), str)), None)
        if ack_id is None or self._seqs.get(self._number(ack_id)) in consumer.unsettled:
            return False
        self._forget(self._number(ack_id))
        self._stale.append(ack_id)
        return True

    def _settle(self, consumer: Consumer, command: dict[str, Any]) -> None:
        match command:
            case {"ackId": str(ack_id), **options}:
                _check_alone(options)
                self._acked.append(self._claim(self._number(ack_id)))
            case {"ackToId": str(ack_id), **options}:
                _check_alone(options)
                self._acked.extend(self._claim_up_to(ack_id, consumer))
            case {"nackId": str(ack_id), **options}:
                check_members(options, ("delay", "error"), "a nackId")
                delay_ms = seconds_ms("delay", options["delay"]) if options.get("delay") is not None else None
                self._give_back(consumer, ack_id, _text(options), delay_ms, rejected=False)
            case {"rejectId": str(ack_id), **options}:
                check_members(options, ("error",), "a rejectId")
                self._give_back(consumer, ack_id, _text(options), None, rejected=True)
            case _:
                raise BadRequest("Unrecognized command.")

    def _command(self, is_text: bool, data: bytes) -> dict[str, Any]:
        try:
            command = parse_json(data) if is_text else None
        except BadRequest:
            command = None
        if not isinstance(command, dict):
            raise BadRequest("Payload must be a JSON object.")
        return command

    def _give_back(self, consumer: Consumer, ack_id: str, error: str, delay_ms: int | None, *, rejected: bool) -> None:
        self._flush()
        seqs = [self._claim(self._number(ack_id))]
        on_settled = self._answer()
        if rejected:
            consumer.reject(seqs, error, on_settled)
            self._traffic.rejected += 1
        else:
            consumer.nack(seqs, delay_ms, error, on_settled)
            self._traffic.returned += 1

    def _number(self, ack_id: str) -> int:
        """Return the delivery's number; 0, which names none, for what is no ackId of this connection."""
        parts = _AN_ID.fullmatch(ack_id)
        return int(parts[2]) if parts and parts[1] == self._name else 0

    def _claim(self, number: int) -> int:
        """Return the seq of an unsettled delivery and forget it; raise for a number that names none."""
        seq = self._forget(number)
        if seq is None:
            raise _UNKNOWN_ID
        if self._confirms:
            self._ids.append(f"{self._name}.{number}")
        return seq

    def _forget(self, number: int) -> int | None:
        if self._leases is not None:
            self._leases.drop(number)
        return self._seqs.pop(number, None)

    def _claim_up_to(self, ack_id: str, consumer: Consumer) -> list[int]:
        last = self._number(ack_id)
        if last not in self._seqs:
            raise _UNKNOWN_ID
        claimed = []
        for number in self._seqs:
            claimed.append(number)
            if number == last:
                break
        if self._confirms:
            ended = [number for number in claimed if self._seqs[number] not in consumer.unsettled]
            self._stale += [f"{self._name}.{number}" for number in ended if self._forget(number)]
            claimed = [number for number in claimed if number in self._seqs]
        return [self._claim(number) for number in claimed]

    def _flush(self) -> None:
        if self._acked and self._consumer:
            acked, self._acked = self._acked, []
            self._traffic.acked += len(acked)
            try:
                self._consumer.ack(acked, self._answer())
            except StaleDelivery as error:
                self._fail(error)

    def _answer(self) -> Done:
        """Return what is called when those that were just claimed are settled."""
        if not self._confirms:
            return self._on_settled
        ids, self._ids = self._ids, []

        def done(error: CurbstoneError | None) -> None:
            if error is None and self._consumer is not None:
                self._wire.send(text_frame(orjson.dumps({"settled": ids})))
            self._on_settled(error)

        return done

    def _on_settled(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._fail(error)

    # ------------------------------------------------------------ the end

    def _fail(self, error: CurbstoneError | Problem) -> None:
        """Tell the client and close; what is unsettled goes back."""
        if self._consumer is None:
            return
        self._traffic.refuse(error, reason_of(error))
        if isinstance(error, StaleDelivery):
            error = _UNKNOWN_ID
        self._wire.send(error_frame(status_of(error), str(error)))
        close_for(self._wire, status_of(error), str(error))

    def too_big(self) -> None:
        """See `Session.too_big`."""
        self._fail(Problem(413, "the message is too large for a command"))

    def refuse(self, status: int, reason: str) -> None:
        """See `Session.refuse`."""
        self._fail(Problem(status, reason))

    def reading(self, on: bool) -> None:
        """See `Session.reading`: nothing here has a deadline."""

    def stop(self) -> None:
        """See `Session.stop`; acknowledgments that arrived are with the engine already."""
        self._wire.close(GOING_AWAY, "the server is stopping")

    def closed(self) -> None:
        """Unsettled deliveries go back to their places."""
        self._login.leave()
        if self._leases is not None:
            self._leases.leave()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _check_alone(options: dict[str, Any]) -> None:
    if options:
        raise BadRequest(f"unknown member {next(iter(options))[:80]!r}; an ackId or ackToId stands alone")


def _text(options: dict[str, Any]) -> str:
    error = options.get("error", "")
    if not isinstance(error, str):
        raise BadRequest("bad error: it must be a string")
    return error
