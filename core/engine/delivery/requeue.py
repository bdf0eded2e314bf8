"""Requeues messages that were delivered and not acked: each returns to its place with one more try, or is dead.

Nacks, closed consumers, expired leases and transactions all requeue here. The group counts the tries of a message
(`index.group`), the write queue has them written, and `dead_letters` ends dead messages.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from curbstone.core.engine.delivery.acks import Acks
from curbstone.core.engine.delivery.dead_letters import DeadLetters
from curbstone.core.engine.index.tracked import InFlightHolder
from curbstone.core.engine.log.format import Reason, TriesRecord
from curbstone.core.engine.parts import Parts
from curbstone.core.engine.write_queue import Release
from curbstone.core.message import Delivery
from curbstone.core.values import AllDone, Done


class Requeue:
    """Requeues deliveries of one queue."""

    __slots__ = ("_acks", "_dead_letters", "_index", "_state", "_wakeups", "_write_queue")

    def __init__(self, parts: Parts, acks: Acks, dead_letters: DeadLetters) -> None:
        self._state = parts.state
        self._wakeups = parts.wakeups
        self._index = parts.index
        self._write_queue = parts.write_queue
        self._acks = acks
        self._dead_letters = dead_letters

    def nack(
        self,
        group: str,
        consumer: InFlightHolder,
        deliveries: list[Delivery],
        delay_ms: int | None,
        error: str,
        on_done: Done | None,
    ) -> bool:
        """Requeue deliveries that a consumer has claimed. Return False if refused now: it has to unclaim them."""
        if self._acks.is_refused(on_done):
            return False

        def give_back(some: list[Delivery]) -> None:
            for each_ms, alike in self.delayed(some, delay_ms):
                self.release(group, alike, delay_ms=each_ms, error=error)

        def ended() -> None:
            if on_done is not None:
                self._write_queue.when_committed(on_done)

        self._in_slices(group, consumer, deliveries, give_back, ended)
        return True

    def release_in_slices(self, group: str, consumer: InFlightHolder, deliveries: list[Delivery]) -> None:
        """Requeue the unsettled deliveries of a closed consumer."""
        self._in_slices(group, consumer, deliveries, lambda some: self.release(group, some, delay_ms=0), lambda: None)

    def _in_slices(
        self,
        name: str,
        consumer: InFlightHolder,
        deliveries: list[Delivery],
        give_back: Callable[[list[Delivery]], None],
        ended: Callable[[], None],
    ) -> None:
        """Requeue deliveries, over several turns if they are many, except those that are settled meanwhile."""
        left = iter(deliveries)
        in_flight = self._index.group(name).in_flight

        def work(most: int) -> int:
            some = list(islice(left, most))
            unsettled = [each for each in some if in_flight.get(each.message.seq) is consumer]
            self._state.host.contain(give_back, unsettled)
            if len(some) < most:
                ended()
            return len(some)

        self._state.shared.slices.begin(work)

    def reject(
        self, group: str, consumer: InFlightHolder, deliveries: list[Delivery], error: str, on_done: Done | None
    ) -> bool:
        """Dead-letter deliveries that a consumer has claimed. Return False if refused now: it has to unclaim them."""
        if self._acks.is_refused(on_done):
            return False
        done = AllDone(on_done)

        def reject(some: list[Delivery]) -> None:
            if some:
                done.add()
                self.reject_now(group, some, error, done)

        self._in_slices(group, consumer, deliveries, reject, lambda: self._write_queue.when_committed(done))
        return True

    def delayed(self, deliveries: list[Delivery], delay_ms: int | None) -> list[tuple[int, list[Delivery]]]:
        """Return the deliveries with their delays: `delay_ms`, or if it is None, as in the queue's options."""
        options = self._state.options
        if delay_ms is not None or not options.backs_off:
            return [(options.nack_delay_ms(0, 0) if delay_ms is None else delay_ms, deliveries)]
        return [(options.nack_delay_ms(each.tries, each.message.seq), [each]) for each in deliveries]

    def reject_now(self, group: str, deliveries: list[Delivery], error: str, on_done: Done) -> None:
        """Dead-letter deliveries, at least one; `on_done` is called once, when all have ended, with the first error."""
        self._state.stats.rejected += len(deliveries)
        done = AllDone(on_done, len(deliveries))
        for delivery in deliveries:
            tries = delivery.tries + 1
            self._dead_letters.begin_move(self._index.group(group), delivery, Reason.REJECT, tries, error, done)
        self._wakeups.wake(group)

    def divide(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Return the deliveries that were the last try of their messages, and those that may be tried again."""
        most = self._state.options.max_tries
        if not most:
            return [], deliveries
        return [each for each in deliveries if each.tries + 1 >= most], [x for x in deliveries if x.tries + 1 < most]

    def release(self, name: str, deliveries: list[Delivery], *, delay_ms: int, error: str = "") -> None:
        """Return deliveries to their places with one more try; those that were tried too often or expired are dead.

        `delay_ms` is 0 if a consumer has closed or a lease has expired: the option `nack_delay` is only for messages
        that a consumer requeues.
        """
        state = self._state
        if not deliveries or state.is_closed:
            return
        group = self._index.group(name)
        now_ms, wall_ms = state.host.now_ms(), state.host.wall_ms()
        due_ms = now_ms + delay_ms if delay_ms > 0 else 0
        state.stats.released += len(deliveries)
        dead, alive = self.divide(deliveries)
        for delivery in dead:
            self._dead_letters.begin_move(group, delivery, Reason.MAX_TRIES, delivery.tries + 1, error)
        for delivery in alive:
            tries = delivery.tries + 1
            if 0 < delivery.message.expires_ms <= now_ms:
                self._dead_letters.expire(group, delivery.message)
                continue
            group.release(delivery.message, tries, due_ms, wall_ms + delay_ms)
            self._write_queue.released(TriesRecord(name, delivery.message.seq, 1, tries, due_ms))
        self._wakeups.wake(name)
        self._wakeups.changed()

    def released(self, release: Release) -> None:
        """Requeue the deliveries of a transaction that is on disk."""
        state = self._state
        group = self._index.group(release.group)
        now_ms, wall_ms = state.host.now_ms(), state.host.wall_ms()
        mature_ms = wall_ms + max(release.due_ms - now_ms, 0)
        state.stats.released += len(release.deliveries)
        for delivery in release.deliveries:
            group.release(delivery.message, delivery.tries + 1, release.due_ms, mature_ms)
        self._wakeups.wake(release.group)
        self._wakeups.changed()
