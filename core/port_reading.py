"""What adapters may ask of an engine that reads queues by position; `core.port` has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from curbstone.core.errors import CurbstoneError
from curbstone.core.positions import (
    Asked,
    Backlog,
    Event,
    Found,
    Frame,
    GroupInfo,
    Informed,
    Start,
    Stretch,
    Waited,
    Wanted,
)

T = TypeVar("T")


class Waiter(Protocol):
    """A call that may wait, and can be given up."""

    def cancel(self) -> bool:
        """Give it up: what it would have got stays in the queue. False if it is too late, and the answer comes."""


class Reading(Protocol):
    """Reading a queue by position, by declared groups; see `core.positions`."""

    @property
    def next(self) -> int:
        """One past the last committed seq: everything below it is there or never will be."""

    def first(self) -> int:
        """Return the first seq that is pending anywhere, else `next`."""

    def check_epoch(self, epoch: str | None) -> None:
        """Raise Gone if positions are of an earlier queue of this name; None is no claim."""

    def backlogs(self) -> list[Backlog]:
        """Return what waits for each named group that is declared, or that a message waits for; by name."""

    def infos(self) -> list[GroupInfo]:
        """Return what is told about each group of `backlogs`."""

    def is_declared(self, name: str) -> bool:
        """Tell whether a group is declared."""

    def position(self, name: str) -> int:
        """Return up to where a declared group is done; raise NoSuchGroup."""

    def floor(self, name: str) -> int:
        """Return the seq below which a declared group has lost messages; raise NoSuchGroup."""

    def info(self, name: str) -> GroupInfo:
        """Return what is told about a group; raise NoSuchGroup."""

    def declare(self, name: str, start: Start, skips: bool | None, on_done: Informed) -> None:
        """Declare a group that begins at `start`, or change what one that is there does at the cap."""

    def ack_to(self, name: str, seq: int, on_done: Informed, reader: str = "") -> None:
        """Settle everything up to `seq` for a declared group; raise NoSuchGroup, BadRequest or OtherReader."""

    def find_time(self, timestamp_ms: int, on_done: Found) -> None:
        """Tell the first live seq that was published at `timestamp_ms` or later, else `next`."""

    def wait_for(self, seq: int, wait_ms: int, on_done: Waited) -> Waiter:
        """Call back when `next` is above `seq`, when the time is up, or when the queue ends."""

    def browse(
        self,
        wanted: Wanted,
        render: Callable[[list[Frame]], T],
        on_done: Callable[[CurbstoneError | None, T | None, int], None],
    ) -> None:
        """Look at one page: `on_done(error, render(frames), where to go on)`. `render` runs on a worker thread.

        Raise NoSuchGroup, and Gone if what is wanted is lost.
        """

    def stretch(self, group: str, first: int, bytes_max: int) -> Stretch:
        """Return how far `bytes_max` reach from the seq `first` on, by what is pending in a group."""

    @property
    def events_start(self) -> int:
        """The position of the oldest event there may be."""

    @property
    def events_end(self) -> int:
        """The position behind the last event."""

    def events(
        self,
        asked: Asked,
        render: Callable[[list[Event]], bytes],
        on_done: Callable[[CurbstoneError | None, list[bytes], int], None],
    ) -> None:
        """Read a page of events: `on_done(error, what render made of them, where to go on)`; raise Gone."""

    def wait_for_events(self, position: int, wait_ms: int, on_done: Waited) -> Waiter:
        """Call back when there are events behind `position`, when the time is up, or when the queue ends."""
