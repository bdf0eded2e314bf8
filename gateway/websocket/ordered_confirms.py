"""Publishes a WebSocket's messages and answers them in the order they arrived, however long each commit takes.

While too much is under way, or while the user is over its rate, the socket is not read. The socket is closed only after
the last answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.access.rate_limit import Meter, Throttle
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Message
from curbstone.core.traffic import Traffic
from curbstone.core.values import Done, IdempotencyKey, Numbered
from curbstone.gateway.limits import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_MAX
from curbstone.gateway.websocket.codec import Inbound
from curbstone.gateway.websocket.session import close_for, error_frame
from curbstone.net.in_flight import InFlight
from curbstone.net.websocket_port import GOING_AWAY, WebSocketPort

if TYPE_CHECKING:
    from curbstone.gateway.websocket.publish_targets import Target


class Batch:
    """Messages that were published together, and their outcomes so far."""

    __slots__ = ("left", "outcomes", "place", "size", "target")

    def __init__(self, target: Target | None, place: object, count: int, size: int) -> None:
        self.target = target
        """Where they go; None if they were refused before publishing."""
        self.place = place
        """The client's name for the target."""
        self.left = count
        self.size = size
        self.outcomes: list[tuple[CurbstoneError | None, int, int]] = []
        """The arguments of `Published`. A negative seq is that of the message that has the unique name of this one."""


def _ignore(_batch: Batch, _error: CurbstoneError | None, _first_seq: int, _count: int) -> bool:
    return False


def _ignore_frames(_messages: list[Inbound]) -> None:
    pass


class OrderedConfirms:
    """The unanswered messages of one connection; see the module's docstring."""

    def __init__(self, traffic: Traffic, answer: Callable[[Batch, CurbstoneError | None, int, int], bool]) -> None:
        """`answer(batch, error, first_seq, count)` confirms or refuses messages; it returns whether to continue."""
        self._traffic = traffic
        self._answer = answer
        self._batches: deque[Batch] = deque()
        self._unconfirmed = InFlight(UNCONFIRMED_MAX, UNCONFIRMED_BYTES_MAX)
        self._throttle = Throttle("websocket", self._released)
        self._kept: list[Inbound] = []
        """Frames that wait until the user is within its rate, or until a queue was looked up on other servers."""
        self._is_looking = False
        self._failure: tuple[int, str] | None = None
        self._is_held = False
        self._is_closed = False

    def begin(self, wire: WebSocketPort, receive: Callable[[list[Inbound]], None]) -> None:
        """Start; `receive` is later called with the frames that were kept."""
        self._wire = wire
        self._receive = receive

    @property
    def takes_more(self) -> bool:
        """Whether new frames are handled; false once the connection is ending."""
        return not (self._failure or self._is_closed)

    @property
    def is_waiting(self) -> bool:
        """Whether frames are kept. Then new frames must be kept after them."""
        return self._throttle.is_on or self._is_looking

    def keep(self, messages: list[Inbound], meter: Meter | None) -> bool:
        """Keep frames if the user is over its rate or others wait; return whether they were kept."""
        if not (self._is_looking or self._throttle.holds(meter)):
            return False
        self._kept += messages
        self._wire.pause()
        return True

    def keep_until(self, messages: list[Inbound], look: Callable[[Done], None]) -> None:
        """Keep the frames, and those that follow, until `look` calls back."""
        self._is_looking = True
        self._kept += messages
        self._wire.pause()
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
        """Publish messages, whose bodies have `size` bytes together; they are answered after those before them."""
        if self._is_closed:
            return
        batch = Batch(target, place, len(messages), size)

        def on_done(error: CurbstoneError | None, first_seq: int, count: int) -> None:
            place = len(messages) - batch.left
            is_duplicate = error is None and count == 1 and messages[place].is_duplicate
            batch.outcomes.append((error, -first_seq if is_duplicate else first_seq, count))
            batch.left -= count
            self._settle()

        refusal: CurbstoneError | None = None
        try:
            target.publish(messages, on_done, key=key, numbered=numbered)
        except CurbstoneError as error:
            if len(messages) > 1 and numbered is None:  # maybe only one of them is at fault
                for message in messages:
                    self.publish(target, [message], len(message.body), key=key, place=place)
                return
            refusal = error
        self._traffic.published += len(messages)
        self._begin(batch, len(messages), size)
        if refusal is not None:
            on_done(refusal, 0, len(messages))

    def refuse(self, place: object, size: int, error: CurbstoneError) -> None:
        """Answer, in its turn, a message that is not published. Until then it counts as `size` bytes."""
        if self._is_closed:
            return
        batch = Batch(None, place, 0, size)
        batch.outcomes.append((error, 0, 1))
        self._begin(batch, 1, size)
        self._settle()

    def end(self, status: int, text: str) -> None:
        """Take no more messages; close with this reason once the earlier ones are answered."""
        if not self._failure:
            self._failure = (status, text)
            self._finish()

    def pause(self) -> None:
        """Stop reading messages: the peer does not read its answers."""
        self._is_held = True
        self._wire.pause()

    def resume(self) -> None:
        """Read on after `pause`, unless there is another reason not to."""
        self._is_held = False
        self._read_on()

    def close(self) -> None:
        """Drop all state: the connection is closed. Messages that were taken are still published."""
        self._is_closed = True
        self._throttle.close()
        self._batches.clear()
        self._kept.clear()
        self._answer, self._receive = _ignore, _ignore_frames  # breaks the reference cycle with the session

    def _begin(self, batch: Batch, count: int, size: int) -> None:
        self._batches.append(batch)
        self._unconfirmed.add(count, size)
        if self._unconfirmed.is_over_limit:
            self._wire.pause()

    def _released(self) -> None:
        """Handle the kept frames: the user is within its rate again, or other servers have answered."""
        kept, self._kept = self._kept, []
        self._receive(kept)
        if not self._is_closed:
            self._read_on()

    def _read_on(self) -> None:
        """Read on, unless there is a reason not to."""
        if not (self._is_held or self._unconfirmed.is_over_limit or self.is_waiting):
            self._wire.resume()

    def _settle(self) -> None:
        """Answer the messages whose outcome is known, in order, so that a refusal never overtakes a confirm."""
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
        """Close for the failure once all messages before it are answered."""
        assert self._failure
        if self._batches or self._is_closed:
            return
        status, text = self._failure
        if status == GOING_AWAY:
            self._wire.close(GOING_AWAY, text)
            return
        self._wire.send(error_frame(status, text))
        close_for(self._wire, status, text)
