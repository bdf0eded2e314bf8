"""Publishing: unconfirmed messages, kept in order until they are confirmed. Without a socket.

A series is everything that one client sends to one destination. Its frames are numbered, and each requests a receipt
that has the series and the number. When a connection is lost, the unconfirmed frames are sent again on the next one,
before anything else and in order. When a queue is full, its series is held: after the Retry-After of the server, the
first held message is sent again alone, and once it is stored the others follow.

A message for a queue also has a number of this producer. The server stores a message with a given number once, however
often it is sent, and stores none if the previous number is missing. So when a message is refused permanently, the
server also refuses those sent after it, because their numbers are too high. They are held like those of a full queue.
The first of them is then sent with the last number that is stored (`x-after`), so that the server accepts the gap.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from curbstone_client.content import Body, encode, lines
from curbstone_client.errors import ClientError, NotSupported, QueueFull, TooLarge, Unknown
from curbstone_client.link import NUMBERS, Link, error_of
from curbstone_client.outcome import Outcome
from curbstone_client.wire import CONTENT_LENGTH_FROM, Delivery, escape, parse_head

log = logging.getLogger("curbstone_client")

WINDOW = 10_000
WINDOW_BYTES = 8 * 1024 * 1024

FULL_RETRY_S = 1.0
"""After so long a full queue is retried, if the server sends no Retry-After."""
LOOK_AGAIN_S = 0.05
"""After so long a held series is checked again, if an earlier message has not ended yet."""
FULL_WARNING_S = 60.0
"""The minimum interval of warnings that a publisher waits for a full queue."""
_HEADS_MAX = 256
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a publish: the message is on disk."""

    id: str
    """The message id; empty if the server did not send it."""
    maybe_repeated: bool
    """Whether the message may be stored twice: it was sent again, and without numbers the server can't recognize it."""
    repeated: bool = False
    """Whether it was not stored again: the server has it under the same number, or has another one with its unique
    name. Then `id` is that one's."""


class Confirm(Outcome):
    """The outcome of a sent message. The shells add waiting."""

    __slots__ = ("_lines", "expected", "frame", "series", "order", "receipt", "resent")

    def __init__(self, series: Series, receipt: bytes, frame: bytes, order: int) -> None:
        # The attributes of `Outcome` are set here, because a call of its `__init__` would take time for each message.
        self.done = False
        self.error = None
        self._waiter = None
        self._seen = False
        self.series = series
        self.receipt = receipt
        self.frame = frame
        self.order = order
        self.resent = False
        self.expected = 0
        """The number that the server expected when it refused this message as out of order; 0 otherwise."""
        self._lines = b""

    def stored(self) -> Stored:
        """Return how the message was stored, or raise its error. Call this only once it is done."""
        self.check()
        headers = parse_head(self._lines) if self._lines else {}
        is_repeat = "x-duplicate" in headers
        is_stored_once = bool(self.series.producer) or self.series.is_keyed
        return Stored(headers.get("x-msg-id", ""), self.resent and not is_stored_once, is_repeat)

    def confirmed(self, more: bytes) -> None:
        """The message is on disk. `more` has the further header lines of the receipt."""
        self._lines = more
        self.frame = b""
        self.finish()


class Series:
    """Everything that one client sends to one destination."""

    __slots__ = (
        "_heads", "destination", "held", "is_keyed", "number", "owner", "prefix", "probe", "producer", "retry_at",
        "warn_at",
    )  # fmt: skip

    def __init__(self, index: int, destination: str, owner: Any, producer: str, *, is_keyed: bool = False) -> None:
        self.is_keyed = is_keyed
        """Whether each message has an idempotency key, and so no number of a producer."""
        self.producer = producer
        """The name of the producer that numbers the messages; empty if they have no numbers."""
        self.owner = owner
        """The client of the shell."""
        self.destination = destination
        self.prefix = b"%d." % index
        self.number = 0
        self.held: dict[bytes, Confirm] | None = None
        """The held messages, by receipt; None while the series is not held."""
        self.probe: Confirm | None = None
        """The held message that was sent again, as a probe."""
        self.retry_at = _NEVER
        self.warn_at = 0.0
        """From when on a warning of a full queue may be logged again."""
        self._heads: dict[str, bytes] = {}

    def head(self, more: str) -> bytes:
        """Return the head of a SEND with these further lines, up to the number in its receipt. Heads are cached."""
        head = self._heads.get(more)
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            producer = self.producer and f"\nx-producer:{self.producer}"
            text = f"SEND\ndestination:{escape(self.destination)}{producer}{more}\nreceipt:"
            head = self._heads[more] = text.encode() + self.prefix
        return head

    def unnumbered(self) -> None:
        """Send without numbers from now on, because the server keeps none."""
        self.producer = ""
        self._heads.clear()


NO_NUMBERS = "this server keeps no numbers of producers"

C = TypeVar("C", bound=Confirm)


class Publisher(Generic[C]):
    """The publishing of one client. Not thread-safe: the shell for threads calls it under a lock."""

    def __init__(
        self,
        link: Link,
        make: Callable[[Series, bytes, bytes, int], C],
        *,
        owner: Any = None,
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
        """Whether the application numbers the messages."""
        self._is_numbered = True
        """Whether the server keeps numbers. Assumed until a server says that it does not."""
        self._waits_when_full = waits_when_full
        self._window = window
        self._window_bytes = window_bytes
        self._series: dict[tuple[str, bool], Series] = {}
        self._types: dict[str | None, str] = {}
        self._unconfirmed: dict[bytes, Confirm] = {}
        self._bytes = 0
        self._order = 0
        self._held: set[Series] = set()
        self._refused: deque[Confirm] = deque(maxlen=100)
        self._flushes: list[tuple[int, Outcome]] = []
        self.on_room: Callable[[], None] | None = None
        """Set by the shell. Called once, when the window has space again; then it is None again."""
        self.sent = self.confirmed = self.resent = 0

    # ------------------------------------------------------------ what the shell calls

    @property
    def has_room(self) -> bool:
        """Whether the window has space for another message."""
        return len(self._unconfirmed) < self._window and self._bytes < self._window_bytes

    @property
    def unconfirmed(self) -> int:
        """The number of sent messages that have not ended yet."""
        return len(self._unconfirmed)

    def series(self, destination: str, *, is_keyed: bool = False) -> Series:
        """Return the series of a destination: for messages with idempotency keys, or for all others.

        Raise ValueError if messages for the destination can't have keys.
        """
        series = self._series.get((destination, is_keyed))
        if series is None:
            is_queue = destination.startswith("/queue/")
            if is_keyed and not is_queue:
                raise ValueError("a message for an event can't have an idempotency_key")
            producer = self._producer if self._is_numbered and is_queue and not is_keyed else ""
            series = Series(len(self._series) + 1, destination, self._owner, producer, is_keyed=is_keyed)
            self._series[destination, is_keyed] = series
        return series

    def send(self, series: Series, body: Body, more: str = "", type: str | None = None, seq: int | None = None) -> C:
        """Send one message, or keep it until there is a connection; return its outcome.

        `more` has the header lines made by `content.lines`, in which `type` is included already. `seq` is the message's
        number if the application numbers its messages. Raise TypeError, ValueError, TooLarge or NotSupported.
        """
        data, kind = encode(body)
        if type is None and kind is not None:
            more += self._type_line(kind)
        most = self._link.body_bytes_max
        if most and len(data) > most:
            raise TooLarge(f"a body of {len(data)} bytes is larger than {most}", 413)
        number = series.number + 1
        if seq is not None or (self._has_own_numbers and not series.is_keyed):
            number = self._own_number(series, seq)
            if number != series.number + 1 or not series.number:
                more += f"\nx-after:{series.number}"
        series.number = number
        receipt = b"%b%d" % (series.prefix, number)
        if len(data) >= CONTENT_LENGTH_FROM or b"\0" in data:
            more += f"\ncontent-length:{len(data)}"
        frame = b"%b%d\n\n%b\0" % (series.head(more), number, data)
        self._order = order = self._order + 1
        confirm = self._make(series, receipt, frame, order)
        self._unconfirmed[receipt] = confirm
        self._bytes += len(frame)
        self.sent += 1
        if series.held is not None:
            series.held[receipt] = confirm
        elif self._link.is_up:
            output = self._link.output
            output.append(frame)
            if len(output) == 1:
                self._link.changed()
        else:
            self._link.want()
        return confirm

    def flush(self, outcome: Outcome) -> None:
        """End the outcome when all messages sent so far have ended, with the first refusal not yet raised."""
        self._flushes.append((self._order, outcome))
        self._end_flushes()

    def close(self) -> None:
        """End the unconfirmed messages as Unknown."""
        gone, self._unconfirmed = self._unconfirmed, {}
        self._bytes = 0
        for confirm in gone.values():
            confirm.finish(Unknown("the client was closed before the confirm arrived"))
        self._end_flushes()

    # ------------------------------------------------------------ see `link.Role`

    def up(self) -> None:
        if self._is_numbered and NUMBERS not in self._link.features:
            self._go_without_numbers()
        for series in self._held:
            series.held = series.probe = None
        self._held.clear()
        for confirm in self._unconfirmed.values():
            self.resent += confirm.resent
            self._link.write(confirm.frame)

    def down(self) -> None:
        for confirm in self._unconfirmed.values():
            series = confirm.series
            if series.held is None or confirm is series.probe or confirm.receipt not in series.held:
                confirm.resent = True

    def unreachable(self, error: ClientError) -> None:
        """End all confirms. Nothing was sent, so the numbers restart."""
        for receipt in list(self._unconfirmed):
            self._end(receipt, error)
        for series in self._series.values():
            series.number = 0
        self._progress()

    def collect(self) -> None:
        """See `Role`."""

    def delivered(self, deliveries: list[Delivery]) -> None:
        """See `Role`. This connection has no subscriptions."""

    def receipts(self, pieces: list[bytes]) -> None:
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
            if confirm.series.held is not None:
                self._leaves(confirm.series, confirm, is_stored=True)
            confirm.confirmed(more)
        self._bytes -= size
        self._progress()

    def failed(self, receipt: bytes | None, error: ClientError) -> None:
        """See `Role`: end the message that was refused. The others are sent again on the next connection."""
        if receipt is not None:
            self._end(receipt, error)
            self._progress()

    def tick(self, now: float) -> float:
        due = _NEVER
        for series in self._held:
            if series.probe is None and series.held and self._link.is_up:
                if now >= series.retry_at:
                    self._probe(series, now)
                if series.probe is None:
                    due = min(due, series.retry_at)
        return due

    # ------------------------------------------------------------ inside

    def _own_number(self, series: Series, seq: int | None) -> int:
        """Return the number of a message, checked against the rules for `seq`. Raise ValueError or NotSupported."""
        if not self._has_own_numbers:
            raise ValueError("seq needs a client with a producer: Client(…, producer=NAME)")
        if series.is_keyed:
            raise ValueError("a message can have a seq or an idempotency_key, not both")
        if not series.destination.startswith("/queue/"):
            if seq is not None:
                raise ValueError("only a message for a queue can have a seq")
            return series.number + 1
        if seq is None or seq <= series.number:
            raise ValueError(f"seq must be above the last one, {series.number}")
        if not series.producer:
            raise NotSupported(NO_NUMBERS)
        return seq

    def _go_without_numbers(self) -> None:
        """Remove the numbers of all messages, because the server keeps none. One sent again may be stored twice.

        Messages that the application itself numbered end as NotSupported.
        """
        self._is_numbered = False
        line = f"\nx-producer:{self._producer}\n".encode()
        for confirm in list(self._unconfirmed.values()):
            if self._has_own_numbers and confirm.series.producer:
                self._end(confirm.receipt, NotSupported(NO_NUMBERS))
            elif line in confirm.frame:
                confirm.frame = confirm.frame.replace(line, b"\n", 1)
                self._bytes -= len(line) - 1
        for series in self._series.values():
            series.unnumbered()
        self._progress()

    def _type_line(self, kind: str) -> str:
        line = self._types.get(kind)
        if line is None:
            line = self._types[kind] = lines(kind)
        return line

    def _refusal(self, receipt: bytes, headers: dict[str, str]) -> None:
        """Hold or end a message that the server refused without ending the connection."""
        error = error_of(headers, headers.get("x-error", "no reason given"))
        confirm = self._unconfirmed.get(receipt)
        expected = headers.get("x-expected", "")
        if confirm is not None and expected.isdigit():
            confirm.expected = int(expected)
            self._hold(confirm, 0.0)
        elif confirm is not None and isinstance(error, QueueFull) and self._waits_when_full:
            self._warn_of_full(confirm.series, error)
            self._hold(confirm, error.retry_after or FULL_RETRY_S)
        else:
            self._end(receipt, error)

    def _warn_of_full(self, series: Series, error: QueueFull) -> None:
        now = self._link.now
        if now >= series.warn_at:
            series.warn_at = now + FULL_WARNING_S
            log.warning("publishing to %s waits until the queue has space: %s", series.destination, error)

    def _hold(self, confirm: Confirm, wait: float) -> None:
        """Hold a message and all later ones of its series, and retry it after `wait` seconds."""
        series = confirm.series
        is_new = series.held is None
        if series.held is None:
            series.held = {}
            self._held.add(series)
        series.held[confirm.receipt] = confirm
        if wait or is_new or confirm is series.probe:
            self._try_at(series, self._link.now + wait)
        if confirm is series.probe:
            series.probe = None

    def _try_at(self, series: Series, time: float) -> None:
        series.retry_at = time
        self._link.due = min(self._link.due, time)

    def _probe(self, series: Series, now: float) -> None:
        """Send the first held message of a series as a probe."""
        assert series.held
        first = min(series.held.values(), key=_order)
        frame = first.frame
        if series.producer and first is not next(each for each in self._unconfirmed.values() if each.series is series):
            series.retry_at = now + LOOK_AGAIN_S  # a message in front of it has not ended yet and must not be overtaken
            return
        if first.expected:
            # This line is first, because the first of two counts: `send` also adds an `x-after` to own numbers.
            frame = b"SEND\nx-after:%d\n" % (first.expected - 1) + frame.removeprefix(b"SEND\n")
        series.probe = first
        self._link.write(frame)

    def _leaves(self, series: Series, confirm: Confirm, *, is_stored: bool) -> None:
        """Remove a message that has ended from a held series. If it was the probe, the others may be sent now.

        In a numbered series whose probe was refused, only the next message is tried: later ones would be out of order.
        """
        assert series.held is not None
        series.held.pop(confirm.receipt, None)
        if series.held and series.producer and not is_stored:
            if confirm is series.probe:
                series.probe = None
                self._try_at(series, self._link.now)
        elif confirm is series.probe or not series.held:
            waiting, series.held, series.probe = series.held, None, None
            self._held.discard(series)
            for each in sorted(waiting.values(), key=_order):
                self._link.write(each.frame)

    def _end(self, receipt: bytes, error: ClientError) -> None:
        confirm = self._unconfirmed.pop(receipt, None)
        if confirm is not None:
            self._bytes -= len(confirm.frame)
            if confirm.series.held is not None:
                self._leaves(confirm.series, confirm, is_stored=False)
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
