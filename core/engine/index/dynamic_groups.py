"""Undeclared groups: they are made when they are named, and removed when nothing needs them.

Producers and consumers may name any group, so the number of groups has to be limited. A group is needed while it has
pending messages or consumers, and until everything settled and delivered in it is in the log. The log does not need
the group: if messages are pending in it after a restart, it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from curbstone.core.engine.index.group import Group
from curbstone.core.engine.index.reader import Reader
from curbstone.core.engine.state import QueueState
from curbstone.core.errors import Conflict
from curbstone.core.values import UNNAMED

UNDECLARED_MAX = 256
"""The most undeclared groups that may be needed in a queue at once."""

SPARE_MAX = 16


class DynamicGroups:
    """Makes and removes the undeclared groups of one queue."""

    __slots__ = ("_groups", "_in_use", "_reader", "_state", "_sweep_at")

    def __init__(
        self, state: QueueState, reader: Reader, groups: dict[str, Group], in_use: Callable[[], Set[str]]
    ) -> None:
        self._state = state
        self._reader = reader
        self._groups = groups
        """All groups of the queue, including the declared ones and the unnamed one."""
        self._in_use = in_use
        self._sweep_at = SPARE_MAX

    def make(self, name: str, first: int) -> Group:
        """Return a new group. Sweeps are so rare that the average cost of a group is constant."""
        if len(self._groups) >= self._sweep_at:
            self.sweep()
        group = self._groups[name] = Group(self._reader, name, first)
        return group

    def sweep(self) -> None:
        """Forget the groups that nothing needs."""
        in_use = self._in_use()
        declared = self._state.meta.groups
        for name in [name for name in self._groups if name != UNNAMED and name not in declared and name not in in_use]:
            group = self._groups[name]
            if not group.is_in_use and not any([level.delivered > level.delivered_logged for level in group.levels]):
                del self._groups[name]
        self._sweep_at = 2 * len(self._groups) + SPARE_MAX

    def refusal(self, names: Iterable[str], coming: set[str] | None = None) -> Conflict | None:
        """Return why these groups can't be named, or None; then add the new ones to `coming`.

        `coming` has the new groups of earlier calls that do not exist yet.
        """
        groups, declared = self._groups, self._state.meta.groups
        coming = set() if coming is None else coming
        fresh = {name for name in names if name not in groups and name not in coming}
        wanted = len(fresh) + len(coming)
        if fresh and len(groups) + wanted > UNDECLARED_MAX + 1 + len(declared):
            self.sweep()
            if len(groups) + wanted > UNDECLARED_MAX + 1 + len(declared):
                return Conflict(
                    f"queue {self._state.name} would have more than {UNDECLARED_MAX} undeclared groups at once:"
                    " declare groups, or settle what is pending in those there are"
                )
        coming |= fresh
        return None
