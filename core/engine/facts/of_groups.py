"""Notes about declared groups: one value for each group, written to the log when it changes.

The note is written with the next batch, which also holds the settles that changed the value. It is written again when
the segment with the last note is dropped.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from curbstone.core.engine.state import QueueState

Value = TypeVar("Value")

_NONE: dict[str, Any] = {}
"""Shared by all queues that have no note yet."""


class GroupNotes(Generic[Value]):
    """The notes of one kind in one queue's log. A group without a note has the value `nothing`."""

    __slots__ = ("_logged", "_noted", "_nothing", "_values", "is_used", "state")

    def __init__(self, state: QueueState, nothing: Value) -> None:
        self.state = state
        self.is_used = False
        """Whether there ever was a note of this kind."""
        self._nothing = nothing
        self._values: dict[str, Value] = _NONE
        self._logged: dict[str, Value] = _NONE
        """The values in the log."""
        self._noted: dict[str, int] = _NONE
        """By group, the segment with the last note."""

    def of(self, name: str) -> Value:
        """Return the value of a group."""
        return self._values.get(name, self._nothing)

    def set(self, name: str, value: Value) -> None:
        """Give a group another value."""
        self._use()
        self._values[name] = value

    def _use(self) -> None:
        if not self.is_used:
            self.is_used = True
            self._values, self._logged, self._noted = {}, {}, {}

    def forget(self, name: str) -> None:
        """Forget a group that is no longer declared. The log is told so before another of that name can be declared."""
        self._values.pop(name, None)

    def to_log(self, floor: int) -> dict[str, Value]:
        """Return the values that the log does not have yet, or loses when the segments below `floor` are dropped."""
        return {
            name: self.of(name)
            for name in sorted(self._values.keys() | self._logged.keys())
            if self.of(name) != self._logged.get(name, self._nothing)
            or (name in self._noted and name in self._values and self._noted[name] < floor)
        }

    def logged(self, values: dict[str, Value], segment: int) -> None:
        """Take in that the notes of these values are on disk, in that segment."""
        self._use()
        for name, value in values.items():
            if value == self._nothing:
                self._logged.pop(name, None)
                self._noted.pop(name, None)
            else:
                self._logged[name] = value
                self._noted[name] = segment

    def recover(self, name: str, value: Value, segment: int, *, is_earlier: bool) -> None:
        """Take in a note that recovery has read; `is_earlier` if it speaks of an earlier group of that name."""
        self.logged({name: value}, segment)
        if name in self.state.meta.groups and not is_earlier:
            self._values[name] = value
