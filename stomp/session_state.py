"""The state that the parts of one session share: the version, the output, and how the session ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.traffic import Traffic
from curbstone.core.values import ignore
from curbstone.net.in_flight import InFlight
from curbstone.stomp import extensions, frames
from curbstone.stomp.destinations import Destination, parse_destination
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.extensions import NotUnsettled
from curbstone.stomp.limits import Limits

if TYPE_CHECKING:
    from curbstone.access.authorization import AuthorizedBroker
    from curbstone.access.caller import Caller
    from curbstone.access.connections import OpenConnection
    from curbstone.access.rate_limit import Throttle


def _refuse_to_send(_data: bytes) -> bool:
    """Send nothing: the transport sends output at the end of the turn only."""
    return False


class SessionState:
    """The state and the output of one connection.

    open ──fail, finish──▶ ending ──everything handed to the engine is done──▶ closing

    While the connection is ending, nothing more is read or delivered. Its last frame waits for pending commits, so that
    their RECEIPTs are sent first. When it is closing, the output is complete.
    """

    def __init__(
        self,
        access: AuthorizedBroker,
        limits: Limits,
        name: str,
        single_queue: QueueName | None,
        changed: Callable[[int], None],
        traffic: Traffic,
        throttle: Throttle,
        caller: Caller,
    ) -> None:
        """`throttle` is on while the user publishes more than its rate."""
        self.access = access
        """The client's access; anonymous before its login."""
        self.open_connection: OpenConnection | None = None
        """Set at the login."""
        self.traffic = traffic
        self.limits = limits
        self.name = name
        self.single_queue = single_queue
        self.version = ""
        self.extensions: frozenset[str] = frozenset()
        """The extensions that CONNECT requested."""
        self.handle = ""
        """The first part of its ackIds, see `access.ack_ids`. Set at the login."""
        self.caller = caller
        self.client_id = ""
        """The client-id in CONNECT; empty if there is none."""
        self.wall_ms = 0
        """The wall-clock time of the current read, for headers that name a time."""
        self._output: list[bytes] = []
        self.is_paused = False
        """Whether deliveries are paused because the socket is full."""
        self.ending = False
        self.closing = False
        self.lost = False
        self.private: set[QueueName] = set()
        """The private queues, which are deleted with the connection."""
        self.failure = ""
        """Why the connection failed, for the log; empty if it did not."""
        self.failed_by_rule = False
        """Whether `failure` is a rule of the protocol; if not, it is the text of an engine's error."""
        self.on_ending: Callable[[], None] = ignore
        self.on_closing: Callable[[], None] = ignore
        self.on_reply_to: Callable[[str, QueueName], None] = ignore
        """Called with a destination and its temporary queue when a message names it as `reply-to`."""
        self._changed = changed
        self.send_at_once: Callable[[bytes], bool] = _refuse_to_send
        """Sends output now and not at the end of the turn; returns False if earlier output still waits."""
        self._last = b""
        self.unconfirmed = InFlight(limits.unconfirmed_max, limits.unconfirmed_bytes_max)
        self.throttle = throttle

    def detach(self) -> None:
        """Drop the callbacks: the engine may still refer to this state, which would keep the connection in memory."""
        self.on_ending = self.on_closing = self._changed = ignore
        self.send_at_once = _refuse_to_send
        self.on_reply_to = ignore

    def destination(self, text: str) -> Destination:
        """Parse a destination of the client; raise ProtocolError."""
        return parse_destination(text, self.name, self.single_queue, self.access.home)

    def write(self, data: bytes) -> None:
        """Add these bytes to the output. The output of one turn is sent together, unless it becomes too much."""
        if self.closing:  # the connection has stopped waiting for the disk
            return
        self._output.append(data)
        self._changed(len(data))

    def take_output(self) -> list[bytes]:
        """Return the output, in order, and clear it."""
        output, self._output = self._output, []
        return output

    def resume_reading(self) -> None:
        """Notify the owner that it may be able to read the client again."""
        self._changed(0)

    def receipt(self, receipt: bytes | None) -> None:
        """Send the RECEIPT, if the frame requested one."""
        if receipt is not None:
            self.write(frames.receipt(receipt))

    @property
    def is_throttled(self) -> bool:
        """Whether the user is over its rate, so that nothing may be published now."""
        meter = self.access.identity.meter
        return meter is not None and self.throttle.holds(meter)

    def charge(self, count: int, size: int) -> None:
        """Count messages and bytes towards the user's rate."""
        meter = self.access.identity.meter
        if meter is not None:
            meter.count(count, size)

    def started(self, count: int, size: int = 0) -> None:
        """Count frames handed to the engine. The connection does not end before they are on disk."""
        self.unconfirmed.add(count, size)

    def confirmed(self, count: int, size: int = 0) -> None:
        """Undo `started`: the engine has called back for these frames."""
        if self.unconfirmed.remove(count, size):
            self._changed(0)
        if self.ending and not self.unconfirmed.count:
            self.close()

    def refuse(self, error: CurbstoneError | NotUnsettled, receipts: Sequence[bytes | None]) -> None:
        """Answer these frames with refusals, or end the connection if the client does not support refusals."""
        if self.lost:
            return
        if self.can_refuse(receipts):
            self.traffic.refuse(error)
            self.write(extensions.refusals([receipt for receipt in receipts if receipt is not None], error))
        else:
            self.fail(error, receipts[0] if receipts else None)

    def can_refuse(self, receipts: Sequence[bytes | None]) -> bool:
        """Return whether the client supports refusals, and each of these frames has a receipt."""
        return extensions.REFUSALS in self.extensions and bool(receipts) and None not in receipts

    def fail(self, error: ProtocolError | CurbstoneError, receipt: bytes | None = None) -> None:
        """End with an ERROR; only the first one counts. It replaces the pending RECEIPT of a DISCONNECT."""
        if self.closing or self.failure:
            return
        self.failure = str(error)
        self.traffic.refuse(error)
        self.failed_by_rule = isinstance(error, ProtocolError)
        if isinstance(error, ProtocolError):
            # Before CONNECT is answered, no input is shown: it may be a passcode.
            shown = error.shown if self.version else ""
            asked = receipt if error.receipt is None else error.receipt
            frame = frames.error(str(error), shown, asked, error.headers, self.version)
        else:
            # Before CONNECT is answered, every client gets the code: it distinguishes a wrong login from a full server.
            more = extensions.error_headers(error) if self.extensions or not self.version else ()
            frame = frames.error(str(error) or type(error).__name__, "", receipt, more, self.version)
        if self.ending:
            self._last = frame
        else:
            self.finish(frame)

    def reject_protocol(self, failure: str, error: ProtocolError, last: bytes) -> None:
        """End now with these bytes: the client speaks another protocol."""
        self.failure = failure
        self.traffic.refuse(error)
        self.finish(last)
        self.close()

    def finish(self, last: bytes) -> None:
        """End with this frame, once all frames handed to the engine are done."""
        if self.ending:
            return
        self.ending = True
        self._last = last
        self.on_ending()
        if not self.unconfirmed.count:
            self.close()
        else:
            self._changed(0)

    def close(self) -> None:
        """Send the last frame now and end. The RECEIPT of a DISCONNECT is sent only if all earlier ones are on disk."""
        if self.closing:
            return
        self.ending = self.closing = True
        if self._last and (self.failure or not self.unconfirmed.count):
            self._output.append(self._last)
        self.on_closing()
        self._changed(0)
