"""Groups that nobody declared: they are made when they are named, forgotten when nothing needs them, and are few.

Whoever publishes or consumes may name any group, without being known to anybody. A group is needed while something is
pending in it, while somebody takes part in it, and until the log knows what was settled and what was handed out. What
the log says of it stays true without it: a start makes it again where something is pending in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from curbstone.core.errors import Conflict
from curbstone.core.message import Message
from curbstone.core.pending.group import Group
from curbstone.core.pending.memory import Memory
from curbstone.core.state import QueueState
from curbstone.core.values import UNNAMED

UNDECLARED_MAX = 256
"""The most undeclared groups that a queue needs at once."""

SPARE_MAX = 16


class Undeclared:
    """Keeps the undeclared groups of one queue few."""

    __slots__ = ("_groups", "_in_use", "_memory", "_state", "_sweep_at")

    def __init__(
        self, state: QueueState, memory: Memory, groups: dict[str, Group], in_use: Callable[[], Set[str]]
    ) -> None:
        self._state = state
        self._memory = memory
        self._groups = groups
        """All groups of the queue, the declared ones and the unnamed one included."""
        self._in_use = in_use
        self._sweep_at = SPARE_MAX

    def make(self, name: str, first: int) -> Group:
        """Return a new group. That sweeps so rarely that it costs a constant for each."""
        if len(self._groups) >= self._sweep_at:
            self.sweep()
        group = self._groups[name] = Group(self._memory, name, first)
        return group

    def sweep(self) -> None:
        """Forget the groups that nothing needs."""
        in_use = self._in_use()
        declared = self._state.meta.groups
        for name in [name for name in self._groups if name != UNNAMED and name not in declared and name not in in_use]:
            group = self._groups[name]
            if not group.is_in_use and group.delivered <= group.delivered_logged:
                del self._groups[name]
        self._sweep_at = 2 * len(self._groups) + SPARE_MAX

    def refusal(self, names: Iterable[str], coming: set[str] | None = None) -> Conflict | None:
        """Return why these groups can't be named, or None; they are added to `coming`, of which the same was asked."""
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

    def refusal_of(self, messages: list[Message], coming: set[str]) -> Conflict | None:
        """Return why the groups that messages name can't be, or None; see `refusal`."""
        return self.refusal([name for message in messages for name in message.groups], coming)
