"""A consumer. It has its own channel, with the client's window as the prefetch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, NoSuchQueue, StaleDelivery, Unavailable
from curbstone.core.holders import Standing
from curbstone.core.message import Delivery
from curbstone.core.values import AllDone, ClientInfo, Done, ignore
from curbstone.rabbit.amqp.port import AmqpError, Arrived, Channel
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.consuming import dead_letters
from curbstone.rabbit.consuming.delivery import admit

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

AUTO_WINDOW = 256
PREFETCH_MAX = 65_535


class Consumer:
    def __init__(
        self,
        queue: Queue,
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
        self.group = group
        self.client_info = client_info
        self.unsettled: dict[int, Delivery] = {}
        self._deliver = deliver
        self._window = AUTO_WINDOW if auto else min(window, PREFETCH_MAX)
        self._weight = min(weight, self._window)
        self._prefetch = self._window
        """How many unsettled deliveries the broker allows."""
        self._auto = auto
        self._on_closed = on_closed
        self._settling: Settling | None = None
        self._tags: dict[int, int] = {}
        """The tag of each delivery that is unsettled or waits to be delivered, by seq."""
        self._gathered: list[Delivery] = []
        self._is_due = False
        self._held = False
        self._paused = False
        self._made = 0
        """How many consumers were created in RabbitMQ, counted to give each its own tag."""
        self._taking: list[str] = []
        """The tags of the consumers that exist in RabbitMQ."""
        self._owed = 0
        """How many deliveries are being dead-lettered or delayed."""
        self._on_open: list[Callable[[], None]] = []
        self._is_open = False
        self.closed = False

    @property
    def surplus(self) -> int:
        """How many more than one consumer it has in the broker."""
        return max(len(self._taking) - 1, 0) if self._is_open else 0

    @property
    def standing(self) -> Standing:
        """See `core.holders.Consumer.standing`. It is full if the unsettled deliveries fill its window."""
        is_full = len(self.unsettled) >= self._window
        return Standing(self._window, self._auto, self._paused, self._held, is_full)

    # --- the channel

    def when_open(self, on_open: Callable[[], None]) -> None:
        if self.closed:
            on_open()
        elif self._is_open:
            self.queue.when_changed(on_open)
        else:
            self._on_open.append(on_open)

    def queue_opened(self, error: CurbstoneError | None) -> None:
        """Open the channel, or fail if the queue could not be created."""
        if self.closed:
            return
        link = self.queue.link
        if error is not None or link.connection is None:
            lost = error or Unavailable(f"RabbitMQ can't be reached: {link.trouble}")
            self.queue.engine.host.call_soon(partial(self._lose, lost))
        else:
            link.connection.channel(self._opened, self._channel_lost)

    def _opened(self, channel: Channel) -> None:
        if self.closed:
            channel.close(ignore)
            return
        self._settling = Settling(self.queue.engine.host, channel)
        channel.on_cancelled(self._cancelled)
        if self._paused or self.queue.options.paused:
            self._consuming(None)
        else:
            self._take(self._consuming)

    def _take(self, on_done: Callable[[AmqpError | None], None]) -> None:
        """Start consuming. The window is divided among as many RabbitMQ consumers as the weight says."""
        assert self._settling is not None
        self._prefetch = self._window
        self._settling.set_window(-(-self._window // self._weight), ignore)
        for number in range(self._weight):
            self._consume(on_done if number == self._weight - 1 else ignore)

    def _consume(self, on_done: Callable[[AmqpError | None], None]) -> None:
        assert self._settling is not None
        tag = f"c{self._made}"
        self._made += 1
        self._taking.append(tag)
        name = self.queue.engine.names.queue(self.queue.name, self.group)
        self._settling.channel.consume(name, tag, self._arrived, on_done)

    def _take_no_more(self) -> None:
        """Stop consuming, and requeue the messages that were not delivered to the client."""
        if self._settling is None:
            return
        for tag in self._taking:
            self._settling.channel.cancel(tag, ignore)
        self._taking.clear()
        for delivery in self._gathered:
            self._settling.give_back(self._tags.pop(delivery.message.seq))
        self._gathered.clear()

    def queue_paused(self) -> None:
        """Act on a change of the queue's option `paused`."""
        if self.closed or self._paused or self._settling is None:
            return
        if self.queue.options.paused:
            self._take_no_more()
        elif not self._taking:
            self._take(ignore)

    def _consuming(self, error: AmqpError | None) -> None:
        if error is None:
            self._is_open = True
            waiting, self._on_open = self._on_open, []
            for on_open in waiting:
                self.queue.when_changed(on_open)

    def _channel_lost(self, error: AmqpError) -> None:
        if not self.closed:
            self.queue.channel_lost(error, self._lose)

    def _cancelled(self, _tag: str) -> None:
        """Act on a consumer that the broker ended, because the queue is gone or a delivery was held too long."""
        if not self.closed:
            self.queue.check_after_loss(self._lose)

    def _lose(self, error: CurbstoneError) -> None:
        """End the consumer with an error, and notify the client."""
        if self.closed:
            return
        self.closed = True
        self.queue.left(self)
        self.unsettled.clear()
        self._gathered.clear()
        if self._settling is not None:
            self._settling.channel.close(ignore)
        for on_open in self._on_open:
            on_open()
        self._on_open.clear()
        self._on_closed(error)

    def end(self, error: CurbstoneError) -> None:
        """End the consumer: the queue is gone, or the server is stopping."""
        self._lose(error)

    # --- deliveries

    def _arrived(self, arrived: Arrived) -> None:
        settling = self._settling
        assert settling is not None
        settling.delivered(arrived.tag)
        if self.closed or not self._taking:
            settling.give_back(arrived.tag)
            return
        delivery = admit(self.queue, self.group, arrived, settling)
        if delivery is None:
            return
        seq = delivery.message.seq
        if seq in self._tags:  # the message was published twice, because a connection was lost
            settling.ack(arrived.tag)
            return
        self._tags[seq] = arrived.tag
        self._gathered.append(delivery)
        self._later()

    def _later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.queue.engine.host.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_due = False
        room = len(self._gathered) if self._auto else self._window - len(self.unsettled)
        if self._held or self.closed or not self._gathered or room <= 0:
            return
        deliveries, self._gathered = self._gathered[:room], self._gathered[room:]
        if self._auto:
            self._deliver(deliveries)
            self._ack(deliveries)
            return
        now_ms = self.queue.engine.host.now_ms()
        for delivery in deliveries:
            delivery.handed_ms = now_ms
            self.unsettled[delivery.message.seq] = delivery
        self._deliver(deliveries)
        self.queue.changed()

    def hold(self) -> None:
        """Pause deliveries. Messages within the window still arrive and wait in memory."""
        self._held = True

    def resume(self) -> None:
        """Resume the deliveries after `hold`."""
        if self._held:
            self._held = False
            self._later()

    def resize(self, window: int) -> None:
        """Change how many deliveries may be unsettled.

        For a larger window another RabbitMQ consumer is added. With a smaller one, excess messages wait here.
        """
        self._window = AUTO_WINDOW if self._auto else min(window, PREFETCH_MAX)
        more = self._window - self._prefetch
        if more > 0 and self._settling is not None and self._is_open and self._taking:
            self._prefetch = self._window
            self._settling.set_window(more, ignore)
            self._consume(ignore)
        self._later()

    def pause(self) -> None:
        """End the deliveries. Those that are unsettled can still be settled."""
        self._paused = True
        if not self.closed:
            self._take_no_more()

    # --- settling

    def ack(self, seqs: Sequence[int], on_done: Done | None = None) -> None:
        """Settle deliveries."""
        self._ack(self.claim(seqs))
        self._fence(on_done)

    def _ack(self, deliveries: list[Delivery]) -> None:
        settling = self._settling
        if settling is None or self.closed:
            return
        for delivery in deliveries:
            settling.ack(self._tags.pop(delivery.message.seq))
        self.queue.stats.acked += len(deliveries)
        self.queue.changed()
        if self._gathered:
            self._later()

    def nack(
        self, seqs: Sequence[int], delay_ms: int | None = None, error: str = "", on_done: Done | None = None
    ) -> None:
        """Requeue deliveries, after `delay_ms` or the queue's `nack_delay`."""
        self.settle_all([(delivery, dead_letters.MAX_TRIES) for delivery in self.claim(seqs)], delay_ms, error, on_done)

    def reject(self, seqs: Sequence[int], error: str = "", on_done: Done | None = None) -> None:
        """Dead-letter deliveries, or drop them without a dead-letter queue."""
        self.settle_all([(delivery, dead_letters.REJECTED) for delivery in self.claim(seqs)], None, error, on_done)

    def settle_all(
        self, ended: list[tuple[Delivery, str]], delay_ms: int | None, error: str, on_done: Done | None
    ) -> None:
        """Requeue or dead-letter claimed deliveries. `on_done` is called when all of them are done."""
        settling = self._settling
        assert settling is not None
        done = AllDone(on_done, len(ended) + 1)

        def ended_one(failed: CurbstoneError | None) -> None:
            self._owed -= 1
            done(failed)
            if self.closed and not self._owed:
                self._end_channel()

        for delivery, reason in ended:
            tag = self._tags.pop(delivery.message.seq)
            self._owed += 1
            self.queue.end_delivery(settling, tag, self.group, delivery, reason, delay_ms, error, ended_one)
        self.queue.changed()
        self._fence(done)

    def _fence(self, on_done: Done | None) -> None:
        if on_done is None:
            return
        if self._settling is None or self.closed:
            error = Unavailable("the consumer has ended")
            self.queue.engine.host.call_soon(partial(on_done, error))
            return
        self._settling.fence(lambda lost: on_done(self.queue.engine.lost(lost)))

    def claim(self, seqs: Sequence[int]) -> list[Delivery]:
        """Take deliveries out of `unsettled`. Raise StaleDelivery, and take none, if one of them is missing."""
        unsettled = self.unsettled
        claimed = [unsettled[seq] for seq in seqs if seq in unsettled]
        if len(claimed) < len(seqs) or len(set(seqs)) < len(seqs):
            raise StaleDelivery("a message is not unsettled here, or named twice")
        for seq in seqs:
            del unsettled[seq]
        return claimed

    def unclaim(self, deliveries: list[Delivery]) -> None:
        """Undo `claim`, because the transaction that was to settle them failed."""
        if not self.closed:
            self.unsettled.update((delivery.message.seq, delivery) for delivery in deliveries)

    # --- the end

    def close(self) -> None:
        """End the consumer. Unsettled messages are requeued, with one more try counted."""
        if self.closed:
            return
        self.closed = True
        self.queue.left(self)
        self.queue.stats.released += len(self.unsettled)
        self.unsettled.clear()
        self._gathered.clear()
        if not self._owed:
            self._end_channel()
        self.queue.changed()

    def _end_channel(self) -> None:
        """Send the acks, end the consumers, wait for a round trip, and only then close the channel."""
        settling = self._settling
        if settling is None:
            return
        settling.flush()
        channel = settling.channel
        for tag in self._taking:
            channel.cancel(tag, ignore)
        self.queue.engine.closing(channel)
        channel.qos(1, lambda _error: channel.close(partial(self.queue.engine.closed, channel)))


def gone(name: object) -> NoSuchQueue:
    """Return the error for the consumers of a deleted queue."""
    return NoSuchQueue(f"no such queue: {name}")
