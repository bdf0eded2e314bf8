"""What an operator does to one queue: look at it, empty it, send dead letters home, undo settles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.admin.peek import Peek
from curbstone.core.admin.purge import purge
from curbstone.core.admin.redrive import Redrive
from curbstone.core.admin.undo import Undo
from curbstone.core.engine.compaction.cleaner import Cleaner
from curbstone.core.engine.delivery.dead_letters import Elsewhere
from curbstone.core.engine.delivery.pull import Counter
from curbstone.core.engine.facts.facts import Facts
from curbstone.core.engine.index.index import Index
from curbstone.core.engine.log.log import Log
from curbstone.core.engine.state import QueueState
from curbstone.core.engine.wakeups import Agenda
from curbstone.core.engine.write_queue import Outbox
from curbstone.core.errors import CurbstoneError
from curbstone.core.names import QueueName
from curbstone.core.values import Done, May, Moved, Peeked, Undoing, UndoWish


class Upkeep:
    """See the module's docstring, and `core.port.Queue`."""

    __slots__ = (
        "_agenda", "_cleaner", "_counter", "_elsewhere", "_erase_refusal", "_erasing", "_facts", "_index", "_log",
        "_outbox", "_state", "_undo",
    )  # fmt: skip

    def __init__(
        self,
        state: QueueState,
        agenda: Agenda,
        log: Log,
        index: Index,
        facts: Facts,
        outbox: Outbox,
        cleaner: Cleaner,
        counter: Counter,
        elsewhere: Elsewhere,
        erasing: Callable[[int, Done], Done],
        erase_refusal: Callable[[int], CurbstoneError | None],
    ) -> None:
        """`erasing` is called with the queue's uid and a callback; see `core.admin.purge`.

        `erase_refusal(uid)` says why erasing would fail, if that is known before.
        """
        self._state = state
        self._agenda = agenda
        self._log = log
        self._index = index
        self._facts = facts
        self._outbox = outbox
        self._cleaner = cleaner
        self._counter = counter
        self._elsewhere = elsewhere
        self._erasing = erasing
        self._erase_refusal = erase_refusal
        self._undo: Undo | None = None
        """None before the first undo and purge."""

    def peek(
        self,
        limit: int,
        on_done: Callable[[list[Peeked] | CurbstoneError], None],
        *,
        after: int = 0,
        state: str = "",
        group: str | None = None,
    ) -> None:
        """Return up to `limit` messages behind seq `after` in order, of one group or all, without changing anything."""
        Peek(self._state, self._index, limit, after, state, group, on_done).go_on()

    def purge(self, on_done: Callable[[CurbstoneError | None, int], None], *, keep: bool = False) -> None:
        """Remove messages that are rdy or delayed; `on_done(error, count)` comes when the disk has none of their bytes.

        With `keep` it comes when their settles are on disk, and the log keeps them while it has room.
        """
        refusal = None if keep else self._erase_refusal(self._log.uid)
        if refusal is not None:
            self._state.host.call_soon(partial(on_done, refusal, 0))
            return
        self._undos().before_purge(lambda over: self._purge(on_done, over, keep=keep))

    def _purge(
        self, on_done: Callable[[CurbstoneError | None, int], None], over: Callable[[], None], *, keep: bool
    ) -> None:
        def done(error: CurbstoneError | None, count: int) -> None:
            over()
            on_done(error, count)

        erasing = None if keep else partial(self._erasing, self._log.uid)
        purge(self._state, self._agenda, self._index, self._facts, self._outbox, self._cleaner, erasing, done)

    def redrive(self, to: QueueName | None, limit: int, on_done: Moved, may: May | None = None, seq: int = 0) -> None:
        """See `core.port.Queue.redrive`. The `members` of an error say how many have moved; all others stay."""
        room = self._log.room
        Redrive(self._counter, self._index, room, self._elsewhere, to, limit, on_done, may, seq).begin()

    def undo(self, wish: UndoWish, on_done: Undoing) -> None:
        """See `core.port.Queue.undo`."""
        self._undos().begin(wish, on_done)

    def _undos(self) -> Undo:
        self._undo = self._undo or Undo(self._state, self._log, self._index, self._outbox)
        return self._undo

    @property
    def is_undoing(self) -> bool:
        """Whether an undo is under way, which still needs what the log has."""
        return self._undo is not None and self._undo.is_busy
