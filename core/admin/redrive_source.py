"""Where a redrive gets its letters from: the next ones of the queue, or a single one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.engine.delivery.pull import Pull
from curbstone.core.engine.parts import Parts
from curbstone.core.errors import CurbstoneError
from curbstone.core.message import Delivery
from curbstone.core.values import UNNAMED

Take = Callable[[list[Delivery]], None]
Refuse = Callable[[CurbstoneError], None]


class Letters(Protocol):
    """Takes letters out of the unnamed group; they count as delivered."""

    stayed: dict[str, int]
    """How many letters could not be taken, by the reason."""
    has_more: bool
    """Whether there may be more letters when a redrive ends early."""

    def take(self, most: int, give: Take, refuse: Refuse) -> None:
        """Call `give` with up to `most` letters, or none if there are no more; or call `refuse`."""


class NextLetters:
    """All letters of a queue, in order."""

    has_more = True

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.stayed: dict[str, int] = {}

    def take(self, most: int, give: Take, refuse: Refuse) -> None:
        Pull(self._dispatcher, UNNAMED, most, 0, give, refuse).begin()


class OneLetter:
    """The letter with a given seq, out of turn, if it is ready."""

    has_more = False

    def __init__(self, parts: Parts, seq: int) -> None:
        self._parts = parts
        self._seq = seq
        self._is_taken = False
        self.stayed: dict[str, int] = {}

    def take(self, _most: int, give: Take, _refuse: Refuse) -> None:
        """See `Letters`; it is read from the disk first if need be."""
        if self._is_taken:
            give([])
            return
        self._is_taken = True
        self._find(give)

    def _find(self, give: Take) -> None:
        if self._parts.state.is_closed:  # the messages of a closed queue are not read any more
            give([])
            return
        seq, group = self._seq, self._parts.index.unnamed
        run = self._parts.index.runs.find(seq)
        if run is None or not run.pending(UNNAMED) >> (seq - run.first) & 1:
            give([])
        elif seq in group.in_flight:
            self._stays("it was delivered and is not settled", give)
        elif group.is_delayed(seq):
            self._stays("it is delayed", give)
        elif run.messages is None:
            self._parts.index.reader.load(run, lambda: self._find(give))
        else:
            message = run.messages[seq - run.first]
            give([group.seize_ready(message)] if message is not None else [])

    def _stays(self, why: str, give: Take) -> None:
        self.stayed[why] = 1
        give([])
