"""One STOMP connection without its socket: bytes in, bytes out.

The owner of the socket, which is a TCP connection or a WebSocket, does four things:

- It calls `receive` with each read and the time.
- The session calls `changed` with the number of bytes that its output has grown by. Then the owner sends the result of
  `take_output`, now or soon.
- It calls `tick` at the time that the last `tick` returned.
- It closes the socket when `closing` is true and all output is sent.

Frames take effect in order. The SENDs and ACKs of one read are collected, so that the engine gets one publish for each
queue and one ack for each subscription. They are handed to the engine before a frame of any other kind takes effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.access.caller import CURRENT_CALLER, Credentials
from curbstone.access.rate_limit import Throttle
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.traffic import Traffic
from curbstone.core.values import Capability, ignore
from curbstone.stomp import connect, extensions, frames
from curbstone.stomp.acks import Settler
from curbstone.stomp.codec import ACK_BY_ID, V10, Frame, FrameParser, Head
from curbstone.stomp.destinations import SESSION_TOKEN
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.limits import Limits
from curbstone.stomp.liveness import Liveness
from curbstone.stomp.send import Publisher
from curbstone.stomp.session_state import SessionState
from curbstone.stomp.subscribe import Subscriptions
from curbstone.stomp.transactions import Transactions

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.caller import Caller


class Session:
    """The state machine of one connection.

    new ──CONNECT──▶ connected ──DISCONNECT, ERROR, shut_down──▶ ending ──▶ closing
    """

    def __init__(
        self,
        authenticator: Authenticator,
        access: AuthorizedBroker,
        limits: Limits,
        changed: Callable[[int], None],
        *,
        caller: Caller,
        name: str,
        now_ms: int,
        sync: str = "always",
        server: str = "curbstone",
        greeting: tuple[str, ...] = (),
        single_queue: QueueName | None = None,
        sniffs: bool = True,
        traffic: Traffic | None = None,
        send_at_once: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`access` is that of a login in a WebSocket's handshake; or it is anonymous, and CONNECT has to log in.

        `server` is the server header of CONNECTED: name, slash, version. `greeting` are more of its header lines.
        `sniffs`: whether to recognize HTTP or TLS in the first bytes, and refuse them as such.
        `send_at_once`: see `SessionState.send_at_once`.
        """
        self._authenticator = authenticator
        throttle = Throttle(caller.protocol, self._released)
        connection = SessionState(access, limits, name, single_queue, changed, traffic or Traffic(), throttle, caller)
        self._connection = connection
        connection.on_ending = self._on_ending
        if send_at_once is not None:
            connection.send_at_once = send_at_once
        self._parser = FrameParser(limits)
        self._publisher = Publisher(connection)
        self._subscriptions = Subscriptions(connection)
        connection.on_closing = self._subscriptions.delete_private
        connection.on_reply_to = self._subscriptions.wait_for_reply
        self._settler = Settler(connection, self._subscriptions, self._publisher)
        self._transactions = Transactions(connection, self._settler)
        self._liveness = Liveness(limits, now_ms)
        self._sync = sync
        self._server = server
        self._greeting = greeting
        self._caller = caller
        self._wants_login = authenticator.wants_login
        self._agreement: connect.Agreement | None = None
        """The agreement with a CONNECT while its login is still being checked."""
        self.on_connected: Callable[[str], None] = ignore
        """Called with the user's name when CONNECT is answered."""
        self._kept: list[Frame] = []
        """Frames from the first SEND on that wait because the user is over its rate."""
        self._is_input_over = False
        self._now_ms = now_ms
        self._sniffs = sniffs
        self.unfinished_bytes = 0
        """How many bytes the last read left in an unfinished frame and in open transactions."""
        self.is_another = True
        """Whether the last read completed a frame, so that the unfinished one is a new one."""

    @property
    def connected(self) -> bool:
        """Whether CONNECT was answered."""
        return bool(self._connection.version)

    @property
    def joined(self) -> bool:
        """Whether the client accepts any number of frames in one WebSocket message."""
        return extensions.JOINED in self._connection.extensions

    @property
    def ending(self) -> bool:
        """Whether the session takes no more input. The last frames may still wait for the disk."""
        return self._connection.ending

    @property
    def closing(self) -> bool:
        """Whether the output is complete, so that the socket can be closed after sending it."""
        return self._connection.closing

    @property
    def congested(self) -> bool:
        """Whether reading must stop, until the session calls `changed` and this is false again."""
        # Nothing is read while the login is being checked.
        connection = self._connection
        return connection.unconfirmed.is_over_limit or self._agreement is not None or connection.throttle.is_on

    @property
    def failure(self) -> str:
        """Why the session failed, for the log; empty if it did not."""
        return self._connection.failure

    @property
    def failed_by_rule(self) -> bool:
        """Whether `failure` is a rule of the protocol; if not, it is the text of an engine's error."""
        return self._connection.failed_by_rule

    def take_output(self) -> list[bytes]:
        """Return the output, in order, and clear it."""
        output = self._connection.take_output()
        if output:
            self._liveness.sent = True
        return output

    def receive(self, data: bytes, now_ms: int, wall_ms: int) -> None:
        """Carry out the frames that `data` completes. `now_ms` is from a clock that never jumps; `wall_ms` from the
        wall clock.
        """
        connection = self._connection
        if connection.ending:
            return
        connection.wall_ms = wall_ms
        self._now_ms = now_ms
        if self._wants_login:
            CURRENT_CALLER.set(self._caller)
        parser = self._parser
        self._liveness.heard(now_ms)
        while True:
            received = parser.feed(data)
            if self._kept:
                self._kept += received
            elif received:
                self._carry_out(received)
            if connection.ending or self._agreement is not None:
                return
            if parser.error is not None:
                self._refuse(parser.error)
                return
            # After a CONNECT the parser stops until its version is set.
            if not received or received[-1][0].command not in ("CONNECT", "STOMP"):
                break
            data = b""
        held, self.is_another = parser.unfinished_bytes, bool(received)
        self.unfinished_bytes = held + self._transactions.bytes
        self._liveness.unfinished(held, self.is_another, now_ms)

    def tick(self, now_ms: int) -> int:
        """Send a heart-beat or end the connection if it is time. Return when to call again."""
        connection = self._connection
        if connection.ending:
            if self._liveness.overdue(now_ms):
                connection.close()
        elif rule := self._liveness.broken(now_ms):
            connection.fail(ProtocolError(rule))
        elif self._liveness.beat():
            connection.write(frames.HEART_BEAT)
        return self._liveness.next_ms(now_ms)

    def reading(self, on: bool, now_ms: int) -> None:
        """Note that reading stopped or continued: a client that is not read can't be late."""
        self._liveness.reading(on, now_ms)

    def pause(self) -> None:
        """Pause deliveries: the socket is full."""
        self._connection.is_paused = True
        self._subscriptions.pause()

    def resume(self) -> None:
        """Resume deliveries after `pause`."""
        self._connection.is_paused = False
        self._subscriptions.resume()

    def shut_down(self, reason: str) -> None:
        """End with an ERROR that gives the reason, unless the session is ending; waits for pending commits."""
        if not self._connection.ending:
            self._connection.fail(Unavailable(reason))

    def refuse(self, error: ProtocolError) -> None:
        """End with an ERROR for input that the transport can't accept."""
        self._connection.fail(error)

    def end_input(self) -> None:
        """End once all receipts are sent: the client closed its half without a DISCONNECT."""
        self._is_input_over = True
        if not self._kept:
            self._connection.finish(b"")

    def _released(self) -> None:
        """Carry out the frames that waited: the user is within its rate again."""
        connection = self._connection
        connection.wall_ms = self._authenticator.connections.host.wall_ms()
        CURRENT_CALLER.set(self._caller)
        kept, self._kept = self._kept, []
        self._carry_out(kept)
        if self._is_input_over and not self._kept:
            connection.finish(b"")
        connection.resume_reading()

    def connection_lost(self) -> None:
        """Requeue the deliveries and drop the open transactions: the socket is gone. Messages that were sent stay."""
        connection = self._connection
        connection.lost = True
        if not connection.ending:
            connection.ending = True
            self._on_ending()
        connection.closing = True
        connection.take_output()
        self._subscriptions.delete_private()
        connection.detach()
        self.on_connected = ignore

    def _on_ending(self) -> None:
        connection = self._connection
        if connection.open_connection is not None:
            connection.open_connection.close()
        connection.access.ack_ids.leave(connection.handle)
        self._parser.close()
        self._kept = []
        connection.throttle.close()
        self._publisher.close()
        self._transactions.close()
        self._subscriptions.close()

    def _refuse(self, error: ProtocolError) -> None:
        """End because of bytes that are not frames; answer HTTP in HTTP."""
        connection = self._connection
        may_be_another = self._sniffs and not connection.version
        line = error.shown if may_be_another and isinstance(error.shown, bytes) else b""
        if protocol := connect.greeting_of_another_protocol(line):
            last = connect.HTTP_ANSWER if protocol == "http" else b""
            connection.reject_protocol(f"{protocol} on the STOMP port", error, last)
        else:
            connection.fail(error)

    def _carry_out(self, received: list[Frame]) -> None:
        """Carry out frames in order. SEND and ACK, which are nearly all frames, are handled here."""
        connection = self._connection
        publisher, settler = self._publisher, self._settler
        receipt: bytes | None = None
        failure: ProtocolError | CurbstoneError | None = None
        left = iter(received)
        try:
            for head, varied, receipt, body in left:
                plan = head.plan
                if plan is not None:
                    block = plan.block_with(varied) if plan.is_aliased else plan.block + varied
                    target = plan.target
                    if not target.messages:
                        if connection.is_throttled:
                            self._kept = [(head, varied, receipt, body), *left]
                            break
                        if settler.opened or publisher.has_numbers:
                            self._make_room(target.name)
                        publisher.opened.append(target)
                    target.messages.append(Message(body, block, plan.orders))
                    target.receipts.append(receipt)
                elif head is ACK_BY_ID:
                    settler.ack_by_id(body, receipt)
                elif self._must_wait(head):
                    self._kept = [(head, varied, receipt, body), *left]
                else:
                    self._handle(head, varied, receipt, body)
                    if connection.ending:
                        break
        except (ProtocolError, CurbstoneError) as error:
            failure = error
        self._flush()
        if failure is not None:
            connection.fail(failure, receipt)

    def _must_wait(self, head: Head) -> bool:
        """Return whether a frame publishes and its user is over its rate. A login is a SEND that does not publish."""
        is_send = head.command == "SEND" and head.headers.get("destination") != SESSION_TOKEN
        return is_send and self._connection.is_throttled

    def _flush(self) -> None:
        """Hand the collected SENDs and ACKs to the engine."""
        if self._publisher.opened:
            self._publisher.flush()
        if self._settler.opened:
            self._settler.flush()

    def _make_room(self, name: QueueName) -> None:
        """Flush this read's ACKs for a queue before a SEND to it, because they make room under its cap."""
        if self._settler.holds(name):
            self._settler.flush()
        if self._publisher.has_numbers and self._publisher.holds(name):  # the same queue, but another producer or none
            self._publisher.flush()

    def _handle(self, head: Head, varied: bytes, receipt: bytes | None, body: bytes) -> None:
        command = head.command
        if not self._connection.version and command not in ("CONNECT", "STOMP"):
            raise ProtocolError(f"send CONNECT before {command}")
        if command == "SEND":
            self._on_send(head, varied, receipt, body)
            return
        if command != "ACK":
            self._flush()
            if self._connection.ending:
                return
        _HANDLERS[command](self, head, receipt, body)

    def _on_connect(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        connection = self._connection
        if connection.version:
            raise ProtocolError("already connected")
        agreement = connect.agree(head, connection.limits)
        if body and agreement.version != V10:
            raise ProtocolError(f"a {head.command} frame can't have a body", body[:80])
        connection.client_id = head.headers.get("client-id", "")
        self._agreement = agreement
        if connection.access.identity.user:
            self._admitted(connection.access)
            return
        has_returned = False

        def done(answer: AuthorizedBroker | CurbstoneError) -> None:
            self._admitted(answer)
            if has_returned and not connection.ending:  # frames that were sent after CONNECT meanwhile
                self.receive(b"", self._now_ms, connection.wall_ms)

        self._authenticator.admit(connect.credentials_of(head), self._caller, done)
        has_returned = True

    def _admitted(self, answer: AuthorizedBroker | CurbstoneError) -> None:
        """Answer the CONNECT according to the result of its login."""
        connection = self._connection
        agreement, self._agreement = self._agreement, None
        if connection.ending or agreement is None:
            return
        connection.extensions = agreement.extensions
        try:
            if isinstance(answer, CurbstoneError):
                raise answer
            self._authenticator.connections.check(answer)
        except CurbstoneError as error:
            connection.fail(error)
            return
        if Capability.NUMBERS not in answer.capabilities:
            connection.extensions -= {extensions.NUMBERS}
        connection.access = answer
        connection.open_connection = self._authenticator.connections.add(
            answer,
            self._caller,
            end=connection.fail,
            changed=self._check_rights,
            unacked=lambda: self._subscriptions.unsettled,
        )
        connection.handle = answer.ack_ids.enter(self._subscriptions)
        connection.version = self._parser.version = agreement.version
        beats = agreement.server_beats_ms, agreement.client_beats_ms
        self._liveness.agreed(*beats)
        more = self._greeting + connect.expiry(answer, connection.wall_ms)
        if connection.extensions:
            more += (extensions.line(connection.extensions), f"x-body-max:{connection.limits.body_bytes_max}")
        connection.write(frames.connected(agreement.version, beats, connection.name, self._server, self._sync, more))
        self.on_connected(answer.identity.user)

    def _check_rights(self) -> None:
        """End the connection if the rights have changed and one of its subscriptions has lost its right."""
        CURRENT_CALLER.set(self._caller)
        try:
            self._subscriptions.check()
        except CurbstoneError as error:
            self._connection.fail(error)

    def _on_send(self, head: Head, varied: bytes, receipt: bytes | None, body: bytes) -> None:
        if head.headers.get("destination") == SESSION_TOKEN and self._takes_tokens:
            self._renew(head, receipt, body)
            return
        plan = self._publisher.plan(head, varied)
        message = plan.message(varied, body)
        if plan.transaction is not None:
            self._flush()
            self._connection.charge(1, len(body) + len(message.headers))
            self._transactions.send(head, plan.target, message)
            self._connection.receipt(receipt)
            return
        if plan.key:
            self._flush()
            self._publisher.publish_once(plan, receipt, message)
            return
        if not plan.target.messages:
            self._make_room(plan.target.name)
        self._publisher.add(plan, receipt, message)

    @property
    def _takes_tokens(self) -> bool:
        """Whether a SEND can log in. With a single queue and no users, every destination is that queue."""
        return self._connection.single_queue is None or self._wants_login

    def _renew(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        """Log in with the token in the body; the RECEIPT says until when the login is valid."""
        connection = self._connection
        if "transaction" in head.headers:
            raise ProtocolError("a login can't be part of a transaction")

        def done(answer: AuthorizedBroker | CurbstoneError) -> None:
            if connection.ending:
                return
            if isinstance(answer, CurbstoneError):
                connection.refuse(answer, [receipt])
                return
            connection.access = answer
            if receipt is not None:
                connection.write(frames.receipt(receipt, connect.expiry(answer, connection.wall_ms)))

        assert connection.open_connection is not None
        connection.open_connection.renew(Credentials("", body.decode("utf-8", "replace").strip()), done)

    def _on_ack(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        if "transaction" in head.headers:
            self._flush()
            self._transactions.ack(head)
            self._connection.receipt(receipt)
        else:
            self._settler.ack(head, receipt)

    def _on_nack(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        if self._connection.version == V10:
            raise ProtocolError("NACK is not part of STOMP 1.0; connect with accept-version:1.1,1.2")
        if "transaction" in head.headers:
            self._transactions.nack(head)
            self._connection.receipt(receipt)
        else:
            self._settler.nack(head, receipt)

    def _on_subscribe(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        self._subscriptions.subscribe(head, receipt)

    def _on_unsubscribe(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        self._subscriptions.unsubscribe(head, receipt)
        self._subscriptions.count()

    def _on_begin(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        self._transactions.begin(head)
        self._connection.receipt(receipt)

    def _on_commit(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        for subscription in self._transactions.commit(head, receipt):
            self._subscriptions.drop_drained(subscription)

    def _on_abort(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        self._transactions.abort(head)
        self._connection.receipt(receipt)

    def _on_disconnect(self, head: Head, receipt: bytes | None, body: bytes) -> None:
        self._connection.finish(frames.receipt(receipt) if receipt is not None else b"")


_HANDLERS: dict[str, Callable[[Session, Head, bytes | None, bytes], None]] = {
    "ACK": Session._on_ack,
    "NACK": Session._on_nack,
    "SUBSCRIBE": Session._on_subscribe,
    "UNSUBSCRIBE": Session._on_unsubscribe,
    "BEGIN": Session._on_begin,
    "COMMIT": Session._on_commit,
    "ABORT": Session._on_abort,
    "DISCONNECT": Session._on_disconnect,
    "CONNECT": Session._on_connect,
    "STOMP": Session._on_connect,
}
