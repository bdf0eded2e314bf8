"""Takes single messages, for pops and leases. Each queue and group has a channel for its sequence of `get` calls.

A call that waits for a message is a consumer with a window of 1 until it has one. Taken messages are unsettled on the
channel until they are settled. When the channel is lost, the broker requeues them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from curbstone.core.errors import CurbstoneError, Unavailable
from curbstone.core.host import Timer
from curbstone.core.message import Delivery
from curbstone.core.values import UNKNOWN, UNNAMED, ClientInfo
from curbstone.rabbit.amqp.port import AmqpError, Arrived, Channel
from curbstone.rabbit.amqp.settling import Settling
from curbstone.rabbit.consuming.delivery import admit

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""An answer gets no more messages once their bodies are this large."""

Pulled = tuple[Delivery, int, Settling]
"""A delivery, its tag, and the `Settling` of its channel."""


class Pull:
    """A call for up to `count` messages; see `core.port_reading.Waiter`."""

    def __init__(
        self,
        puller: Puller,
        count: int,
        wait_ms: int,
        on_done: Callable[[list[Pulled] | CurbstoneError], None],
        client_info: ClientInfo,
    ) -> None:
        self.count = count
        self.wait_ms = wait_ms
        self.taken: list[Pulled] = []
        self.size = 0
        self.is_done = False
        self.client_info = client_info
        self.timer: Timer | None = None
        self.tag = ""
        """The tag of the consumer that waits for it."""
        self._puller = puller
        self._on_done = on_done

    @property
    def is_full(self) -> bool:
        """Whether it takes no more messages."""
        return len(self.taken) >= self.count or self.size >= ANSWER_BYTES_MAX

    def take(self, taken: Pulled) -> None:
        """Take a message."""
        message = taken[0].message
        self.size += len(message.body) + len(message.headers)
        self.taken.append(taken)

    def end(self, result: list[Pulled] | CurbstoneError) -> None:
        """Answer, once."""
        if not self.is_done:
            self.is_done = True
            if self.timer is not None:
                self.timer.cancel()
            self._on_done(result)

    def cancel(self) -> bool:
        """Give up the call. Messages that it has taken are requeued."""
        if self.is_done:
            return False
        self.is_done = True
        if self.timer is not None:
            self.timer.cancel()
        self._puller.abandon(self)
        return True


class Puller:
    """The channel of one queue and group, and the calls that pull messages."""

    def __init__(self, queue: Queue, group: str) -> None:
        self._queue = queue
        self._group = group
        self._pulls: deque[Pull] = deque()
        """The calls served by `get`, the current one first."""
        self._waiting: dict[str, Pull] = {}
        """The calls that wait as consumers, by the tag of the consumer."""
        self._settling: Settling | None = None
        self._is_opening = False
        self._is_getting = False
        self._numbers = 0

    @property
    def waiting(self) -> int:
        """How many calls wait as consumers."""
        return len(self._waiting)

    @property
    def has_pulls(self) -> bool:
        """Whether any call pulls a message, by `get` or as a consumer."""
        return bool(self._waiting) or any(not pull.is_done for pull in self._pulls)

    @property
    def waiting_pulls(self) -> list[Pull]:
        """The calls that wait and have no message yet."""
        calls = (*self._waiting.values(), *self._pulls)
        return [pull for pull in calls if pull.wait_ms > 0 and not pull.is_done and not pull.taken]

    @property
    def _name(self) -> str:
        return self._queue.engine.names.queue(self._queue.name, self._group)

    def pull(
        self,
        count: int,
        wait_ms: int,
        on_done: Callable[[list[Pulled] | CurbstoneError], None],
        client_info: ClientInfo = UNKNOWN,
    ) -> Pull:
        """Take up to `count` messages now, or else one message within `wait_ms`.."""
        pull = Pull(self, count, wait_ms, on_done, client_info)
        if wait_ms > 0:
            pull.timer = self._queue.engine.host.call_later(wait_ms, lambda: self._time_out(pull))
        self._pulls.append(pull)
        self._queue.declaration.with_groups({self._group} - {UNNAMED}, self._opened_queue)
        return pull

    def _opened_queue(self, error: CurbstoneError | None) -> None:
        if error is not None:
            self._fail(error)
        else:
            self._proceed()

    @property
    def _is_paused(self) -> bool:
        return self._queue.options.paused

    def queue_paused(self) -> None:
        """Act on a change of the option `paused`: while it is set, waiting calls have no consumer."""
        if self._is_paused:
            for pull in list(self._waiting.values()):
                self._stop_waiting(pull)
                self._pulls.append(pull)
        self._proceed()

    def _proceed(self) -> None:
        if self._is_paused:
            self._refuse_all()
            return
        if not self._pulls or self._is_getting or self._is_opening:
            return
        if self._settling is None or not self._settling.channel.is_open:
            self._open()
            return
        while self._pulls and self._pulls[0].is_done:
            self._pulls.popleft()
        if not self._pulls:
            return
        self._is_getting = True
        self._settling.channel.get(self._name, self._got)

    def _refuse_all(self) -> None:
        """End the calls that have messages or do not wait, with their messages. The others keep waiting."""
        pulls, self._pulls = self._pulls, deque()
        for pull in pulls:
            if pull.taken or pull.wait_ms <= 0:
                pull.end(pull.taken)
            elif not pull.is_done:
                self._pulls.append(pull)

    def _open(self) -> None:
        connection = self._queue.link.connection
        if connection is None:
            self._fail(Unavailable(f"RabbitMQ can't be reached: {self._queue.link.trouble}"))
            return
        self._is_opening = True

        def opened(channel: Channel) -> None:
            self._is_opening = False
            self._settling = Settling(self._queue.engine.host, channel)
            self._settling.set_window(1, lambda _error: None)
            channel.on_cancelled(self._cancelled)
            self._proceed()

        connection.channel(opened, self._lost)

    def _got(self, error: AmqpError | None, arrived: Arrived | None) -> None:
        self._is_getting = False
        settling = self._settling
        if error is not None or settling is None:
            return  # `_lost` follows
        pull = self._pulls[0] if self._pulls else None
        if arrived is None:
            if pull is not None and not self._is_paused:
                self._pulls.popleft()
                self._nothing_there(pull)
        else:
            settling.delivered(arrived.tag)
            delivery = admit(self._queue, self._group, arrived, settling)
            if delivery is not None:
                self._give(pull, (delivery, arrived.tag, settling))
        self._proceed()

    def _give(self, pull: Pull | None, taken: Pulled) -> None:
        if pull is None or pull.is_done:
            taken[2].give_back(taken[1])
            return
        pull.take(taken)
        if pull.is_full:
            self._pulls.popleft()
            pull.end(pull.taken)

    def _nothing_there(self, pull: Pull) -> None:
        if pull.taken or pull.wait_ms <= 0 or pull.is_done:
            pull.end(pull.taken)
            return
        assert self._settling is not None
        self._numbers += 1
        pull.tag = f"w{self._numbers}"
        self._waiting[pull.tag] = pull
        tag = pull.tag
        self._settling.channel.consume(
            self._name, tag, lambda arrived: self._arrived(tag, arrived), lambda _error: None
        )
        self._queue.changed()

    def _arrived(self, tag: str, arrived: Arrived) -> None:
        settling = self._settling
        assert settling is not None
        settling.delivered(arrived.tag)
        pull = self._waiting.get(tag)
        if pull is None:
            settling.give_back(arrived.tag)
            return
        delivery = admit(self._queue, self._group, arrived, settling)
        if delivery is not None:
            pull.take((delivery, arrived.tag, settling))
            self._stop_waiting(pull)
            pull.end(pull.taken)

    def _stop_waiting(self, pull: Pull) -> None:
        if self._waiting.pop(pull.tag, None) is not None and self._settling is not None:
            self._settling.channel.cancel(pull.tag, lambda _error: None)
            self._queue.changed()

    def _time_out(self, pull: Pull) -> None:
        if not pull.is_done:
            self._stop_waiting(pull)
            pull.end(pull.taken)

    def abandon(self, pull: Pull) -> None:
        """Forget a call that is over."""
        self._stop_waiting(pull)
        for _delivery, tag, settling in pull.taken:
            settling.give_back(tag)

    def _cancelled(self, _tag: str) -> None:
        self._queue.check_after_loss(self._fail)

    def _lost(self, error: AmqpError) -> None:
        self._is_opening = self._is_getting = False
        self._settling = None
        self._queue.channel_lost(error, self._fail)

    def _fail(self, error: CurbstoneError) -> None:
        pulls = [*self._pulls, *self._waiting.values()]
        self._pulls.clear()
        self._waiting.clear()
        for pull in pulls:
            pull.end(error)

    def close(self, error: CurbstoneError) -> None:
        """End all calls with this error: the queue is gone or the server is stopping."""
        self._fail(error)
        settling, self._settling = self._settling, None
        if settling is not None and settling.channel.is_open:
            settling.flush()
            channel = settling.channel
            self._queue.engine.closing(channel)
            channel.qos(1, lambda _error: channel.close(lambda: self._queue.engine.closed(channel)))
