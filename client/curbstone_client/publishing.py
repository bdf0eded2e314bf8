"""Publishing: what was sent and is not confirmed, in order, over as many connections as it takes.

A lane is all that one client sends to one destination; its frames are numbered, and each asks for a receipt that
says lane and number. What is unconfirmed when a connection is lost goes out again on the next, first and in order. A
lane whose queue is full is held: after the time that the server said its first message is tried, and all others
behind it once that one is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from curbstone_client.content import Body, encode, lines
from curbstone_client.errors import ClientError, QueueFull, TooLarge, Unknown
from curbstone_client.link import Link, error_of
from curbstone_client.outcome import Outcome
from curbstone_client.wire import CONTENT_LENGTH_FROM, Delivery, escape, parse_head

WINDOW = 10_000
WINDOW_BYTES = 8 * 1024 * 1024

FULL_RETRY_S = 1.0
"""After so long a full queue is tried again, if the server names no time."""
_HEADS_MAX = 256
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that is on disk."""

    id: str
    """The server's; empty where it did not say."""
    maybe_repeated: bool
    """It was sent again over another connection, and the server could not tell whether it had it: it may be there
    twice."""


class Confirm(Outcome):
    """One message on its way. The shells add the waiting."""

    __slots__ = ("_lines", "frame", "lane", "order", "receipt", "resent")

    def __init__(self, lane: Lane, receipt: bytes, frame: bytes, order: int) -> None:
        # Written out: a call to the base for each message costs more than it is worth.
        self.done = False
        self.error = None
        self._waiter = None
        self._seen = False
        self.lane = lane
        self.receipt = receipt
        self.frame = frame
        self.order = order
        self.resent = False
        self._lines = b""

    def stored(self) -> Stored:
        """Return how it was stored, once it is done; raise what it was refused for."""
        self.check()
        headers = parse_head(self._lines) if self._lines else {}
        return Stored(headers.get("x-msg-id", ""), self.resent)

    def confirmed(self, more: bytes) -> None:
        """It is on disk; `more` are further lines of the receipt."""
        self._lines = more
        self.frame = b""
        self.finish()


class Lane:
    """What goes to one destination."""

    __slots__ = ("_heads", "destination", "held", "number", "owner", "prefix", "probe", "retry_at")

    def __init__(self, index: int, destination: str, owner: object) -> None:
        self.owner = owner
        """The shell's client."""
        self.destination = destination
        self.prefix = b"%d." % index
        self.number = 0
        self.held: dict[bytes, Confirm] | None = None
        """What waits for room, in order; None while the lane is open."""
        self.probe: Confirm | None = None
        """The first of those, once it was sent again."""
        self.retry_at = _NEVER
        self._heads: dict[str, bytes] = {}

    def head(self, more: str) -> bytes:
        """Return the head of a SEND with these further lines, up to the number of its receipt."""
        head = self._heads.get(more)
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            head = f"SEND\ndestination:{escape(self.destination)}{more}\nreceipt:".encode() + self.prefix
            self._heads[more] = head
        return head


C = TypeVar("C", bound=Confirm)


class Publisher(Generic[C]):
    """The publishing of one client. Not safe for threads: the shell sees to that."""

    def __init__(
        self,
        link: Link,
        make: Callable[[Lane, bytes, bytes, int], C],
        *,
        owner: object = None,
        waits_when_full: bool = True,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._link = link
        self._make = make
        self._owner = owner
        self._waits_when_full = waits_when_full
        self._window = window
        self._window_bytes = window_bytes
        self._lanes: dict[str, Lane] = {}
        self._types: dict[str | None, str] = {}
        self._unconfirmed: dict[bytes, Confirm] = {}
        self._bytes = 0
        self._order = 0
        self._held: set[Lane] = set()
        self._refused: deque[Confirm] = deque(maxlen=100)
        self._flushes: list[tuple[int, Outcome]] = []
        self.on_room: Callable[[], None] | None = None
        """Called once when there is room in the window again. The shell's."""
        self.sent = self.confirmed = self.resent = 0

    # ------------------------------------------------------------ what the shell calls

    @property
    def has_room(self) -> bool:
        """Whether the window takes another message."""
        return len(self._unconfirmed) < self._window and self._bytes < self._window_bytes

    @property
    def unconfirmed(self) -> int:
        """Messages on their way."""
        return len(self._unconfirmed)

    def lane(self, destination: str) -> Lane:
        """Return the lane of a destination."""
        lane = self._lanes.get(destination)
        if lane is None:
            lane = self._lanes[destination] = Lane(len(self._lanes) + 1, destination, self._owner)
        return lane

    def send(self, lane: Lane, body: Body, more: str = "", type: str | None = None) -> C:
        """Send one message; `more` and `type` as `content.lines` says. Raise TypeError, ValueError or TooLarge."""
        data, kind = encode(body)
        if type is None and kind is not None:
            more += self._type_line(kind)
        most = self._link.body_bytes_max
        if most and len(data) > most:
            raise TooLarge(f"a body of {len(data)} bytes is larger than {most}", 413)
        number = lane.number = lane.number + 1
        receipt = b"%b%d" % (lane.prefix, number)
        if len(data) >= CONTENT_LENGTH_FROM or b"\0" in data:
            more += f"\ncontent-length:{len(data)}"
        frame = b"%b%d\n\n%b\0" % (lane.head(more), number, data)
        self._order = order = self._order + 1
        confirm = self._make(lane, receipt, frame, order)
        self._unconfirmed[receipt] = confirm
        self._bytes += len(frame)
        self.sent += 1
        if lane.held is not None:
            lane.held[receipt] = confirm
        elif self._link.is_up:
            output = self._link.output
            output.append(frame)
            if len(output) == 1:
                self._link.changed()
        return confirm

    def flush(self, outcome: Outcome) -> None:
        """Finish this when all that was sent so far has ended, with the first refusal that nobody was told of."""
        self._flushes.append((self._order, outcome))
        self._end_flushes()

    def close(self) -> None:
        """Give up what is not confirmed."""
        gone, self._unconfirmed = self._unconfirmed, {}
        self._bytes = 0
        for confirm in gone.values():
            confirm.finish(Unknown("the client was closed before the confirm came"))
        self._end_flushes()

    # ------------------------------------------------------------ see `link.Role`

    def up(self) -> None:
        """See `Role`: what is unconfirmed goes out again, in order."""
        for lane in self._held:
            lane.held = lane.probe = None
        self._held.clear()
        for confirm in self._unconfirmed.values():
            self.resent += confirm.resent
            self._link.write(confirm.frame)

    def down(self) -> None:
        """See `Role`: what was sent may be on disk or not; what waited for room was not sent."""
        for confirm in self._unconfirmed.values():
            lane = confirm.lane
            if lane.held is None or confirm is lane.probe or confirm.receipt not in lane.held:
                confirm.resent = True

    def collect(self) -> None:
        """See `Role`."""

    def delivered(self, deliveries: list[Delivery]) -> None:
        """See `Role`: this connection subscribes to nothing."""

    def receipts(self, pieces: list[bytes]) -> None:
        """See `Role`."""
        unconfirmed = self._unconfirmed
        pop = unconfirmed.pop
        size = 0
        for piece in pieces:
            receipt, _, more = piece.partition(b"\n")
            if more and b"x-error-code:" in more:
                self._refusal(receipt, parse_head(more))
                continue
            confirm = pop(receipt, None)
            if confirm is None:
                continue
            size += len(confirm.frame)
            self.confirmed += 1
            if confirm.lane.held is not None:
                self._leaves(confirm.lane, confirm)
            confirm.confirmed(more)
        self._bytes -= size
        self._progress()

    def failed(self, receipt: bytes | None, error: ClientError) -> None:
        """See `Role`: the one that was refused ends; all others go out again."""
        if receipt is not None:
            self._end(receipt, error)
            self._progress()

    def tick(self, now: float) -> float:
        """See `Role`: try full queues again."""
        due = _NEVER
        for lane in self._held:
            if lane.probe is None and lane.held and self._link.is_up:
                if now < lane.retry_at:
                    due = min(due, lane.retry_at)
                else:
                    lane.probe = min(lane.held.values(), key=_order)
                    self._link.write(lane.probe.frame)
        return due

    # ------------------------------------------------------------ inside

    def _type_line(self, kind: str) -> str:
        line = self._types.get(kind)
        if line is None:
            line = self._types[kind] = lines(kind)
        return line

    def _refusal(self, receipt: bytes, headers: dict[str, str]) -> None:
        """The server refused a message, and the connection goes on."""
        error = error_of(headers, headers.get("x-error", "no reason given"))
        confirm = self._unconfirmed.get(receipt)
        if confirm is not None and isinstance(error, QueueFull) and self._waits_when_full:
            self._hold(confirm, error)
        else:
            self._end(receipt, error)

    def _hold(self, confirm: Confirm, error: QueueFull) -> None:
        """Keep a message until there is room; what comes behind it on its lane waits, too."""
        lane = confirm.lane
        if lane.held is None:
            lane.held = {}
            self._held.add(lane)
        lane.held[confirm.receipt] = confirm
        if confirm is lane.probe:
            lane.probe = None
        lane.retry_at = self._link.now + (error.retry_after or FULL_RETRY_S)
        self._link.due = min(self._link.due, lane.retry_at)

    def _leaves(self, lane: Lane, confirm: Confirm) -> None:
        """A message of a held lane has ended: if it was the one that was tried, there may be room for the others."""
        assert lane.held is not None
        lane.held.pop(confirm.receipt, None)
        if confirm is lane.probe or not lane.held:
            waiting, lane.held, lane.probe = lane.held, None, None
            self._held.discard(lane)
            for each in sorted(waiting.values(), key=_order):
                self._link.write(each.frame)

    def _end(self, receipt: bytes, error: ClientError) -> None:
        confirm = self._unconfirmed.pop(receipt, None)
        if confirm is not None:
            self._bytes -= len(confirm.frame)
            if confirm.lane.held is not None:
                self._leaves(confirm.lane, confirm)
            confirm.finish(error)
            self._refused.append(confirm)

    def _progress(self) -> None:
        if self._flushes:
            self._end_flushes()
        if self.on_room is not None and self.has_room:
            on_room, self.on_room = self.on_room, None
            on_room()

    def _end_flushes(self) -> None:
        oldest = next(iter(self._unconfirmed.values())).order if self._unconfirmed else self._order + 1
        ended = [outcome for order, outcome in self._flushes if order < oldest]
        self._flushes = [(order, outcome) for order, outcome in self._flushes if order >= oldest]
        for outcome in ended:
            outcome.finish(self._first_refusal())

    def _first_refusal(self) -> Exception | None:
        while self._refused:
            confirm = self._refused.popleft()
            if not confirm.seen:
                return confirm.error
        return None


def _order(confirm: Confirm) -> int:
    return confirm.order
