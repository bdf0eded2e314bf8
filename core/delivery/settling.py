"""Ending deliveries: ack, nack, reject, and giving back what nobody settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.core.consumer import Consumer
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.log.format import Reason, Released
from curbstone.core.log.publish import Release
from curbstone.core.message import Delivery
from curbstone.core.values import UNNAMED, Done

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


class Settling:
    """The settling side of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def ack(self, group: str, deliveries: list[Delivery], on_done: Done | None, owner: Consumer) -> None:
        """Settle deliveries that `owner` has given up."""
        if self._settle_refused(deliveries, on_done, owner):
            return
        self.settle_now(group, deliveries)
        if on_done is not None:
            self._queue.writer.when_committed(on_done)

    def nack(
        self,
        group: str,
        deliveries: list[Delivery],
        delay_ms: int | None,
        error: str,
        on_done: Done | None,
        owner: Consumer,
    ) -> None:
        """Give back deliveries that `owner` has given up."""
        if self._settle_refused(deliveries, on_done, owner):
            return
        for each_ms, some in self.delayed(deliveries, delay_ms):
            self.release(group, some, delay_ms=each_ms, error=error)
        if on_done is not None:
            self._queue.writer.when_committed(on_done)

    def reject(self, group: str, deliveries: list[Delivery], error: str, on_done: Done | None, owner: Consumer) -> None:
        """Dead-letter deliveries that `owner` has given up."""
        if self._settle_refused(deliveries, on_done, owner):
            return
        self.reject_now(group, deliveries, error, on_done)

    def _settle_refused(self, deliveries: list[Delivery], on_done: Done | None, owner: Consumer) -> bool:
        if not self._queue.writer.failure and not self._queue.is_closed:
            return False
        error = self._queue.refusal() or Unavailable("the queue is closed")
        owner.unclaim(deliveries)
        if on_done is not None:
            self._queue.host.call_soon(lambda: on_done(error))
        return True

    def delayed(self, deliveries: list[Delivery], delay_ms: int | None) -> list[tuple[int, list[Delivery]]]:
        """Return how long deliveries that are given back wait: as was asked for, else by the queue's options."""
        options = self._queue.options
        if delay_ms is not None or not options.backs_off:
            return [(options.nack_delay_ms(0, 0) if delay_ms is None else delay_ms, deliveries)]
        return [(options.nack_delay_ms(each.tries, each.message.seq), [each]) for each in deliveries]

    def reject_now(self, group: str, deliveries: list[Delivery], error: str, on_done: Done | None) -> None:
        """Dead-letter deliveries; `on_done` comes once, when all of that is on disk, or with the first error."""
        self._queue.stats.rejected += len(deliveries)
        done = _after(len(deliveries), on_done) if on_done is not None else None
        if on_done is not None and not deliveries:
            self._queue.writer.when_committed(on_done)
        for delivery in deliveries:
            tries = delivery.tries + 1
            self._queue.deaths.bury(self._queue.pending.group(group), delivery, Reason.REJECT, tries, error, done)
        self._queue.wake(group)

    def settle_now(self, group: str, deliveries: list[Delivery], reason: Reason = Reason.ACK) -> None:
        """Settle deliveries in memory now, and on disk with the next commit."""
        messages = [delivery.message for delivery in deliveries]
        if reason is Reason.ACK:
            self._queue.stats.acked += len(messages)
        self._queue.pending.clear(group, messages)
        self._queue.writer.settled(group, reason, [message.seq for message in messages])
        self._queue.wake(group)

    def settle_by_id(self, seq: int, on_done: Callable[[CurbstoneError | None, bool], None], owner: str) -> None:
        """See `Queue.settle_by_id`."""
        queue = self._queue
        refusal = queue.refusal()
        run = queue.pending.runs.find(seq)
        there = run is not None and bool(run.bits >> (seq - run.first) & 1)
        there = there and not queue.leasing.is_of_another(UNNAMED, seq, owner)
        if refusal is not None or run is None or not there:
            queue.host.call_soon(lambda: on_done(refusal, False))
            return
        group = queue.pending.unnamed
        queue.end_delivery(UNNAMED, seq)
        group.wip.discard(seq)
        group.forget(seq)
        queue.pending.clear_run(group, run, 1 << (seq - run.first), 0)
        queue.stats.acked += 1
        queue.writer.settled(UNNAMED, Reason.ACK, [seq])
        queue.wake(UNNAMED)
        queue.changed()
        queue.writer.when_committed(lambda error: on_done(error, error is None))

    def given_back(self, release: Release) -> None:
        """A transaction has given deliveries back to their place, one try older; it is on disk."""
        group = self._queue.pending.group(release.group)
        now_ms, wall_ms = self._queue.host.now_ms(), self._queue.host.wall_ms()
        mature_ms = wall_ms + max(release.due_ms - now_ms, 0)
        self._queue.stats.released += len(release.deliveries)
        for delivery in release.deliveries:
            group.release(delivery.message, delivery.tries + 1, release.due_ms, mature_ms)
        self._queue.wake(release.group)
        self._queue.changed()

    def put_back(self, group: str, deliveries: list[Delivery]) -> None:
        """See `Queue.put_back`."""
        if not deliveries or self._queue.is_closed:
            return
        for delivery in deliveries:
            self._queue.pending.group(group).release(delivery.message, delivery.tries, 0, delivery.mature_ms)
            if delivery.tries:
                self._queue.writer.handed(Released(group, delivery.message.seq, 1, delivery.tries, 0))
        self._queue.wake(group)

    def release(self, group_name: str, deliveries: list[Delivery], *, delay_ms: int = 0, error: str = "") -> None:
        """Give deliveries back to their place, one try older; those tried too often are dead."""
        if not deliveries or self._queue.is_closed:
            return
        group = self._queue.pending.group(group_name)
        now_ms, wall_ms = self._queue.host.now_ms(), self._queue.host.wall_ms()
        due_ms = now_ms + delay_ms if delay_ms > 0 else 0
        most = self._queue.options.max_tries
        self._queue.stats.released += len(deliveries)
        for delivery in deliveries:
            tries = delivery.tries + 1
            if most and tries >= most:
                self._queue.deaths.bury(group, delivery, Reason.MAX_TRIES, tries, error)
                continue
            if 0 < delivery.message.expires_ms <= now_ms:
                self._queue.expiry.expire(group, delivery.message)
                continue
            group.release(delivery.message, tries, due_ms, wall_ms + delay_ms)
            self._queue.writer.released(Released(group_name, delivery.message.seq, 1, tries, due_ms))
        self._queue.wake(group_name)
        self._queue.changed()
        self._queue.timers.arm()


def _after(count: int, on_done: Done) -> Done:
    """Return a callback that calls `on_done` at its `count`-th call, with the first error there was."""
    left = count
    first: CurbstoneError | None = None

    def done(error: CurbstoneError | None) -> None:
        nonlocal left, first
        left -= 1
        first = first or error
        if not left:
            on_done(first)

    return done
