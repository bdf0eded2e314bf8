"""Pops: one message, taken for good.

It stays with its queue, as if it were leased, until the disk says that it is settled; only then it is given away.
Where that can't be written, or whoever asked is gone before it is, the message goes back to its place, and no try is
counted: nobody has seen it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.delivery.waiters import Waiter
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.message import Delivery, Message

if TYPE_CHECKING:
    from curbstone.core.queue import Queue

Popped = Callable[[Delivery | None | CurbstoneError], None]


class Pop(Waiter):
    """One pop: it waits for a message, then for the disk."""

    def __init__(
        self, queue: Queue, group: str, wait_ms: int, on_done: Popped, is_wanted: Callable[[], bool] | None
    ) -> None:
        super().__init__(queue, group, 1, wait_ms, self._serve)
        self.on_done = on_done
        self.is_wanted = is_wanted
        self.delivery: Delivery
        """What it has been given."""

    def _serve(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self.delivery = deliveries[0]
            self.queue.popping.settle(self)
        else:
            self.queue.host.call_soon(partial(self.on_done, None))

    def cancel(self) -> bool:
        """See `Waiter.cancel`: it is too late once its settle is being written."""
        return super().cancel() or self.queue.popping.withdraw(self)


class Popping:
    """The pops of one queue that have their message and are not settled."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: dict[Pop, None] = {}
        """Those whose settles go into the next commits."""

    def __len__(self) -> int:
        return len(self._waiting)

    def settle(self, pop: Pop) -> None:
        """Have a message settled; the answer comes with the commit."""
        queue = self._queue
        if queue.writer.failure:
            self._put_back([pop])
            queue.host.call_soon(partial(pop.on_done, Unavailable(queue.writer.failure)))
            return
        self._waiting[pop] = None
        queue.dirty()

    def withdraw(self, pop: Pop) -> bool:
        """Give a message back, unless its settle is being written; return whether that was so."""
        if pop not in self._waiting:
            return False
        del self._waiting[pop]
        self._put_back([pop])
        return True

    def drop_unwanted(self) -> None:
        """Give back what nobody is left to take."""
        unwanted = [pop for pop in self._waiting if pop.is_wanted is not None and not pop.is_wanted()]
        for pop in unwanted:
            self.withdraw(pop)
            self._queue.host.call_soon(partial(pop.on_done, None))

    def by_group(self) -> dict[str, list[Pop]]:
        """Return those that wait, by group."""
        found: dict[str, list[Pop]] = {}
        for pop in self._waiting:
            found.setdefault(pop.group, []).append(pop)
        return found

    def writing(self, pops: list[Pop]) -> None:
        """Their settles are part of the commit that begins."""
        for pop in pops:
            del self._waiting[pop]

    def written(self, pops: list[Pop]) -> None:
        """Their settles are on disk: give the messages away."""
        queue = self._queue
        held: dict[str, list[Message]] = {}
        for pop in self._held(pops):
            held.setdefault(pop.group, []).append(pop.delivery.message)
        for group, messages in held.items():
            queue.pending.clear(group, messages)
            queue.wake(group)
        queue.stats.acked += len(pops)
        for pop in pops:
            pop.on_done(pop.delivery)

    def try_again(self, pops: list[Pop]) -> None:
        """Nothing of the commit is on disk: their settles go into the next one, before those of others."""
        self._waiting = dict.fromkeys(pops) | self._waiting

    def failed(self, pops: list[Pop], error: CurbstoneError) -> None:
        """Their settles could not be written."""
        self._put_back(pops)
        for pop in pops:
            pop.on_done(error)

    def refuse_all(self, error: CurbstoneError) -> None:
        """Nothing more is written for now, or the queue has ended."""
        waiting, self._waiting = list(self._waiting), {}
        self.failed(waiting, error)

    def _put_back(self, pops: list[Pop]) -> None:
        for pop in self._held(pops):
            self._queue.put_back(pop.group, [pop.delivery])

    def _held(self, pops: list[Pop]) -> list[Pop]:
        """Return those whose message was not settled meanwhile, by its id or with all before another."""
        groups = self._queue.pending.groups
        return [pop for pop in pops if pop.delivery.message.seq in groups[pop.group].wip]
