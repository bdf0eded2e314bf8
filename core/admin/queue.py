"""A queue with all that the local engine can do: reading by position, and what operators do to a queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.admin.keys import count_keys
from curbstone.core.admin.peek import Peek
from curbstone.core.admin.purge import purge
from curbstone.core.admin.redrive import Redrive
from curbstone.core.admin.undo import Undo
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.log.meta import Meta
from curbstone.core.engine.queue import BrokerCalls, Queue
from curbstone.core.engine.shared import Shared
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.reader.groups import ReadingGroups
from curbstone.core.values import UNNAMED, Counted, FoundKeys, May, Moved, Peeks, Undoing, UndoRequest


class LocalQueue(Queue):
    """What the engine's own tests do not need of a queue. Implements `core.port.Queue`."""

    __slots__ = ("_undo", "reading")

    def __init__(self, shared: Shared, meta: Meta, log: Log, broker: BrokerCalls) -> None:
        super().__init__(shared, meta, log, broker)
        self._undo: Undo | None = None
        """None before the first undo and purge."""
        self.reading = ReadingGroups(self.parts, self.cleaner, self.meta_writer, self.store)

    def peek(self, limit: int, on_done: Peeks, *, after: int = 0, state: str = "", group: str | None = None) -> None:
        Peek(self.parts, limit, after, state, group, on_done).proceed()

    def keys(self, limit: int, on_done: FoundKeys, *, by_in_flight: bool = False, group: str = UNNAMED) -> None:
        count_keys(self.parts, limit, by_in_flight, group, on_done)

    def purge(self, on_done: Counted, *, keep: bool = False) -> None:
        uid = self.log.uid
        refusal = None if keep else self.state.shared.syncer.erase_refusal(uid)
        if refusal is not None:
            self.host.call_soon(partial(on_done, refusal, 0))
            return

        def begin(over: Callable[[], None]) -> None:
            def done(error: CurbstoneError | None, count: int) -> None:
                over()
                on_done(error, count)

            purge(self.parts, self.cleaner, None if keep else partial(self._broker.erasing, uid), done)

        self._undos().before_purge(begin)

    def redrive(self, to: QueueName | None, limit: int, on_done: Moved, may: May | None = None, seq: int = 0) -> None:
        """See `core.port.Queue.redrive`. The `members` of an error say how many have moved; all others stay."""
        Redrive(self.dispatcher, self._broker.find, self._mover, to, limit, on_done, may, seq).begin()

    def undo(self, request: UndoRequest, on_done: Undoing) -> None:
        self._undos().begin(request, on_done)

    def _undos(self) -> Undo:
        self._undo = self._undo or Undo(self.parts, self.writer)
        return self._undo

    def _is_idle(self) -> bool:
        """See `Queue._is_idle`. An undo still needs what the log has."""
        return super()._is_idle() and not (self._undo is not None and self._undo.is_busy)
