"""Dead letters: a message that no consumer could process moves to another queue, with headers for its origin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from curbstone.core import headers
from curbstone.core.batches import batch_of
from curbstone.core.engine.delivery.acks import Acks
from curbstone.core.engine.index.group import Group
from curbstone.core.engine.log.format import Reason
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.state import QueueState
from curbstone.core.errors import CurbstoneError, MessageTooLarge, QueueFull, SchemaViolation, Unavailable
from curbstone.core.message import Delivery, Message
from curbstone.core.names import QueueName, parse_queue_name
from curbstone.core.orders import kept_orders, shown_name, without_names
from curbstone.core.values import Done

PREFIX = b"x-dead-"
ERROR_CHARS_MAX = 1000
TRY_AGAIN_MS = 5000
AT_ONCE = 100
"""The most messages of a transaction, and the most that could not be dead-lettered and are tried again together."""
AT_ONCE_BYTES = 1024 * 1024
"""After so many bytes of bodies no further message is added to a transaction."""

_OF_MESSAGES = (QueueFull, MessageTooLarge, SchemaViolation)
"""Refusals that concern only some of the messages of a transaction: the others may still be moved."""

REASONS = {Reason.REJECT: "rejected", Reason.MAX_TRIES: "max_tries", Reason.EXPIRE: "expired"}


def without_provenance(block: bytes) -> bytes:
    """Return a header block without the headers of an earlier dead-lettering."""
    if PREFIX not in block:
        return block
    return b"".join(line for line in block.splitlines(keepends=True) if not line.startswith(PREFIX))


class Mover(Protocol):
    """Moves messages from one queue to others."""

    def move(
        self,
        group: str,
        deliveries: list[Delivery],
        reason: Reason,
        undo: Callable[[list[Delivery]], None],
        messages: list[tuple[QueueName, Message]],
        on_done: Done,
    ) -> None:
        """Settle deliveries here and publish `messages`, or do neither and pass the deliveries to `undo`.

        A target that does not exist is created. `on_done(error)` is called in a later turn.
        """

    def end_batch(self, key: bytes, target: QueueName, report: Message, on_done: Done) -> None:
        """End a batch of messages here and publish its report there, all or nothing; see `batch_reports`."""


def dead_letter(state: QueueState, message: Message, reason: Reason, tries: int, error: str) -> Message:
    """Return the message for the dead-letter queue, with headers for its origin and the reason."""
    provenance = [
        ("x-dead-queue", str(state.name)),
        ("x-dead-reason", REASONS[reason]),
        ("x-dead-time", str(state.host.wall_ms())),
        ("x-dead-tries", str(tries)),
        ("x-dead-id", state.message_id(message.seq)),
    ]
    header, name = shown_name(message.headers)
    if name:
        provenance.append((f"x-dead-{header.removeprefix('x-')}", name))
    if batch := batch_of(message.headers).id:
        provenance.append(("x-dead-batch", batch))
    if error:
        provenance.append(("x-dead-error", error.replace("\0", "")[:ERROR_CHARS_MAX]))
    block = without_names(without_provenance(message.headers)) + headers.encode(provenance)
    return Message(message.body, block, kept_orders(block))


def dead_letter_queue(state: QueueState) -> QueueName | None:
    """Return the queue that dead messages are moved to, or None if they are dropped."""
    return parse_queue_name(state.options.dead_letter) if state.options.dead_letter else None


def count_dead(state: QueueState, reason: Reason, count: int) -> None:
    """Count messages that have been moved to the dead-letter queue, or dropped because there is none."""
    if state.options.dead_letter:
        state.stats.dead_lettered += count
    elif reason is not Reason.EXPIRE:
        state.stats.dropped += count


class DeadMessage(NamedTuple):
    """A message that is to be moved to a dead-letter queue."""

    target: QueueName
    group: Group
    reason: Reason
    delivery: Delivery
    tries: int
    error: str
    on_done: Done | None


class DeadLetters:
    """Moves the dead messages of one queue to its dead-letter queue.

    The messages of each transaction are moved together, or stay together. Messages that are added while it is under way
    are moved by the next one. If a transaction is refused because of its messages, half of them are tried, down to one.
    """

    __slots__ = (
        "_acks", "_condemned", "_index", "_is_moving", "_is_stuck", "_most", "_mover", "_state", "_trying", "_waiting",
        "_write_queue",
    )  # fmt: skip

    def __init__(self, parts: Parts, acks: Acks, mover: Mover) -> None:
        self._state = parts.state
        self._index = parts.index
        self._write_queue = parts.write_queue
        self._acks = acks
        self._mover = mover
        self._condemned: dict[tuple[str, int], tuple[Reason, str]] = {}
        """Messages that could not be dead-lettered, and the reasons; in the order in which they are tried again."""
        self._waiting: list[DeadMessage] = []
        """The messages that no transaction moves yet. An empty deque takes 760 bytes, and most queues need none."""
        self._is_moving = False
        """Whether a transaction is under way."""
        self._most = AT_ONCE
        """The most messages of the next transaction."""
        self._trying = 0
        self._is_stuck = False

    def is_dead(self, group: str, message: Message, tries: int) -> bool:
        """Return whether a message must not be delivered any more: it is expired, or was tried too often."""
        if self._condemned and (group, message.seq) in self._condemned:
            return True
        if message.expires_ms and message.expires_ms <= self._state.host.now_ms():
            return True
        most = self._state.options.max_tries
        return bool(most) and tries >= most

    def end(self, group: Group, dead: list[Delivery]) -> None:
        """End messages that were taken and must not be delivered."""
        for delivery in dead:
            message, tries = delivery.message, delivery.tries
            condemned = self._condemned.pop((group.name, message.seq), None)
            if condemned is not None:
                reason, error = condemned
                self.begin_move(group, delivery, reason, tries, error)
            elif message.expires_ms and message.expires_ms <= self._state.host.now_ms():
                self.expire(group, message)
            else:
                self.begin_move(group, delivery, Reason.MAX_TRIES, tries, "")

    def expire(self, group: Group, message: Message) -> None:
        """End an expired message that is not in flight."""
        self._state.stats.expired += 1
        delivery = Delivery(message, group.tries_of(message.seq), 0)
        group.seize(message.seq)
        if self._state.options.dead_letter:
            self.begin_move(group, delivery, Reason.EXPIRE, delivery.tries, "")
        else:
            self._acks.settle_now(group.name, [delivery], Reason.EXPIRE)

    def begin_move(
        self, group: Group, delivery: Delivery, reason: Reason, tries: int, error: str, on_done: Done | None = None
    ) -> None:
        """Move a message that is in flight to the dead-letter queue, or drop it if the queue has none.

        The move is a transaction over both queues; `on_done(error)` is called when it has ended. If it fails, the
        message is delayed, and the move is tried again later.
        """
        state = self._state
        target = dead_letter_queue(state)
        if target is not None:
            group.in_flight[delivery.message.seq] = None
            self._waiting.append(DeadMessage(target, group, reason, delivery, tries, error, on_done))
            self._move_next()
            return
        count_dead(state, reason, 1)
        self._acks.settle_now(group.name, [delivery], reason)
        if on_done is not None:
            self._write_queue.when_committed(on_done)

    def _move_next(self) -> None:
        """Move the next messages in one transaction, unless one is under way."""
        if self._is_moving or not self._waiting:
            return
        self._is_moving = True
        first = self._waiting[0]
        dead = self._take_like(first)
        ended = partial(self._move_ended, dead)
        messages = [
            (first.target, dead_letter(self._state, each.delivery.message, each.reason, each.tries, each.error))
            for each in dead
        ]
        deliveries = [each.delivery for each in dead]
        self._mover.move(first.group.name, deliveries, first.reason, lambda _deliveries: None, messages, ended)

    def _take_like(self, first: DeadMessage) -> list[DeadMessage]:
        """Take messages that wait, of the same target, group and reason as the first, as many as one move takes."""
        dead: list[DeadMessage] = []
        size = 0
        for each in islice(self._waiting, self._most):
            if size >= AT_ONCE_BYTES or each[:3] != first[:3]:
                break
            dead.append(each)
            size += len(each.delivery.message.body)
        del self._waiting[: len(dead)]
        return dead

    def _move_ended(self, dead: list[DeadMessage], error: CurbstoneError | None) -> None:
        self._is_moving = False
        if error is None:
            count_dead(self._state, dead[0].reason, len(dead))
            self._is_stuck = self._is_stuck and bool(self._condemned)
            self._most = min(2 * self._most, AT_ONCE)
        elif len(dead) > 1 and isinstance(error, _OF_MESSAGES):
            self._most = len(dead) // 2
            self._waiting[:0] = dead
            dead = []
        else:
            self._delay(dead, error)
        for each in dead:
            if each.on_done is not None:
                each.on_done(error)
        self._move_next()

    def _delay(self, dead: list[DeadMessage], error: CurbstoneError) -> None:
        """Delay messages that could not be moved, until they are tried again."""
        state = self._state
        due_ms = state.host.now_ms() + TRY_AGAIN_MS
        for each in dead:
            message = each.delivery.message
            each.group.in_flight.pop(message.seq, None)
            each.group.delay(message.seq, each.tries, due_ms, state.host.wall_ms() + TRY_AGAIN_MS, message)
            each.group.reader.wakeups.wake(each.group.name)
            self._condemned[each.group.name, message.seq] = (each.reason, each.error)
        is_stop = isinstance(error, Unavailable) and error.is_stop
        if not is_stop and not self._is_stuck:  # one line, however many wait; at a stop the log has them as they were
            self._is_stuck = True
            first = state.message_id(dead[0].delivery.message.seq)
            state.report(f"message {first} could not be dead-lettered, it waits: {error}")

    def try_again(self) -> None:
        """Try again to dead-letter some of the messages whose delay has ended, even if the queue has no consumer.

        If they succeed, the next ones follow.
        """
        while self._condemned and self._trying < AT_ONCE and not self._state.is_closed:
            name, seq = next(iter(self._condemned))
            group = self._index.groups.get(name)
            run = self._index.runs.find_pending(name, seq)
            if group is None or run is None or seq in group.in_flight:
                del self._condemned[name, seq]  # it was settled meanwhile, or is on its way again
                continue
            if group.is_delayed(seq):
                return
            if run.messages is None:
                self._index.reader.load(run, self.try_again)
                return
            reason, error = self._condemned.pop((name, seq))
            message = run.messages[seq - run.first]
            if message is None:
                continue
            tries = group.tries_of(seq)
            group.seize(seq)
            self._trying += 1
            self.begin_move(group, Delivery(message, tries, 0), reason, tries, error, self._tried)

    def _tried(self, error: CurbstoneError | None) -> None:
        self._trying -= 1
        if error is None:
            self.try_again()
