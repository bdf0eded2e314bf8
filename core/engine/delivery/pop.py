"""Pops: a message is delivered and settled in one call.

The message stays in flight, as if it were leased, until its settle is on disk; then the caller gets it. If the settle
can't be written, or the caller disconnects before that, the message is requeued without counting a try, because no
client has seen it.

A commit that has failed may be on the disk all the same, until another one has succeeded. Until then, its pops are in
doubt: they are not refused, but tried again until they are settled or their callers have disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.pull import Pull
from curbstone.core.engine.write_queue import Pop
from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.message import Delivery, Message
from curbstone.core.values import Popped


class Pops:
    """The pops of one queue whose messages are not settled on disk yet. They are in its write queue."""

    __slots__ = ("_acks", "_index", "_state", "_wakeups", "_write_queue")

    def __init__(self, dispatcher: Dispatcher) -> None:
        parts = dispatcher.parts
        self._state = parts.state
        self._wakeups = parts.wakeups
        self._index = parts.index
        self._write_queue = parts.write_queue
        self._acks = dispatcher.acks

    def settle(self, pop: Pop) -> None:
        """Settle the message of a pop with the next commit, after which the client gets it."""
        failure = self._state.failure
        if failure:
            self._put_back([pop])
            self._state.host.call_soon(partial(pop.on_done, Unavailable(failure)))
        else:
            self._write_queue.pop(pop)

    def withdraw(self, pop: Pop) -> bool:
        """Requeue the message of a pop; return False if its settle is being written, or may have been."""
        if pop not in self._write_queue.pops or pop.is_in_doubt:
            return False
        self._drop(pop)
        return True

    def _drop(self, pop: Pop) -> None:
        del self._write_queue.pops[pop]
        self._put_back([pop])

    def drop_unwanted(self) -> None:
        """Requeue the messages of pops whose callers have disconnected."""
        unwanted = [pop for pop in self._write_queue.pops if pop.is_wanted is not None and not pop.is_wanted()]
        for pop in unwanted:
            self._drop(pop)
            self._state.host.call_soon(partial(pop.on_done, None))

    def written(self, pops: list[Pop]) -> None:
        """Give the messages of these pops to their callers: their settles are on disk. No pop is in doubt any more."""
        for pop in self._write_queue.pops:
            pop.is_in_doubt = False
        by_group: dict[str, list[Message]] = {}
        for pop in self._in_flight(pops):
            by_group.setdefault(pop.group, []).append(pop.delivery.message)
        for group, messages in by_group.items():
            self._index.clear(group, messages)
            self._wakeups.wake(group)
        self._state.stats.acked += len(pops)
        for pop in pops:
            self._state.host.notify(pop.on_done, pop.delivery)

    def failed(self, pops: list[Pop], error: CurbstoneError, *, is_undone: bool) -> None:
        """Refuse these pops, whose commit has failed, or if it may be on disk (not `is_undone`), try them again."""
        if not is_undone:
            for pop in pops:
                pop.is_in_doubt = True
        if not self._state.is_closed:
            self._write_queue.pop_first([pop for pop in pops if pop.is_in_doubt])
            pops = [pop for pop in pops if not pop.is_in_doubt]
        self._put_back(pops)
        for pop in pops:
            self._state.host.notify(pop.on_done, error)

    def refuse_all(self, error: CurbstoneError) -> None:
        """Refuse the pops that wait, because nothing is written for now, or the queue has ended."""
        waiting, self._write_queue.pops = list(self._write_queue.pops), {}
        self.failed(waiting, error, is_undone=True)

    def _put_back(self, pops: list[Pop]) -> None:
        for pop in self._in_flight(pops):
            self._acks.put_back(pop.group, [pop.delivery])

    def _in_flight(self, pops: list[Pop]) -> list[Pop]:
        """Return the pops whose messages were not settled meanwhile, by id or by an ack of all up to a seq."""
        return [pop for pop in pops if pop.delivery.message.seq in self._index.group(pop.group).in_flight]


class PopPull(Pull):
    """The pull of a pop: it waits for a message, then for the disk."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        pops: Pops,
        group: str,
        wait_ms: int,
        on_done: Popped,
        is_wanted: Callable[[], bool] | None,
    ) -> None:
        super().__init__(dispatcher, group, 1, wait_ms, self._given, on_done)
        self._pops = pops
        self._on_done = on_done
        self._is_wanted = is_wanted
        self._pop: Pop | None = None
        """Its message; None while it waits for one."""

    def _given(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._pop = Pop(self.group, deliveries[0], self._on_done, self._is_wanted)
            self._pops.settle(self._pop)
        else:
            self._state.host.call_soon(partial(self._on_done, None))

    def cancel(self) -> bool:
        """See `Pull.cancel`; also False once the settle is being written."""
        return super().cancel() or (self._pop is not None and self._pops.withdraw(self._pop))
