"""Pops: one message, taken for good.

It stays with its queue, as if it were leased, until the disk says that it is settled; only then it is given away.
Where that can't be written, or whoever asked is gone before it is, the message goes back to its place, and no try is
counted: nobody has seen it. A commit that fails may be on the disk all the same until another one has succeeded: so
long the pops in it are in doubt. They are not refused, but tried again until they are settled, or not wanted any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.breakdown import tell
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
        super().__init__(queue, group, 1, wait_ms, self._serve, on_done)
        self.on_done = on_done
        self.is_wanted = is_wanted
        self.is_in_doubt = False
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
        self.waiting: dict[Pop, None] = {}
        """Those whose settles go into the next commits."""

    def settle(self, pop: Pop) -> None:
        """Have a message settled; the answer comes with the commit."""
        queue = self._queue
        if queue.writer.failure:
            self._put_back([pop])
            queue.host.call_soon(partial(pop.on_done, Unavailable(queue.writer.failure)))
            return
        self.waiting[pop] = None
        queue.dirty()

    def withdraw(self, pop: Pop) -> bool:
        """Give a message back, unless its settle is being written, or may have been; return whether that was so."""
        if pop not in self.waiting or pop.is_in_doubt:
            return False
        self._drop(pop)
        return True

    def _drop(self, pop: Pop) -> None:
        del self.waiting[pop]
        self._put_back([pop])

    def drop_unwanted(self) -> None:
        """Give back what nobody is left to take."""
        unwanted = [pop for pop in self.waiting if pop.is_wanted is not None and not pop.is_wanted()]
        for pop in unwanted:
            self._drop(pop)
            self._queue.host.call_soon(partial(pop.on_done, None))

    def by_group(self) -> dict[str, list[Pop]]:
        """Return those that wait, by group."""
        found: dict[str, list[Pop]] = {}
        for pop in self.waiting:
            found.setdefault(pop.group, []).append(pop)
        return found

    def writing(self, pops: list[Pop]) -> None:
        """Their settles are part of the commit that begins."""
        for pop in pops:
            del self.waiting[pop]

    def written(self, pops: list[Pop]) -> None:
        """A commit is on disk, their settles with it: give the messages away. No earlier one is in doubt any more."""
        for pop in self.waiting:
            pop.is_in_doubt = False
        queue = self._queue
        held: dict[str, list[Message]] = {}
        for pop in self._held(pops):
            held.setdefault(pop.group, []).append(pop.delivery.message)
        for group, messages in held.items():
            queue.pending.clear(group, messages)
            queue.wake(group)
        queue.stats.acked += len(pops)
        for pop in pops:
            tell(queue, pop.on_done, pop.delivery)

    def try_again(self, pops: list[Pop]) -> None:
        """Their settles go into the next commit, before those of others."""
        self.waiting = dict.fromkeys(pops) | self.waiting

    def failed(self, pops: list[Pop], error: CurbstoneError, *, is_undone: bool) -> None:
        """Their settles could not be written; `is_undone` where nothing of them can be on the disk."""
        if not is_undone:
            for pop in pops:
                pop.is_in_doubt = True
        if not self._queue.is_closed:
            self.try_again([pop for pop in pops if pop.is_in_doubt])
            pops = [pop for pop in pops if not pop.is_in_doubt]
        self._put_back(pops)
        for pop in pops:
            tell(self._queue, pop.on_done, error)

    def refuse_all(self, error: CurbstoneError) -> None:
        """Nothing more is written for now, or the queue has ended."""
        waiting, self.waiting = list(self.waiting), {}
        self.failed(waiting, error, is_undone=True)

    def _put_back(self, pops: list[Pop]) -> None:
        for pop in self._held(pops):
            self._queue.put_back(pop.group, [pop.delivery])

    def _held(self, pops: list[Pop]) -> list[Pop]:
        """Return those whose message was not settled meanwhile, by its id or with all before another."""
        pending = self._queue.pending
        return [pop for pop in pops if pop.delivery.message.seq in pending.group(pop.group).wip]
