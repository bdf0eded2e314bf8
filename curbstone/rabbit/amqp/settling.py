"""Settles the deliveries of one channel. The acks of a turn are combined, and are done after a later round trip.

A channel hands at most 32 commands at a time to a quorum queue and buffers the rest, which is lost when the channel is
closed. So deliveries are acked in as few commands as possible, and a channel is closed only after a fence.
"""

from __future__ import annotations

from collections.abc import Callable

from curbstone.core.host import Host
from curbstone.rabbit.amqp.port import AmqpError, Channel


class Settling:
    """The unsettled deliveries of one channel, by tag."""

    def __init__(self, host: Host, channel: Channel) -> None:
        self._host = host
        self._channel = channel
        self._open: dict[int, None] = {}
        """The unsettled tags, in order."""
        self._acks: set[int] = set()
        self._rejects: list[int] = []
        self._fences: list[Callable[[AmqpError | None], None]] = []
        self._is_due = False
        self._window = 1

    def __len__(self) -> int:
        return len(self._open)

    @property
    def channel(self) -> Channel:
        """The channel."""
        return self._channel

    def delivered(self, tag: int) -> None:
        """Note a delivery."""
        self._open[tag] = None

    def ack(self, tag: int) -> None:
        """Ack a delivery, together with the others of this turn."""
        self._acks.add(tag)
        self._later()

    def give_back(self, tag: int) -> None:
        """Requeue a delivery."""
        self._rejects.append(tag)
        self._later()

    def fence(self, on_done: Callable[[AmqpError | None], None]) -> None:
        """Call back when the broker has received all earlier commands, or with an error if the channel has ended."""
        self._fences.append(on_done)
        self._later()

    def _later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._host.call_soon(self.flush)

    def flush(self) -> None:
        """Send the collected acks."""
        self._is_due = False
        for tag in self._rejects:
            self._open.pop(tag, None)
            self._channel.reject(tag, requeue=True)
        self._rejects.clear()
        if self._acks:
            self._send_acks()
        fences, self._fences = self._fences, []
        if fences:

            def done(error: AmqpError | None) -> None:
                for fence in fences:
                    fence(error)

            self._channel.qos(self._window, done)

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, set()
        run: list[int] = []
        for tag in self._open:
            if tag not in acks:
                break
            run.append(tag)
        for tag in run:
            del self._open[tag]
            acks.discard(tag)
        if run:
            self._channel.ack(run[-1], multiple=True)
        for tag in sorted(acks):
            if tag in self._open:
                del self._open[tag]
                self._channel.ack(tag)

    def set_window(self, window: int, on_done: Callable[[AmqpError | None], None]) -> None:
        """Set how many unsettled deliveries each consumer created from now on may have."""
        self._window = window
        self._channel.qos(window, on_done)
