"""Moves dead letters to their original queues, in pieces that fit. A piece moves as a whole or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from curbstone.core import headers, port
from curbstone.core.engine.delivery.dead_letters import Mover, without_provenance
from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.pull import Pull
from curbstone.core.engine.log.format import BATCH_BYTES, Reason, entry_bytes
from curbstone.core.engine.log.room import RELEASE_BYTES
from curbstone.core.engine.write_queue import SETTLE_BYTES
from curbstone.core.errors import BadRequest, CurbstoneError, MessageTooLarge, NoSuchQueue, QueueFull, SchemaViolation
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.orders import kept_orders
from curbstone.core.values import UNNAMED, May, Moved, Redriven

AT_ONCE = 100
STAYING_MAX = 10_000
STAYING_BYTES_MAX = 32 * 1024 * 1024
"""Dead letters that stay are kept until the end, up to so many bytes of bodies, so that none is tried twice."""

_EXTRAS_BYTES = 16
_OF_MESSAGES = (QueueFull, MessageTooLarge, SchemaViolation, NoSuchQueue)
"""Refusals that concern only some dead letters or one target: others may still move."""


class Redrive:
    """Moves up to `limit` dead letters to a queue, or each to its original one; `on_done` is called once.

    Each piece is a transaction over this queue and its targets. If a piece is refused, half of it is tried, down to
    one message; if that is refused, it stays.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        find: Callable[[QueueName], port.Queue],
        mover: Mover,
        to: QueueName | None,
        limit: int,
        on_done: Moved,
        may: May | None = None,
        seq: int = 0,
    ) -> None:
        """`find` returns a queue, or raises NoSuchQueue. `may(queue)`: whether messages may move there; None allows it.

        `seq` is that of the one message to move, or 0.
        """
        self._dispatcher = dispatcher
        self._seq = seq
        self._index = dispatcher.parts.index
        self._state = dispatcher.parts.state
        self._room = dispatcher.parts.log.room
        self._find = find
        self._mover = mover
        self._to = to
        self._may = may
        self._left = limit
        self._on_done = on_done
        self._moved = 0
        self._taken: deque[Delivery] = deque()
        self._most = AT_ONCE
        """The most messages of a piece."""
        self._staying: list[Delivery] = []
        self._staying_bytes = 0
        self._stayed: dict[str, int] = {}
        self._full: dict[port.Queue, QueueFull] = {}

    def begin(self) -> None:
        """Start; raise NoSuchQueue or BadRequest if the messages can't move to the queue that was named."""
        if self._to is not None:
            if self._to == self._state.name:
                raise BadRequest("bad to: the dead letters are in this queue already")
            self._find(self._to)
        self._proceed()

    def _proceed(self) -> None:
        """Move the next piece of the messages that were taken, or take more, or finish."""
        is_over = self._left <= 0 or (self._to is not None and self._full)
        if self._state.is_closed or is_over:
            self._finish(None)
        elif self._taken:
            self._move()
        elif len(self._staying) >= STAYING_MAX or self._staying_bytes >= STAYING_BYTES_MAX:
            self._finish(None)
        elif not self._seq:
            Pull(self._dispatcher, UNNAMED, min(self._left, AT_ONCE), 0, self._take, self._finish).begin()
        elif not (self._moved or self._staying):
            self._take(self._take_one())
        else:
            self._finish(None)

    def _take_one(self) -> list[Delivery] | None:
        """Take the one message out of turn, if it is there and ready; return None if it must be read from the disk."""
        seq, group = self._seq, self._index.unnamed
        run = self._index.runs.find_pending(UNNAMED, seq)
        if run is None:
            return []
        if seq in group.in_flight or group.is_delayed(seq):
            why = "it is delayed" if group.is_delayed(seq) else "it was delivered and is not settled"
            self._stayed[why] = 1
            return []
        if run.messages is None:
            self._index.reader.load(run, self._proceed)
            return None
        message = run.messages[seq - run.first]
        return [group.seize_ready(message)] if message is not None else []

    def _take(self, deliveries: list[Delivery] | None) -> None:
        if deliveries is None:
            return
        if not deliveries:
            self._finish(None, is_all=True)
            return
        self._taken.extend(deliveries)
        self._proceed()

    def _move(self) -> None:
        piece: list[Delivery] = []
        messages: list[tuple[QueueName, Message]] = []
        sizes: dict[port.Queue, int] = {}
        most = max(min(self._most, self._room.slack_bytes // SETTLE_BYTES), 1)
        while self._taken and len(piece) < most:
            dead_letter = self._taken[0].message
            target = self._target(dead_letter)
            if isinstance(target, str):
                self._stays(self._taken.popleft(), target)
                continue
            block = without_provenance(dead_letter.headers)
            message = Message(dead_letter.body, block, kept_orders(block))
            size = sizes.get(target, BATCH_BYTES) + entry_bytes(message) + _EXTRAS_BYTES
            size += RELEASE_BYTES * (1 + len(target.options.groups))
            if piece and size > target.options.cap // 2:
                break
            sizes[target] = size
            messages.append((target.name, message))
            piece.append(self._taken.popleft())
        if not piece:
            self._proceed()
            return
        targets = list(sizes)

        def done(error: CurbstoneError | None) -> None:
            self._piece_ended(piece, targets, error)

        self._mover.move(UNNAMED, piece, Reason.MOVED, self._take_back, messages, done)

    def _target(self, dead_letter: Message) -> port.Queue | str:
        """Return the target of a dead letter, or why it stays."""
        name = self._to or _origin(dead_letter)
        if name is None or name == self._state.name:
            return "it is no dead letter: its headers name no other queue as its origin"
        if self._may is not None and not self._may(name):
            return f"no right to send on queue {name}"
        try:
            target = self._find(name)
        except NoSuchQueue as error:
            return str(error)
        if target in self._full:
            return str(self._full[target])
        if len(dead_letter.body) > target.options.max_message_size:
            return f"larger than the max_message_size of queue {name}"
        return target

    def _take_back(self, deliveries: list[Delivery]) -> None:
        self._taken.extendleft(reversed(deliveries))

    def _piece_ended(self, piece: list[Delivery], targets: list[port.Queue], error: CurbstoneError | None) -> None:
        """The transaction of a piece has ended: the dead letters have moved, or are in `_taken` again."""
        if error is None:
            self._moved += len(piece)
            self._left -= len(piece)
            self._most = min(2 * self._most, AT_ONCE)
        elif self._state.is_closed or not isinstance(error, _OF_MESSAGES):
            self._finish(error)
            return
        elif len(piece) > 1:
            self._most = len(piece) // 2
        elif isinstance(error, QueueFull):
            self._full[targets[0]] = error
        else:
            self._stays(self._taken.popleft(), str(error))
        self._proceed()

    def _stays(self, delivery: Delivery, why: str) -> None:
        self._staying.append(delivery)
        self._staying_bytes += len(delivery.message.body)
        self._stayed[why] = self._stayed.get(why, 0) + 1

    def _finish(self, error: CurbstoneError | None, *, is_all: bool = False) -> None:
        """Requeue the messages that stay, and answer.

        It is an error if the queue has ended, or if nothing has moved because a queue was full.
        """
        if error is None and self._state.is_closed:
            error = self._state.refusal()
        elif error is None and not self._moved and self._full:
            error = next(iter(self._full.values()))
        if error is not None:
            error.members = {**error.members, "moved": self._moved}
        self._dispatcher.acks.put_back(UNNAMED, [*self._staying, *self._taken])
        redriven = Redriven(self._moved, self._stayed, not self._seq and not is_all)
        self._state.host.call_soon(lambda: self._on_done(error, redriven))


def _origin(message: Message) -> QueueName | None:
    for name, value in headers.decode(message.headers):
        if name == "x-dead-queue":
            try:
                return parse_queue_name(value)
            except BadRequest:
                return None
    return None
