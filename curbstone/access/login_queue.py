"""Logins that wait for hashing are served round-robin by network, so one network can't delay the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class WaitingLogin(NamedTuple):
    """A waiting login. One of the two is called, once."""

    start: Callable[[], None]
    refuse: Callable[[], None]


class LoginQueue:
    """A bounded queue that serves networks in turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._queues: dict[str, deque[WaitingLogin]] = {}
        """The waiting logins by network. The network whose turn is next is first."""

    def add(self, network: str, login: WaitingLogin) -> None:
        """Add a login. If too many wait, refuse the newest one of the network with the most."""
        queue = self._queues.setdefault(network, deque())
        queue.append(login)
        self._count += 1
        if self._count > self._most:
            longest = max(self._queues, key=lambda each: len(self._queues[each]))
            if len(self._queues[longest]) == len(queue):
                longest = network
            self._pop(longest, newest=True).refuse()

    def take(self) -> WaitingLogin | None:
        """Remove and return the login whose turn it is; None if none waits."""
        network = next(iter(self._queues), None)
        if network is None:
            return None
        login = self._pop(network)
        if network in self._queues:
            self._queues[network] = self._queues.pop(network)
        return login

    def _pop(self, network: str, *, newest: bool = False) -> WaitingLogin:
        queue = self._queues[network]
        self._count -= 1
        login = queue.pop() if newest else queue.popleft()
        if not queue:
            del self._queues[network]
        return login
