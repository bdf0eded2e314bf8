"""One connection that reconnects to the next node whenever it is lost, until the server stops.

`Calls` makes calls over it that may close their channel, such as declarations and deletions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from curbstone.core.errors import Unavailable
from curbstone.core.host import Host
from curbstone.rabbit.amqp.port import LOST, AmqpError, Channel, Connection, Connector

AGAIN_MS = 200
"""The pause before each attempt to reconnect."""
CALL_MS_MAX = 20_000
CHANNELS = 8

logger = logging.getLogger("curbstone.rabbit")


class Link:
    """A connection to any node. `when` registers callbacks for its start and end."""

    def __init__(self, host: Host, connector: Connector, name: str) -> None:
        self._host = host
        self._connector = connector
        self._name = name
        self._up: list[Callable[[Connection], None]] = []
        self._down: list[Callable[[str], None]] = []
        self._is_stopping = False
        self.connection: Connection | None = None
        self.trouble = "not connected yet"
        """Why there is no connection; empty if there is one."""
        self.blocked = ""
        """Why the broker accepts no messages; empty if it does."""

    def when(self, up: Callable[[Connection], None], down: Callable[[str], None]) -> None:
        """Call `up(connection)` for each connection, and `down(reason)` at its end. Call this before `start`."""
        self._up.append(up)
        self._down.append(down)

    def start(self) -> None:
        """Connect."""
        self._connector.connect(self._name, self._opened, self._lost, self._now_blocked)

    def close(self) -> None:
        """End the connection, and do not connect again."""
        self._is_stopping = True
        if self.connection is not None:
            self.connection.close()

    def leave(self) -> None:
        """Leave this node, which is unusable at the moment, and try the next one."""
        if self.connection is not None:
            self.connection.close()

    def _opened(self, connection: Connection) -> None:
        if self._is_stopping:
            connection.close()
            return
        logger.info("%s: connected to %s", self._name, connection.node)
        self.connection = connection
        self.trouble = ""
        for up in self._up:
            up(connection)

    def _lost(self, reason: str) -> None:
        was_up = self.connection is not None
        self.connection = None
        self.blocked = ""
        self.trouble = reason
        if was_up:
            for down in self._down:
                down(reason)
        if not self._is_stopping:
            logger.warning("%s: %s", self._name, reason)
            self._host.call_later(AGAIN_MS, self._try_again)

    def _try_again(self) -> None:
        if not self._is_stopping:
            self.start()

    def _now_blocked(self, reason: str) -> None:
        self.blocked = reason
        text = f"RabbitMQ accepts no messages: {reason}" if reason else "RabbitMQ accepts messages again"
        logger.warning("%s: %s", self._name, text)


class Call:
    """A call with its own channel. `run(channel, done)` makes the call, and `done(error)` ends it."""

    def __init__(
        self,
        run: Callable[[Channel, Callable[[AmqpError | None], None]], None],
        on_done: Callable[[AmqpError | None], None],
        deadline_ms: int,
    ) -> None:
        self.run = run
        self.on_done = on_done
        self.deadline_ms = deadline_ms


class Calls:
    """Calls over a link, a few at a time.

    Calls that a lost connection leaves unanswered are repeated, because all of them are idempotent. A call's `on_done`
    gets the error of AMQP or None, or the error LOST after CALL_MS_MAX.
    """

    def __init__(self, host: Host, link: Link) -> None:
        self._host = host
        self._link = link
        self._waiting: deque[Call] = deque()
        self._idle: list[Channel] = []
        self._opening = 0
        self._busy = 0
        self._timer_set = False
        link.when(lambda _connection: self._fill(), self._down)

    @property
    def is_working(self) -> bool:
        """Whether a call is under way."""
        return bool(self._waiting or self._busy)

    def do(
        self,
        run: Callable[[Channel, Callable[[AmqpError | None], None]], None],
        on_done: Callable[[AmqpError | None], None],
    ) -> None:
        """Make a call as soon as possible."""
        self._waiting.append(Call(run, on_done, self._host.now_ms() + CALL_MS_MAX))
        self._fill()
        self._watch()

    def _fill(self) -> None:
        connection = self._link.connection
        if connection is None:
            return
        while self._waiting and self._idle:
            channel = self._idle.pop()
            if channel.is_open:
                self._start(channel, self._waiting.popleft())
        wanted = min(CHANNELS - self._busy, len(self._waiting))
        while self._opening < wanted:
            self._opening += 1
            self._open(connection)

    def _open(self, connection: Connection) -> None:
        def opened(channel: Channel) -> None:
            if self._link.connection is connection:
                self._opening -= 1
                self._idle.append(channel)
                self._fill()

        connection.channel(opened, lambda _error: None)

    def _start(self, channel: Channel, call: Call) -> None:
        self._busy += 1

        def done(error: AmqpError | None) -> None:
            self._busy -= 1
            if error is not None and error.code == LOST and self._host.now_ms() < call.deadline_ms:
                self._waiting.appendleft(call)
                self._watch()
            else:
                self._host.call_soon(lambda: call.on_done(error))
            if channel.is_open:
                self._idle.append(channel)
            self._host.call_soon(self._fill)

        call.run(channel, done)

    def _down(self, _reason: str) -> None:
        self._opening = 0
        self._idle.clear()

    def _watch(self) -> None:
        if not self._timer_set:
            self._timer_set = True
            self._host.call_later(1000, self._check)

    def _check(self) -> None:
        self._timer_set = False
        now_ms = self._host.now_ms()
        late = [call for call in self._waiting if call.deadline_ms <= now_ms]
        self._waiting = deque(call for call in self._waiting if call.deadline_ms > now_ms)
        for call in late:
            call.on_done(AmqpError(LOST, self._link.trouble or "RabbitMQ does not answer"))
        if self._waiting:
            self._watch()


def unavailable(error: AmqpError, what: str) -> Unavailable:
    """Return the error to report if AMQP refused or did not answer."""
    reason = "can't be reached" if error.code == LOST else "refused it"
    return Unavailable(f"{what}: RabbitMQ {reason}: {error}")
