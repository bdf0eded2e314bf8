"""What a WebSocket publishes until it is answered: in the order it came, however long each commit takes.

While too much is under way, or its user has not paid for what came before, the socket is not read. It ends only behind
the last answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.access.rates import Brake, Meter
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.traffic import Traffic
from curbstone.core.values import Done, IdempotencyKey, Numbered
from curbstone.gateway.limits import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_MAX
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.net.unconfirmed import Unconfirmed
from curbstone.net.wire import GOING_AWAY, Wire

if TYPE_CHECKING:
    from curbstone.gateway.websocket.targets import Target


class Batch:
    """Messages that were published together, and what became of them so far."""

    __slots__ = ("left", "outcomes", "place", "size", "target")

    def __init__(self, target: Target | None, place: object, count: int, size: int) -> None:
        self.target = target
        """Where they go; None if they were refused before."""
        self.place = place
        """What the client calls that."""
        self.left = count
        self.size = size
        self.outcomes: list[tuple[CurbstoneError | None, int, int]] = []


def _nobody_hears(_batch: Batch, _error: CurbstoneError | None, _first_seq: int, _count: int) -> bool:
    return False


def _nobody_reads(_messages: list[Inbound]) -> None:
    pass


class Unanswered:
    """See the module's docstring. Of one connection."""

    def __init__(self, traffic: Traffic, answer: Callable[[Batch, CurbstoneError | None, int, int], bool]) -> None:
        """`answer(batch, error, first_seq, count)` confirms or refuses messages; returns whether to go on."""
        self._traffic = traffic
        self._answer = answer
        self._batches: deque[Batch] = deque()
        self._unconfirmed = Unconfirmed(UNCONFIRMED_MAX, UNCONFIRMED_BYTES_MAX)
        self._brake = Brake("websocket", self._released)
        self._kept: list[Inbound] = []
        """Frames that wait until the user has paid for what it sent before, or for what is looked up."""
        self._is_looking = False
        self._failure: tuple[int, str] | None = None
        self._is_held = False
        self._is_closed = False

    def begin(self, wire: Wire, receive: Callable[[list[Inbound]], None]) -> None:
        """The wire can be used; `receive` gets the frames that were kept."""
        self._wire = wire
        self._receive = receive

    @property
    def takes_more(self) -> bool:
        """Whether what comes is looked at: not once the end is near."""
        return not (self._failure or self._is_closed)

    @property
    def is_waiting(self) -> bool:
        """Whether frames are kept: then what comes is kept behind them."""
        return self._brake.is_on or self._is_looking

    def keep(self, messages: list[Inbound], meter: Meter | None) -> bool:
        """Return whether the user has to pay first, or others wait; then the frames are kept until that is over."""
        if not (self._is_looking or self._brake.stops(meter)):
            return False
        self._kept += messages
        self._wire.hold()
        return True

    def keep_until(self, messages: list[Inbound], look: Callable[[Done], None]) -> None:
        """Keep the frames, and what comes behind them, until `look` calls back."""
        self._is_looking = True
        self._kept += messages
        self._wire.hold()
        look(self._looked)

    def _looked(self, _error: CurbstoneError | None) -> None:
        self._is_looking = False
        self._released()

    def publish(
        self,
        target: Target,
        messages: list[Message],
        size: int,
        *,
        key: IdempotencyKey | None = None,
        numbered: Numbered | None = None,
        place: object = "",
    ) -> None:
        """Publish messages, whose bodies have that size; they are answered behind what came before."""
        if self._is_closed:
            return
        batch = Batch(target, place, len(messages), size)

        def on_done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            batch.outcomes.append((error, first_seq, count))
            batch.left -= count
            self._settle()

        refusal: CurbstoneError | None = None
        try:
            target.publish(messages, on_done, key=key, numbered=numbered)
        except CurbstoneError as error:
            if len(messages) > 1 and numbered is None:  # it says nothing of the others
                for message in messages:
                    self.publish(target, [message], len(message.body), key=key, place=place)
                return
            refusal = error
        self._traffic.published += len(messages)
        self._begin(batch, len(messages), size)
        if refusal is not None:
            on_done(refusal, 0, len(messages))

    def refuse(self, place: object, size: int, error: CurbstoneError) -> None:
        """Answer one message that nobody publishes in its turn; `size`: what its place may take until then."""
        batch = Batch(None, place, 0, size)
        batch.outcomes.append((error, 0, 1))
        self._begin(batch, 1, size)
        self._settle()

    def end(self, status: int, text: str) -> None:
        """Take no more; close for this reason once all that was taken is answered."""
        if not self._failure:
            self._failure = (status, text)
            self._finish()

    def hold(self) -> None:
        """The peer does not read its answers: read no more messages."""
        self._is_held = True
        self._wire.hold()

    def resume(self) -> None:
        """Go on after `hold`."""
        self._is_held = False
        self._read_on()

    def close(self) -> None:
        """The connection is over; what was taken is still published, nobody hears of it."""
        self._is_closed = True
        self._brake.close()
        self._batches.clear()
        self._kept.clear()
        self._answer, self._receive = _nobody_hears, _nobody_reads  # its session goes with its last reference

    def _begin(self, batch: Batch, count: int, size: int) -> None:
        self._batches.append(batch)
        self._unconfirmed.add(count, size)
        if self._unconfirmed.is_too_much:
            self._wire.hold()

    def _released(self) -> None:
        """What was kept for is so: the user has paid for what it sent before, or others have answered."""
        kept, self._kept = self._kept, []
        self._receive(kept)
        if not self._is_closed:
            self._read_on()

    def _read_on(self) -> None:
        """Read on, unless something is against it."""
        if not (self._is_held or self._unconfirmed.is_too_much or self.is_waiting):
            self._wire.resume()

    def _settle(self) -> None:
        """Answer what is known, from the first message on: a refusal must not overtake a confirm."""
        if self._is_closed:
            return
        may_go_on = False
        while self._batches:
            batch = self._batches[0]
            for error, first_seq, count in batch.outcomes:
                may_go_on |= self._unconfirmed.remove(count, 0)
                if not self._answer(batch, error, first_seq, count):
                    return
            batch.outcomes.clear()
            if batch.left:
                break
            may_go_on |= self._unconfirmed.remove(0, batch.size)
            self._batches.popleft()
        if may_go_on:
            self._read_on()
        if self._failure:
            self._finish()

    def _finish(self) -> None:
        """Close for the failure, once everything before it is answered."""
        assert self._failure
        if self._batches or self._is_closed:
            return
        status, text = self._failure
        if status == GOING_AWAY:
            self._wire.close(GOING_AWAY, text)
            return
        self._wire.send(error_frame(status, text))
        close_for(self._wire, status, text)
