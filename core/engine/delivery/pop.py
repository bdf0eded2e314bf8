"""Pops: a message is delivered and settled in one call.

The message stays with its queue, as if it were leased, until its settle is on disk; only then it is given away. If the
settle can't be written, or the caller is gone before it is, the message returns to its place. No try is counted
then, because no client has seen it.

A commit that has failed may be on the disk all the same, until another one has succeeded. So long the pops in it are in
doubt: they are not refused, but tried again until they are settled or their callers are gone.
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
    """The pops of one queue that have a message which is not settled on disk yet; they are kept in its write queue."""

    __slots__ = ("_acks", "_index", "_state", "_wakeups", "_write_queue")

    def __init__(self, dispatcher: Dispatcher) -> None:
        parts = dispatcher.parts
        self._state = parts.state
        self._wakeups = parts.wakeups
        self._index = parts.index
        self._write_queue = parts.write_queue
        self._acks = dispatcher.acks

    def settle(self, pop: Pop) -> None:
        """Have the message of a pop settled; the client gets it after the commit."""
        failure = self._state.failure
        if failure:
            self._put_back([pop])
            self._state.host.call_soon(partial(pop.on_done, Unavailable(failure)))
        else:
            self._write_queue.pop(pop)

    def withdraw(self, pop: Pop) -> bool:
        """Give the message of a pop back; return False if its settle is being written, or may have been."""
        if pop not in self._write_queue.pops or pop.is_in_doubt:
            return False
        self._drop(pop)
        return True

    def _drop(self, pop: Pop) -> None:
        del self._write_queue.pops[pop]
        self._put_back([pop])

    def drop_unwanted(self) -> None:
        """Give back the messages of pops whose callers are gone."""
        unwanted = [pop for pop in self._write_queue.pops if pop.is_wanted is not None and not pop.is_wanted()]
        for pop in unwanted:
            self._drop(pop)
            self._state.host.call_soon(partial(pop.on_done, None))

    def written(self, pops: list[Pop]) -> None:
        """A commit with the settles of these pops is on disk: give the messages away. No pop is in doubt any more."""
        for pop in self._write_queue.pops:
            pop.is_in_doubt = False
        held: dict[str, list[Message]] = {}
        for pop in self._held(pops):
            held.setdefault(pop.group, []).append(pop.delivery.message)
        for group, messages in held.items():
            self._index.clear(group, messages)
            self._wakeups.wake(group)
        self._state.stats.acked += len(pops)
        for pop in pops:
            self._state.host.notify(pop.on_done, pop.delivery)

    def failed(self, pops: list[Pop], error: CurbstoneError, *, is_undone: bool) -> None:
        """The commit with the settles of these pops failed; if it `is_undone`, they are certainly not on the disk."""
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
        """Refuse the pops that wait: nothing is written for now, or the queue has ended."""
        waiting, self._write_queue.pops = list(self._write_queue.pops), {}
        self.failed(waiting, error, is_undone=True)

    def _put_back(self, pops: list[Pop]) -> None:
        for pop in self._held(pops):
            self._acks.put_back(pop.group, [pop.delivery])

    def _held(self, pops: list[Pop]) -> list[Pop]:
        """Return the pops whose message was not settled meanwhile: by its id, or by an ack of all up to a seq."""
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
        """What it has been given."""

    def _given(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            self._pop = Pop(self.group, deliveries[0], self._on_done, self._is_wanted)
            self._pops.settle(self._pop)
        else:
            self._state.host.call_soon(partial(self._on_done, None))

    def cancel(self) -> bool:
        """See `Pull.cancel`. It is too late once the settle is being written."""
        return super().cancel() or (self._pop is not None and self._pops.withdraw(self._pop))
