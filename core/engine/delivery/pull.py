"""Pulls: each takes messages for one answer, which are ready now or within a time. Pops and leases are pulls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.errors import CurbstoneError
from curbstone.core.holders import waiting_call
from curbstone.core.message import Delivery
from curbstone.core.values import UNKNOWN, ClientInfo, Holder, ignore

LEASE_BYTES_MAX = 4 * 1024 * 1024
"""An answer takes no more messages once their headers and bodies have so many bytes."""


class Pull:
    """Takes deliveries for one answer, now or within `wait_ms`.

    It gathers until it has `count` messages, or LEASE_BYTES_MAX bytes, or nothing more is ready; a message that must be
    read from the disk first counts as ready. Then `answer` is called once with what was gathered, which may be nothing,
    unless the pull was cancelled before. If the group does not exist and can't be made, `refuse` is called instead.
    """

    weight = 1

    def __init__(
        self,
        dispatcher: Dispatcher,
        group: str,
        count: int,
        wait_ms: int,
        answer: Callable[[list[Delivery]], None],
        refuse: Callable[[CurbstoneError], None],
        client_info: ClientInfo = UNKNOWN,
    ) -> None:
        self.client_info = client_info
        self._dispatcher = dispatcher
        self._state = dispatcher.parts.state
        self.group = group
        self.credit = count
        self._answer = answer
        self._refuse = refuse
        self._gathered: list[Delivery] = []
        self._bytes = 0
        self._waits = wait_ms > 0
        self._timer = self._state.host.call_later(wait_ms, self.finish_empty) if self._waits else None

    def begin(self) -> Pull:
        """Join the round robin of the group; return the pull."""
        if self._state.is_closed:
            self._state.host.call_soon(self.finish_empty)
        elif refusal := self._dispatcher.parts.index.dynamic_groups.refusal([self.group]):
            self._leave()
            self._state.host.call_soon(partial(self._refuse, refusal))
        else:
            self._dispatcher.attach(self, self._none_ready)
        return self

    @property
    def waits(self) -> bool:
        """Whether it continues to wait when nothing is ready; not if it has gathered something."""
        return self._waits and not self._gathered

    def give(self, deliveries: list[Delivery]) -> None:
        if not self.credit:  # it was cancelled while deliveries were dealt
            self._dispatcher.acks.put_back(self.group, deliveries)
            return
        taken = 0
        for delivery in deliveries:
            if self._bytes >= LEASE_BYTES_MAX:
                break
            self._bytes += len(delivery.message.headers) + len(delivery.message.body)
            taken += 1
        self._gathered += deliveries[:taken]
        self.credit -= taken
        if self.credit and self._bytes < LEASE_BYTES_MAX:
            return
        self._finish()
        self._dispatcher.acks.put_back(self.group, deliveries[taken:])

    def finish_empty(self) -> None:
        """Answer with what was gathered: nothing more is ready, or the wait has ended."""
        if self.credit:
            self._finish()

    def _none_ready(self) -> None:
        """Answer with what was gathered, unless it continues to wait."""
        if not self.waits:
            self.finish_empty()

    def end(self, error: CurbstoneError) -> None:
        self.finish_empty()

    def cancel(self) -> bool:
        """Cancel the pull and requeue what was gathered; return False if it has been answered."""
        if not self.credit:
            return False
        self._leave()
        self._dispatcher.acks.put_back(self.group, self._gathered)
        return True

    def _finish(self) -> None:
        answer = self._answer
        self._leave()
        answer([] if self._state.is_closed else self._gathered)

    def _leave(self) -> None:
        self.credit = 0
        self._answer = ignore  # it may be a method of this very pull, which would keep itself in memory
        if self._timer is not None:
            self._timer.cancel()
        self._dispatcher.detach(self)


def waiting(dispatcher: Dispatcher) -> list[Holder]:
    """Return a holder for each pull that waits for a message."""
    pulls = [each for each in dispatcher.attached if isinstance(each, Pull)]
    return [waiting_call(pull.group, pull.credit, pull.client_info) for pull in pulls if pull.waits]
