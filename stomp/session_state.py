"""What the parts of one session share: version, output, and the way it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.traffic import Traffic
from curbstone.net.unconfirmed import Unconfirmed
from curbstone.stomp import features, frames
from curbstone.stomp.destinations import Destination, parse_destination
from curbstone.stomp.errors import ProtocolError
from curbstone.stomp.features import NotUnsettled
from curbstone.stomp.limits import Limits

if TYPE_CHECKING:
    from curbstone.access.door import Access
    from curbstone.access.presence import Presence
    from curbstone.access.rates import Brake


def _nothing(_more_bytes: int = 0) -> None:
    """Nobody is to be told."""


def _no_reply(_destination: str, _queue: QueueName) -> None:
    """Nobody waits for one."""


class SessionState:
    """The state and the output of one connection.

    open ──fail, finish──▶ ending ──everything handed to the engine is done──▶ closing

    While it is ending nothing more is read or delivered; its last frame waits for the commits
    under way, so that their RECEIPTs go out before it. At closing the output is complete.
    """

    def __init__(
        self,
        access: Access,
        limits: Limits,
        name: str,
        single_queue: QueueName | None,
        changed: Callable[[int], None],
        traffic: Traffic,
        brake: Brake,
    ) -> None:
        """`brake`: on while the user publishes more than its rate."""
        self.access = access
        """What the client may do; nobody's before its login."""
        self.presence: Presence | None = None
        """From its login on."""
        self.traffic = traffic
        self.limits = limits
        self.name = name
        self.single_queue = single_queue
        self.version = ""
        self.features: frozenset[str] = frozenset()
        """What CONNECT asked for beyond STOMP, see `features.py`."""
        self.handle = ""
        """What its ackIds begin with, see `access.ack_ids`; from its login on."""
        self.client_id = ""
        """What the client calls itself in CONNECT, if it says so."""
        self.wall_ms = 0
        """Wall-clock time of the current read, for headers that name a time."""
        self._output: list[bytes] = []
        self.held = False
        """Whether the socket takes no more; consumers are on hold."""
        self.ending = False
        self.closing = False
        self.lost = False
        self.private: set[QueueName] = set()
        """Queues that go with the connection."""
        self.failure = ""
        """The rule that was broken, for the log."""
        self.failed_by_rule = False
        """Whether `failure` is a rule of the protocol; else it is what the engine refused."""
        self.on_ending: Callable[[], None] = _nothing
        self.on_closing: Callable[[], None] = _nothing
        self.on_reply_wanted: Callable[[str, QueueName], None] = _no_reply
        """A message was sent that wants its answer in this temporary queue of ours."""
        self._changed = changed
        self._last = b""
        self.unconfirmed = Unconfirmed(limits.unconfirmed_max, limits.unconfirmed_bytes_max)
        self.brake = brake

    def let_go(self) -> None:
        """The connection is gone: drop the callbacks, which would keep it in memory. The engine may still call back."""
        self.on_ending = self.on_closing = self._changed = _nothing
        self.on_reply_wanted = _no_reply

    def destination(self, text: str) -> Destination:
        """Return what a destination of the client means; raise ProtocolError."""
        return parse_destination(text, self.name, self.single_queue, self.access.home)

    def write(self, data: bytes) -> None:
        """Send these bytes; in one piece with everything else of this turn, unless that becomes too much."""
        if self.closing:  # it did not wait for the disk to the end, and its own half is closed
            return
        self._output.append(data)
        self._changed(len(data))

    def take_output(self) -> list[bytes]:
        """Return the bytes to send, in order, and forget them."""
        output, self._output = self._output, []
        return output

    def reads_on(self) -> None:
        """Say that what kept it from being read may be over."""
        self._changed(0)

    def receipt(self, receipt: bytes | None) -> None:
        """Send the RECEIPT, if one was asked for."""
        if receipt is not None:
            self.write(frames.receipt(receipt))

    @property
    def is_braked(self) -> bool:
        """Whether nothing may be published now; asked before it is."""
        meter = self.access.identity.meter
        return meter is not None and self.brake.stops(meter)

    def charge(self, count: int, size: int) -> None:
        """Count messages that came by the user's rate."""
        meter = self.access.identity.meter
        if meter is not None:
            meter.count(count, size)

    def started(self, count: int, size: int = 0) -> None:
        """Count frames handed to the engine that must be on disk before the connection may end."""
        self.unconfirmed.add(count, size)

    def confirmed(self, count: int, size: int = 0) -> None:
        """Undo `started`: the engine called back for these."""
        if self.unconfirmed.remove(count, size):
            self._changed(0)
        if self.ending and not self.unconfirmed.count:
            self.close()

    def refuse(self, error: CurbstoneError | NotUnsettled, receipts: Sequence[bytes | None]) -> None:
        """Say that what these frames asked for was not done, and go on; end if that can't be said."""
        if self.lost:
            return
        if self.tells_refusals(receipts):
            self.traffic.refuse(error)
            self.write(features.refusals([receipt for receipt in receipts if receipt is not None], error))
        else:
            self.fail(error, receipts[0] if receipts else None)

    def tells_refusals(self, receipts: Sequence[bytes | None]) -> bool:
        """Whether the client knows refusals, and each of these frames asked for a receipt that can be one."""
        return features.REFUSALS in self.features and bool(receipts) and None not in receipts

    def fail(self, error: ProtocolError | CurbstoneError, receipt: bytes | None = None) -> None:
        """End with an ERROR; the first one counts. It takes the place of a RECEIPT for DISCONNECT that still waits."""
        if self.closing or self.failure:
            return
        self.failure = str(error)
        self.traffic.refuse(error)
        self.failed_by_rule = isinstance(error, ProtocolError)
        if isinstance(error, ProtocolError):
            # Before CONNECT is answered nothing that came is shown: it may be a passcode.
            shown = error.shown if self.version else ""
            asked = receipt if error.receipt is None else error.receipt
            frame = frames.error(str(error), shown, asked, error.headers, self.version)
        else:
            # Before CONNECT is answered every client gets the code: it tells a wrong login from a server that is full.
            more = features.error_headers(error) if self.features or not self.version else ()
            frame = frames.error(str(error) or type(error).__name__, "", receipt, more, self.version)
        if self.ending:
            self._last = frame
        else:
            self.finish(frame)

    def finish(self, last: bytes) -> None:
        """End with this frame, as soon as nothing is unconfirmed."""
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
        """Send the last frame now and be done. The RECEIPT of a DISCONNECT says that all before it is on disk."""
        if self.closing:
            return
        self.ending = self.closing = True
        if self._last and (self.failure or not self.unconfirmed.count):
            self._output.append(self._last)
        self.on_closing()
        self._changed(0)
