"""Ordering keys in a simulated run: in a group of a queue the messages of a key come in order, one at a time.

That holds across crashes, too: nothing comes again once a later message of its key was handed out.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.admin.queue import LocalQueue
from curbstone.core.headers import key_of
from curbstone.core.message import Message
from curbstone.core.values import UNNAMED
from tests.sim.history import History, Violation


class Turns:
    """What was handed out last of each key; `is_leased` tells whether somebody has a lease of a message."""

    def __init__(self, history: History, is_leased: Callable[[LocalQueue, int], bool]) -> None:
        self._history = history
        self._is_leased = is_leased
        self._last: dict[tuple[str, str, bytes], Message] = {}
        self._may_go_back = False

    def go_back(self) -> None:
        """From now on messages may return that were settled, to where they were."""
        self._may_go_back = True

    def handed_out(self, queue: LocalQueue, group: str, message: Message) -> None:
        """A message was handed to somebody; what is wrong with that is kept for `History.check`."""
        key = key_of(message.headers)
        if not key or self._history.shares_keys:
            return
        last = self._last.get((queue.uid, group, key))
        self._last[queue.uid, group, key] = message
        if last is None or last.seq == message.seq:
            return
        whose = f"{queue.name} {group!r} {key!r}: {message.seq}"
        if message.seq < last.seq and not self._may_go_back:
            self._history.violations.append(Violation(f"{whose} came behind {last.seq}"))
        is_leased = group == UNNAMED and self._is_leased(queue, last.seq)
        holder = self._history.live.get(self._history.token(last, group), "")
        if is_leased or holder == f"a consumer of {queue.name}":  # and not of where its dead letter went
            self._history.violations.append(Violation(f"{whose} came while {last.seq} was not settled"))
