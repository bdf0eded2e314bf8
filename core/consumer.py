"""Whoever takes deliveries: a consumer with a window, or one that waits for a single answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from curbstone.core.errors import CurbstoneError, StaleDelivery
from curbstone.core.message import Delivery
from curbstone.core.values import Done

if TYPE_CHECKING:
    from curbstone.core.queue import Queue


AUTO_WINDOW = 256


def _nobody(_said: object) -> None:
    """Nobody listens to a consumer that has ended."""


class Taker(Protocol):
    """One place in the round robin of a group."""

    weight: int

    @property
    def room(self) -> int:
        """How many deliveries it takes now."""

    def give(self, deliveries: list[Delivery]) -> None:
        """Hand them over; at most `room`."""


class Consumer:
    """Takes deliveries as they come, up to its window, and settles them.

    `unsettled` holds them by seq in the order of delivery. Settling calls raise StaleDelivery, and
    change nothing, where a seq is not among them; `on_done` comes after the commit.
    """

    __slots__ = (
        "_deliver", "auto", "closed", "group", "held", "on_closed", "paused", "queue", "unsettled", "weight", "window",
    )  # fmt: skip

    def __init__(
        self,
        queue: Queue,
        deliver: Callable[[list[Delivery]], None],
        *,
        window: int,
        weight: int,
        group: str,
        auto: bool,
        on_closed: Callable[[CurbstoneError], None],
    ) -> None:
        self.queue = queue
        self.group = group
        self.window = window
        self.weight = weight
        self.auto = auto
        self.on_closed = on_closed
        self.unsettled: dict[int, Delivery] = {}
        self._deliver = deliver
        self.held = False
        self.paused = False
        self.closed = False

    @property
    def room(self) -> int:
        """How many deliveries it takes now."""
        if self.held or self.paused or self.closed:
            return 0
        return AUTO_WINDOW if self.auto else self.window - len(self.unsettled)

    def give(self, deliveries: list[Delivery]) -> None:
        """Hand deliveries over; the queue calls this. What is settled by that is so once they were taken."""
        if self.closed or self.paused:  # it has left since it was its turn
            self.queue.put_back(self.group, deliveries)
        elif self.auto:
            try:
                self._deliver(deliveries)
            except BaseException:
                self.queue.settling.release(self.group, deliveries)
                raise
            self.queue.settling.settle_now(self.group, deliveries)
        else:
            unsettled = self.unsettled
            for delivery in deliveries:
                unsettled[delivery.message.seq] = delivery
            self._deliver(deliveries)

    def when_open(self, on_open: Callable[[], None]) -> None:
        """It takes part from the turn it was made in."""
        on_open()

    def ack(self, seqs: Sequence[int], on_done: Done | None = None) -> None:
        """Settle deliveries."""
        self.queue.settling.ack(self.group, self.claim(seqs), on_done, self)

    def nack(
        self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: Done | None = None
    ) -> None:
        """Give deliveries back to their place, after `delay_ms` or the queue's `nack_delay`."""
        self.queue.settling.nack(self.group, self.claim(seqs), delay_ms, error, on_done, self)

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Done | None = None) -> None:
        """Send deliveries to the dead-letter queue, or drop them where there is none."""
        self.queue.settling.reject(self.group, self.claim(seqs), error, on_done, self)

    def claim(self, seqs: Sequence[int]) -> list[Delivery]:
        """Take deliveries out of `unsettled`: all of them, or StaleDelivery and none."""
        unsettled = self.unsettled
        if len(seqs) == 1:
            delivery = unsettled.pop(seqs[0], None)
            if delivery is None:
                raise StaleDelivery(f"message {seqs[0]} is not unsettled here")
            return [delivery]
        claimed = [unsettled[seq] for seq in seqs if seq in unsettled]
        if len(claimed) < len(seqs) or len(set(seqs)) < len(seqs):
            raise StaleDelivery("a message is not unsettled here, or named twice")
        for seq in seqs:
            del unsettled[seq]
        return claimed

    def unclaim(self, deliveries: list[Delivery]) -> None:
        """Put claimed deliveries back, or release them where the consumer has ended."""
        if self.closed:
            self.queue.settling.release(self.group, deliveries)
            return
        for delivery in deliveries:
            self.unsettled[delivery.message.seq] = delivery

    def forget(self) -> None:
        """Its queue has ended: it gets nothing more, and settles nothing."""
        self.closed = True
        self.unsettled.clear()

    def hold(self) -> None:
        """Stop deliveries for a while: the socket's buffer is full."""
        self.held = True

    def resume(self) -> None:
        """Go on after `hold`."""
        if self.held:
            self.held = False
            self.queue.wake(self.group)

    def resize(self, window: int) -> None:
        """Change how many deliveries may be unsettled. If that is less than are, they stay, and no more come."""
        self.window = window
        self.queue.wake(self.group)

    def pause(self) -> None:
        """End deliveries; what is unsettled stays and can still be settled."""
        self.paused = True
        self.queue.leave(self)

    def close(self) -> None:
        """End the consumer: what is unsettled goes back to its place, with one more try."""
        if self.closed:
            return
        self.closed = True
        self.queue.detach(self)
        deliveries = list(self.unsettled.values())
        self.unsettled.clear()
        self.queue.settling.release(self.group, deliveries)
        # Whoever took the deliveries usually holds this consumer: without these it goes at once, and not only with
        # the next full collection.
        self._deliver = self.on_closed = _nobody
