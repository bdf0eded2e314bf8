"""A consumer takes deliveries up to its window, and settles them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from curbstone.core.engine.delivery.dispatch import Dispatcher
from curbstone.core.errors import CurbstoneError, StaleDelivery
from curbstone.core.holders import Standing
from curbstone.core.message import Delivery
from curbstone.core.values import ClientInfo, Done, ignore

AUTO_WINDOW = 256
"""The most deliveries that a consumer with `auto` takes at a time."""

logger = logging.getLogger("curbstone.core")


class Consumer:
    """Implements `core.port.Consumer`.

    `unsettled` holds them by seq, in the order of delivery. Calls that settle raise StaleDelivery, and
    change nothing, if a seq is not among them; `on_done(error)` is called after the commit.
    """

    __slots__ = (
        "_deliver", "_dispatcher", "auto", "client_info", "closed", "group", "held", "on_closed", "paused", "queue",
        "unsettled", "weight", "window",
    )  # fmt: skip

    def __init__(
        self,
        queue: object,
        dispatcher: Dispatcher,
        deliver: Callable[[list[Delivery]], None],
        client_info: ClientInfo,
        *,
        window: int,
        weight: int,
        group: str,
        auto: bool,
        on_closed: Callable[[CurbstoneError], None],
    ) -> None:
        self.queue = queue
        """Its queue, for transactions. The type is in a file that this one may not import."""
        self._dispatcher = dispatcher
        self.group = group
        self.window = window
        self.weight = weight
        self.auto = auto
        """Whether deliveries are settled as soon as they have been handed over."""
        self.client_info = client_info
        self.on_closed = on_closed
        self.unsettled: dict[int, Delivery] = {}
        self._deliver = deliver
        self.held = False
        """Whether it gets nothing until `resume`."""
        self.paused = False
        """Whether it gets nothing more, but may still settle."""
        self.closed = False

    @property
    def credit(self) -> int:
        """How many deliveries it takes now."""
        if self.held or self.paused or self.closed:
            return 0
        return AUTO_WINDOW if self.auto else self.window - len(self.unsettled)

    @property
    def standing(self) -> Standing:
        return Standing(self.window, self.auto, self.paused, self.held, is_full=self.credit <= 0)

    def give(self, deliveries: list[Delivery]) -> None:
        """Hand deliveries over. With `auto` they are settled once `deliver` has returned.

        If `deliver` raises, which is a bug of an adapter, the consumer is closed; the queue continues for all others.
        """
        dispatcher = self._dispatcher
        if self.closed or self.paused:  # since the deliveries were dealt
            dispatcher.acks.put_back(self.group, deliveries)
            return
        if not self.auto:
            unsettled, in_flight = self.unsettled, dispatcher.parts.index.groups[self.group].in_flight
            now_ms = dispatcher.parts.state.host.now_ms()
            for delivery in deliveries:
                seq = delivery.message.seq
                delivery.handed_ms = now_ms
                unsettled[seq] = delivery
                in_flight[seq] = self
        try:
            self._deliver(deliveries)
        except Exception:
            logger.exception("a consumer of %s failed to take its deliveries", dispatcher.parts.state.name)
            if self.auto:
                dispatcher.requeue.release(self.group, deliveries, delay_ms=0)
            self.close()
            return
        if self.auto:
            dispatcher.acks.settle_now(self.group, deliveries)

    def when_open(self, on_open: Callable[[], None]) -> None:
        """Call `on_open` at once: the consumer is open when it is made."""
        on_open()

    def ack(self, seqs: Sequence[int], on_done: Done | None = None) -> None:
        deliveries = self.claim(seqs)
        if not self._dispatcher.acks.ack(self.group, deliveries, on_done):
            self.unclaim(deliveries)

    def nack(
        self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: Done | None = None
    ) -> None:
        deliveries = self.claim(seqs)
        if not self._dispatcher.requeue.nack(self.group, self, deliveries, delay_ms, error, on_done):
            self.unclaim(deliveries)

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Done | None = None) -> None:
        deliveries = self.claim(seqs)
        if not self._dispatcher.requeue.reject(self.group, self, deliveries, error, on_done):
            self.unclaim(deliveries)

    def claim(self, seqs: Sequence[int]) -> list[Delivery]:
        """Take deliveries out of `unsettled`; raise StaleDelivery, and take none, if one of them is not there."""
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
        """Return claimed deliveries to `unsettled`, or requeue them if the consumer has closed.

        Deliveries that were settled elsewhere meanwhile are left out.
        """
        in_flight = self._dispatcher.parts.index.group(self.group).in_flight
        still = [delivery for delivery in deliveries if in_flight.get(delivery.message.seq) is self]
        if self.closed:
            self._dispatcher.requeue.release(self.group, still, delay_ms=0)
        else:
            self.unsettled |= {delivery.message.seq: delivery for delivery in still}

    def lose(self, seq: int) -> None:
        self.unsettled.pop(seq, None)

    def hold(self) -> None:
        self.held = True

    def resume(self) -> None:
        if self.held:
            self.held = False
            self._dispatcher.parts.wakeups.wake(self.group)

    def resize(self, window: int) -> None:
        self.window = window
        self._dispatcher.parts.wakeups.wake(self.group)

    def pause(self) -> None:
        self.paused = True
        self._dispatcher.pause(self)

    def close(self) -> None:
        """Close the consumer and requeue its unsettled deliveries, over several turns of the loop if they are many."""
        if self.closed:
            return
        self.closed = True
        self._dispatcher.detach(self)
        if self.unsettled:
            deliveries = list(self.unsettled.values())
            self.unsettled.clear()
            self._dispatcher.requeue.release_in_slices(self.group, self, deliveries)
        # The owner of these callbacks usually refers to this consumer. Without this cycle both are freed at once, and
        # not only by the next full garbage collection.
        self._deliver = self.on_closed = ignore

    def end(self, error: CurbstoneError) -> None:
        """The queue ends: the consumer gets nothing more, and settles nothing."""
        self.closed = True
        self.unsettled.clear()
        self.on_closed(error)
