"""The part of the port for reading queues by position; `core.port` has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from curbstone.core.positions import (
    Backlog,
    Event,
    Found,
    Frame,
    GroupInfo,
    Informed,
    ListDone,
    PageDone,
    ReadRequest,
    Start,
    Stretch,
    Trace,
    Trail,
    Waited,
    Wanted,
)

T = TypeVar("T")


class Waiter(Protocol):
    """A call that may wait, and that can be given up."""

    def cancel(self) -> bool:
        """Give the call up: no message is taken. Return False if it is too late; then the answer is sent."""


class Reading(Protocol):
    """Reading a queue by position, and its declared groups; see `core.positions`."""

    @property
    def next(self) -> int:
        """One past the last committed seq. Every message below it is there now or never will be."""

    def first(self) -> int:
        """Return the first seq that is pending in any group, or `next` if there is none."""

    def check_epoch(self, epoch: str | None) -> None:
        """Raise Conflict if positions are those of an earlier queue of this name; None means not to check."""

    def backlogs(self) -> list[Backlog]:
        """Return the backlog of each named group that is declared or has pending messages, sorted by name."""

    def infos(self) -> list[GroupInfo]:
        """Return a description of each group of `backlogs`, also of those that are not declared."""

    def is_declared(self, name: str) -> bool:
        """Return whether a group is declared."""

    def position(self, name: str) -> int:
        """Return the position of a declared group, which has settled everything below; raise NoSuchGroup."""

    def floor(self, name: str) -> int:
        """Return the seq below which a declared group has lost messages; raise NoSuchGroup."""

    def info(self, name: str) -> GroupInfo:
        """Return a description of a declared group; raise NoSuchGroup."""

    def declare(self, name: str, start: Start, skips: bool | None, on_done: Informed) -> None:
        """Declare a group that begins at `start`, or change whether an existing one `skips` messages at the cap."""

    def ack_to(self, name: str, seq: int, on_done: Informed, reader: str = "") -> None:
        """Settle everything up to `seq` in a declared group; raise NoSuchGroup, BadRequest or OtherReader."""

    def find_time(self, timestamp_ms: int, on_done: Found) -> None:
        """Find the first live seq that was published at `timestamp_ms` or later; `next` if there is none."""

    def wait_for(self, seq: int, wait_ms: int, on_done: Waited) -> Waiter:
        """Call back when `next` is above `seq`, when the time is up, or when the queue ends."""

    def browse(self, wanted: Wanted, render: Callable[[list[Frame]], T], on_done: PageDone[T]) -> None:
        """Read one page: `on_done(error, render(frames), where to continue)`. `render` runs on a worker thread.

        Raise NoSuchGroup, and Gone if messages that are wanted have been lost.
        """

    def stretch(self, group: str, first: int, bytes_max: int) -> Stretch:
        """Return how far `bytes_max` bytes of messages that are pending in a group reach, from the seq `first` on."""

    @property
    def events_start(self) -> int:
        """The position of the oldest event there may be."""

    @property
    def events_end(self) -> int:
        """The position behind the last event."""

    def events(self, asked: ReadRequest, render: Callable[[list[Event]], bytes], on_done: ListDone[bytes]) -> None:
        """Read a page of events: `on_done(error, results of render, where to continue)`; raise Gone."""

    def traces(self, position: int, trail: Trail, on_done: ListDone[Trace]) -> None:
        """Read some of the log from a position on: `on_done(error, what was found, where to continue)`; raise Gone."""

    def wait_for_events(self, position: int, wait_ms: int, on_done: Waited) -> Waiter:
        """Call back when there are events behind `position`, when the time is up, or when the queue ends."""
