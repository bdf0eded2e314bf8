"""Moves dead letters back to their queues, one at a time: publish, wait for the confirm, then settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curbstone.core.errors import BadRequest, CurbstoneError, NoSuchQueue, QueueFull
from curbstone.core.message import Message
from curbstone.core.names import QueueName
from curbstone.core.values import May, Moved, Redriven
from curbstone.rabbit.consuming.dead_letters import origin, without_provenance
from curbstone.rabbit.consuming.pull import Pulled, Puller

if TYPE_CHECKING:
    from curbstone.rabbit.queue import Queue

AT_ONCE = 100
STAYING_MAX = 1000


class Redrive:
    """Moves up to `limit` dead letters to one queue, or each to the queue where it died.

    `on_done` is called once.
    """

    def __init__(self, queue: Queue, to: QueueName | None, limit: int, on_done: Moved, may: May | None) -> None:
        self._queue = queue
        self._to = to
        self._left = limit
        self._on_done = on_done
        self._may = may
        self._puller = Puller(queue, "")
        self._moved = 0
        self._under_way = 0
        self._staying: list[Pulled] = []
        self._stayed: dict[str, int] = {}
        self._full: QueueFull | None = None

    def begin(self) -> None:
        """Start. Raise NoSuchQueue or BadRequest for an impossible destination."""
        if self._to is not None:
            if self._to == self._queue.name:
                raise BadRequest("bad to: the dead letters are in this queue")
            self._queue.engine.get(self._to)
        self._proceed()

    def _proceed(self) -> None:
        if self._left <= 0 or (self._to is not None and self._full) or len(self._staying) >= STAYING_MAX:
            self._finish(None, more=True)
        else:
            self._puller.pull(min(self._left, AT_ONCE), 0, self._taken)

    def _taken(self, result: list[Pulled] | CurbstoneError) -> None:
        if isinstance(result, CurbstoneError):
            self._finish(result, more=True)
        elif not result:
            self._finish(None, more=False)
        else:
            self._under_way = len(result)
            for taken in result:
                self._move(taken)

    def _move(self, taken: Pulled) -> None:
        target = self._target(taken[0].message)
        if isinstance(target, str):
            self._stays(taken, target)
            return
        message = taken[0].message

        def done(error: CurbstoneError | None, _first: int, _count: int) -> None:
            if error is None:
                taken[2].ack(taken[1])
                self._moved += 1
                self._left -= 1
                self._ended()
                return
            if isinstance(error, QueueFull):
                self._full = error
            self._stays(taken, str(error))

        target.publish([Message(message.body, without_provenance(message.headers))], done)

    def _target(self, message: Message) -> Queue | str:
        name = self._to or origin(message)
        if name is None or name == self._queue.name:
            return "not a dead letter: its headers do not name the queue where it died"
        if self._to is None and self._may is not None and not self._may(name):
            return f"no right to send to queue {name}"
        try:
            target = self._queue.engine.get(name)
        except NoSuchQueue as error:
            return str(error)
        if len(message.body) > target.options.max_message_size:
            return f"larger than the max_message_size of queue {name}"
        return target

    def _stays(self, taken: Pulled, why: str) -> None:
        self._staying.append(taken)
        self._stayed[why] = self._stayed.get(why, 0) + 1
        self._ended()

    def _ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._proceed()

    def _finish(self, error: CurbstoneError | None, *, more: bool) -> None:
        if error is None and not self._moved and self._full:
            error = self._full
        if error is not None:
            error.members = {**error.members, "moved": self._moved}
        for _delivery, tag, settling in self._staying:
            settling.give_back(tag)
        self._puller.close(NoSuchQueue(""))
        redriven = Redriven(self._moved, self._stayed, more)
        self._queue.engine.host.call_soon(lambda: self._on_done(error, redriven))
