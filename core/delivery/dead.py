"""Dead letters: a message that nobody could take goes to another queue, and says where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core import headers
from curbstone.core.errors import CurbstoneError
from curbstone.core.log.format import Reason
from curbstone.core.message import Delivery, Message
from curbstone.core.names import parse_queue_name
from curbstone.core.values import Done

if TYPE_CHECKING:
    from curbstone.core.pending.group import Group
    from curbstone.core.queue import Queue

PREFIX = b"x-dead-"
ERROR_CHARS_MAX = 1000
TRY_AGAIN_MS = 5000
AT_ONCE = 100
"""The most dead letters that failed and are tried again at once."""

REASONS = {Reason.REJECT: "rejected", Reason.MAX_TRIES: "max_tries", Reason.EXPIRE: "expired"}


def without_provenance(block: bytes) -> bytes:
    """Return a header block without what an earlier death added."""
    if PREFIX not in block:
        return block
    return b"".join(line for line in block.splitlines(keepends=True) if not line.startswith(PREFIX))


def dead_letter(queue: Queue, message: Message, reason: Reason, tries: int, error: str) -> Message:
    """Return the message as it goes to the dead-letter queue: a new one, with its provenance."""
    provenance = [
        ("x-dead-queue", str(queue.name)),
        ("x-dead-reason", REASONS[reason]),
        ("x-dead-time", str(queue.host.wall_ms())),
        ("x-dead-tries", str(tries)),
        ("x-dead-id", queue.message_id(message.seq)),
    ]
    if error:
        provenance.append(("x-dead-error", error.replace("\0", "")[:ERROR_CHARS_MAX]))
    return Message(message.body, without_provenance(message.headers) + headers.encode(provenance))


class Deaths:
    """Sends the dead messages of one queue where they belong."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._condemned: dict[tuple[str, int], tuple[Reason, str]] = {}
        """Messages that could not be dead-lettered, and why they die; in the order in which they are tried again."""
        self._trying = 0
        self._is_stuck = False

    def divert(self, group: Group, message: Message, tries: int) -> bool:
        """Return whether a message that is about to be delivered must not be: expired, or tried too often."""
        queue = self._queue
        condemned = self._condemned.pop((group.name, message.seq), None) if self._condemned else None
        if condemned is not None:
            group.wip.add(message.seq)
            self.bury(group, Delivery(message, tries, 0), condemned[0], tries, condemned[1])
            return True
        if message.expires_ms and message.expires_ms <= queue.host.now_ms():
            queue.expiry.expire(group, message)
            return True
        most = queue.options.max_tries
        if most and tries >= most:
            group.wip.add(message.seq)
            self.bury(group, Delivery(message, tries, 0), Reason.MAX_TRIES, tries, "")
            return True
        queue.stats.redelivered += tries > 0
        return False

    def bury(
        self, group: Group, delivery: Delivery, reason: Reason, tries: int, error: str, on_done: Done | None = None
    ) -> None:
        """Move a message that counts as wip to the dead-letter queue, or drop it where there is none.

        The move is one transaction over both queues; `on_done` comes when it is on disk. Where it fails, the
        message waits and dies again later.
        """
        queue = self._queue
        message = delivery.message
        if not queue.options.dead_letter:
            queue.stats.dropped += reason is not Reason.EXPIRE
            queue.settling.settle_now(group.name, [delivery], reason)
            if on_done is not None:
                queue.writer.when_committed(on_done)
            return
        transaction = queue.broker.transaction()
        target = queue.broker.ensure(parse_queue_name(queue.options.dead_letter))
        transaction.publish(target, dead_letter(queue, message, reason, tries, error))

        def undo(deliveries: list[Delivery]) -> None:
            due_ms = queue.host.now_ms() + TRY_AGAIN_MS
            group.wip.discard(message.seq)
            group.delay(message.seq, tries, due_ms, queue.host.wall_ms() + TRY_AGAIN_MS, message)
            self._condemned[group.name, message.seq] = (reason, error)

        def done(failed: CurbstoneError | None) -> None:
            if failed is None:
                queue.stats.dead_lettered += 1
                self._is_stuck = self._is_stuck and bool(self._condemned)
            elif not self._is_stuck:  # one line, however many wait
                self._is_stuck = True
                queue.report(f"message {queue.message_id(message.seq)} could not be dead-lettered, it waits: {failed}")
            if on_done is not None:
                on_done(failed)

        transaction.settle(queue, group.name, [delivery], reason, undo)
        transaction.commit(done)

    def try_again(self) -> None:
        """Try some of those whose time has come; no consumer is needed. Where they succeed the next follow."""
        while self._condemned and self._trying < AT_ONCE:
            name, seq = next(iter(self._condemned))
            group = self._queue.pending.groups.get(name)
            run = self._queue.pending.runs.find(seq)
            if group is None or run is None or not run.pending(name) >> (seq - run.first) & 1 or seq in group.wip:
                del self._condemned[name, seq]  # it was settled meanwhile, or is on its way again
                continue
            if group.is_delayed(seq):
                return
            if run.messages is None:
                self._queue.pending.reader.load(run, self.try_again)
                return
            reason, error = self._condemned.pop((name, seq))
            message = run.messages[seq - run.first]
            if message is None:
                continue
            tries = group.tries_of(seq)
            group.seize(seq)
            self._trying += 1
            self.bury(group, Delivery(message, tries, 0), reason, tries, error, self._tried)

    def _tried(self, error: CurbstoneError | None) -> None:
        self._trying -= 1
        if error is None:
            self.try_again()
