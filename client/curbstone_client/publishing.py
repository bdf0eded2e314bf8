"""Publishing: what was sent and is not confirmed, in order, over as many connections as it takes.

A lane is all that one client sends to one destination; its frames are numbered, and each asks for a receipt that
says lane and number. What is unconfirmed when a connection is lost goes out again on the next, first and in order. A
lane whose queue is full is held: after the time that the server said its first message is tried, and all others
behind it once that one is stored.

What goes to a queue is numbered: the server stores a number of this producer once, however often it is sent, and none
behind one that is missing. Where a message is refused for good, those behind it on their way are refused too, as
coming too early; they are held like those of a full queue, and the first of them then names the last that is stored.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from curbstone_client.content import Body, encode, lines
from curbstone_client.errors import ClientError, NotSupported, QueueFull, TooLarge, Unknown
from curbstone_client.link import NUMBERS, Link, error_of
from curbstone_client.outcome import Outcome
from curbstone_client.wire import CONTENT_LENGTH_FROM, Delivery, escape, parse_head

WINDOW = 10_000
WINDOW_BYTES = 8 * 1024 * 1024

FULL_RETRY_S = 1.0
"""After so long a full queue is tried again, if the server names no time."""
LOOK_AGAIN_S = 0.05
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
    repeated: bool = False
    """The server had it already under this number, and did not store it again."""


class Confirm(Outcome):
    """One message on its way. The shells add the waiting."""

    __slots__ = ("_lines", "expected", "frame", "lane", "order", "receipt", "resent")

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
        self.expected = 0
        """The number that the server wanted when this came too early; else 0."""
        self._lines = b""

    def stored(self) -> Stored:
        """Return how it was stored, once it is done; raise what it was refused for."""
        self.check()
        headers = parse_head(self._lines) if self._lines else {}
        is_repeat = "x-duplicate" in headers
        return Stored(headers.get("x-msg-id", ""), self.resent and not self.lane.producer, is_repeat)

    def confirmed(self, more: bytes) -> None:
        """It is on disk; `more` are further lines of the receipt."""
        self._lines = more
        self.frame = b""
        self.finish()


class Lane:
    """What goes to one destination."""

    __slots__ = ("_heads", "destination", "held", "number", "owner", "prefix", "probe", "producer", "retry_at")

    def __init__(self, index: int, destination: str, owner: object, producer: str) -> None:
        self.producer = producer
        """Whose numbers the messages have; empty where they have none."""
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
            producer = self.producer and f"\nx-producer:{self.producer}"
            text = f"SEND\ndestination:{escape(self.destination)}{producer}{more}\nreceipt:"
            head = self._heads[more] = text.encode() + self.prefix
        return head

    def unnumbered(self) -> None:
        """The server keeps no numbers."""
        self.producer = ""
        self._heads.clear()


NO_NUMBERS = "this server keeps no numbers of producers"

C = TypeVar("C", bound=Confirm)


class Publisher(Generic[C]):
    """The publishing of one client. Not safe for threads: the shell sees to that."""

    def __init__(
        self,
        link: Link,
        make: Callable[[Lane, bytes, bytes, int], C],
        *,
        owner: object = None,
        producer: str | None = None,
        waits_when_full: bool = True,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._link = link
        self._make = make
        self._owner = owner
        self._producer = producer or secrets.token_hex(10)
        self._has_own_numbers = producer is not None
        """Whether the application gives each message its number."""
        self._is_numbered = True
        """Whether the server keeps numbers, as far as is known."""
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
            producer = self._producer if self._is_numbered and destination.startswith("/queue/") else ""
            lane = self._lanes[destination] = Lane(len(self._lanes) + 1, destination, self._owner, producer)
        return lane

    def send(self, lane: Lane, body: Body, more: str = "", type: str | None = None, seq: int | None = None) -> C:
        """Send one message; `more` and `type` as `content.lines` says. Raise TypeError, ValueError or TooLarge.

        `seq`: its number, where the application numbers its messages.
        """
        data, kind = encode(body)
        if type is None and kind is not None:
            more += self._type_line(kind)
        most = self._link.body_bytes_max
        if most and len(data) > most:
            raise TooLarge(f"a body of {len(data)} bytes is larger than {most}", 413)
        number = lane.number + 1
        if self._has_own_numbers or seq is not None:
            number = self._own_number(lane, seq)
            if number != lane.number + 1 or not lane.number:
                more += f"\nx-after:{lane.number}"
        lane.number = number
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
        if self._is_numbered and NUMBERS not in self._link.features:
            self._go_without_numbers()
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
                self._leaves(confirm.lane, confirm, is_stored=True)
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
                if now >= lane.retry_at:
                    self._probe(lane, now)
                if lane.probe is None:
                    due = min(due, lane.retry_at)
        return due

    # ------------------------------------------------------------ inside

    def _own_number(self, lane: Lane, seq: int | None) -> int:
        """Return the number that the application gives a message; raise ValueError, NotSupported."""
        if not self._has_own_numbers:
            raise ValueError("seq is for a client with a producer: Client(…, producer=NAME)")
        if not lane.destination.startswith("/queue/"):
            if seq is not None:
                raise ValueError("only what goes to a queue has a seq")
            return lane.number + 1
        if seq is None or seq <= lane.number:
            raise ValueError(f"a client with a producer gives each message a seq above its last, {lane.number}")
        if not lane.producer:
            raise NotSupported(NO_NUMBERS)
        return seq

    def _go_without_numbers(self) -> None:
        """The server keeps no numbers: what is sent again may be stored twice."""
        self._is_numbered = False
        line = f"\nx-producer:{self._producer}\n".encode()
        for confirm in list(self._unconfirmed.values()):
            if self._has_own_numbers and confirm.lane.producer:
                self._end(confirm.receipt, NotSupported(NO_NUMBERS))
            elif line in confirm.frame:
                confirm.frame = confirm.frame.replace(line, b"\n", 1)
                self._bytes -= len(line) - 1
        for lane in self._lanes.values():
            lane.unnumbered()
        self._progress()

    def _type_line(self, kind: str) -> str:
        line = self._types.get(kind)
        if line is None:
            line = self._types[kind] = lines(kind)
        return line

    def _refusal(self, receipt: bytes, headers: dict[str, str]) -> None:
        """The server refused a message, and the connection goes on."""
        error = error_of(headers, headers.get("x-error", "no reason given"))
        confirm = self._unconfirmed.get(receipt)
        expected = headers.get("x-expected", "")
        if confirm is not None and expected.isdigit():
            confirm.expected = int(expected)
            self._hold(confirm, 0.0)
        elif confirm is not None and isinstance(error, QueueFull) and self._waits_when_full:
            self._hold(confirm, error.retry_after or FULL_RETRY_S)
        else:
            self._end(receipt, error)

    def _hold(self, confirm: Confirm, wait: float) -> None:
        """Keep a message for so many seconds; what comes behind it on its lane waits, too."""
        lane = confirm.lane
        is_new = lane.held is None
        if lane.held is None:
            lane.held = {}
            self._held.add(lane)
        lane.held[confirm.receipt] = confirm
        if wait or is_new or confirm is lane.probe:
            self._try_at(lane, self._link.now + wait)
        if confirm is lane.probe:
            lane.probe = None

    def _try_at(self, lane: Lane, time: float) -> None:
        lane.retry_at = time
        self._link.due = min(self._link.due, time)

    def _probe(self, lane: Lane, now: float) -> None:
        """Send the first of what a lane holds, to see whether it is taken now."""
        assert lane.held
        first = min(lane.held.values(), key=_order)
        frame = first.frame
        if lane.producer and first is not next(each for each in self._unconfirmed.values() if each.lane is lane):
            lane.retry_at = now + LOOK_AGAIN_S  # one in front of it has not ended yet, and must not be passed over
            return
        if first.expected:
            # In front, for of a header that is repeated the first counts: an application's own number has one.
            frame = b"SEND\nx-after:%d\n" % (first.expected - 1) + frame.removeprefix(b"SEND\n")
        lane.probe = first
        self._link.write(frame)

    def _leaves(self, lane: Lane, confirm: Confirm, *, is_stored: bool) -> None:
        """A message of a held lane has ended: if it was the one that was tried, there may be room for the others.

        Of a numbered lane, those behind one that was refused would come too early, but for the first of them.
        """
        assert lane.held is not None
        lane.held.pop(confirm.receipt, None)
        if lane.held and lane.producer and not is_stored:
            if confirm is lane.probe:
                lane.probe = None
                self._try_at(lane, self._link.now)
        elif confirm is lane.probe or not lane.held:
            waiting, lane.held, lane.probe = lane.held, None, None
            self._held.discard(lane)
            for each in sorted(waiting.values(), key=_order):
                self._link.write(each.frame)

    def _end(self, receipt: bytes, error: ClientError) -> None:
        confirm = self._unconfirmed.pop(receipt, None)
        if confirm is not None:
            self._bytes -= len(confirm.frame)
            if confirm.lane.held is not None:
                self._leaves(confirm.lane, confirm, is_stored=False)
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
