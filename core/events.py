"""Events: which queues are bound to each, and publishing to all of them at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol

from curbstone.core.errors import BadRequest, CurbstoneError, EventRefused
from curbstone.core.host import Host
from curbstone.core.masks import Masks, is_mask
from curbstone.core.message import Message
from curbstone.core.names import QueueName, event_name
from curbstone.core.values import Published

COPIES_AT_ONCE = 200
"""Messages that are copied and handed to queues before the loop looks at its sockets again."""


EventKey = tuple[str, str]
"""A project and an event in it."""


def keys_of(name: QueueName, bindings: Iterable[str]) -> list[EventKey]:
    """Return the events that the bindings of a queue stand for: those of its project.

    A private queue has none, so there each binding says which: `project/event`.
    """
    if not name.is_private:
        return [(name.project, event) for event in bindings]
    return [(project, event) for project, _, event in (binding.partition("/") for binding in bindings)]


def binding_of(name: QueueName, event: str, project: str) -> str:
    """Return the binding of a queue to an event; raise BadRequest if it is another project's."""
    if name.is_private:
        return f"{project}/{event_name(event)}"
    if project != name.project:
        raise BadRequest(f"queue {name} can be bound to events of its project, and not to those of {project}")
    return event_name(event)


class Bindings:
    """The queues bound to each event, also by masks; an event without one is not remembered."""

    def __init__(self) -> None:
        self._names: dict[EventKey, dict[QueueName, None]] = {}  # in order, so that a simulated run can be repeated
        self._masks: dict[str, Masks] = {}
        """Of each project."""

    def __len__(self) -> int:
        return len(self._names)

    def names(self, event: str, project: str) -> list[QueueName]:
        """Return the queues bound to an event, each once, in the order in which they were bound to it or to a mask."""
        names = self._names.get((project, event), {})
        masks = self._masks.get(project)
        if masks is None:
            return list(names)
        taking = sorted(masks.taking(event))
        return list(names | {name: None for mask in taking for name in self._names[project, mask]})

    def change(self, name: QueueName, gone: Iterable[str], new: Iterable[str]) -> None:
        """A queue has no longer the bindings `gone`, and now has `new`."""
        for key in keys_of(name, gone):
            names = self._names[key]
            del names[name]
            if not names:
                self._forget(key)
        for key in keys_of(name, new):
            if key not in self._names and is_mask(key[1]):
                self._masks.setdefault(key[0], Masks()).add(key[1])
            self._names.setdefault(key, {})[name] = None

    def _forget(self, key: EventKey) -> None:
        del self._names[key]
        project, event = key
        if is_mask(event):
            masks = self._masks[project]
            masks.remove(event)
            if not masks:
                del self._masks[project]


class Target(Protocol):
    """A queue that is bound to an event."""

    name: QueueName

    def publish(self, messages: list[Message], on_done: Published) -> None:
        """See `core.port.Queue.publish`."""


IsLeftOut = Callable[[Target, CurbstoneError], bool]
"""Whether a queue that refused a message simply does not get it, and who published it is not told.

One that was deleted meanwhile is bound no more. One that is a subscriber's own and full ends, for it would lack a
message without a word: its consumer is told. A subscriber that does not take what is sent to it costs the
publishers nothing.
"""


class Fanouts:
    """Those under way, one after the other: each queue gets what is published to events in the order it was.

    Many copies are spread over turns of the loop, so that nobody else waits for them.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[Fanout] = deque()

    def begin(self, fanout: Fanout) -> None:
        """Publish: at once if it is not much and no other is under way."""
        self._waiting.append(fanout)
        if len(self._waiting) == 1:
            self._go_on()

    def finish(self) -> None:
        """Publish all the rest now."""
        while self._waiting:
            self._waiting.popleft().advance()

    def _go_on(self) -> None:
        left = COPIES_AT_ONCE
        while self._waiting:
            left -= self._waiting[0].advance(left)
            if not self._waiting[0].has_begun_all:
                self._host.call_soon(self._go_on)
                return
            self._waiting.popleft()


class Fanout:
    """Messages on their way to all queues bound to an event; see `Broker.publish_event`."""

    def __init__(
        self, queues: Sequence[Target], messages: list[Message], is_left_out: IsLeftOut, on_done: Published
    ) -> None:
        self._queues = queues
        self._is_left_out = is_left_out
        self._begun = 0
        self._messages = messages
        self._on_done = on_done
        self._left = len(queues) * len(messages)
        self._answered: dict[QueueName, int] = {}
        self._refused: dict[int, dict[QueueName, CurbstoneError | None]] = {}
        """By the place of a message in the list; None for a queue that is left out."""

    @property
    def has_begun_all(self) -> bool:
        """Whether all queues were given their copies."""
        return self._begun == len(self._queues)

    def advance(self, copies_max: int | None = None) -> int:
        """Give some more queues their copies, about so many or all that are left; return how many copies it made."""
        copies = 0
        while not self.has_begun_all and (copies_max is None or copies < copies_max):
            queue = self._queues[self._begun]
            self._begun += 1
            copies += len(self._messages)
            queue.publish(copies_of(self._messages), partial(self._done, queue))
        return copies

    def _done(self, queue: Target, error: CurbstoneError | None, _first: int, count: int) -> None:
        """A queue has the next `count` messages, or refused them."""
        first = self._answered.get(queue.name, 0)
        self._answered[queue.name] = first + count
        if error is not None:
            told = None if self._is_left_out(queue, error) else error
            for place in range(first, first + count):
                self._refused.setdefault(place, {})[queue.name] = told
        self._left -= count
        if not self._left:
            self._answer()

    def _answer(self) -> None:
        """Answer the messages in order; neighbours with the same outcome get one answer."""
        if not self._refused:
            self._on_done(None, 0, len(self._messages))
            return
        for _, places in groupby(range(len(self._messages)), self._said):
            run = list(places)
            self._on_done(self._error(run[0]), 0, len(run))

    def _said(self, place: int) -> list[tuple[QueueName, str]]:
        return [(name, str(error)) for name, error in self._refused.get(place, {}).items() if error is not None]

    def _error(self, place: int) -> EventRefused | None:
        """Return what to say of a message."""
        refused = self._refused.get(place, {})
        told = {name: error for name, error in refused.items() if error is not None}
        return EventRefused(told, len(self._queues) - len(refused)) if told else None


def copies_of(messages: list[Message]) -> list[Message]:
    """Return messages for one more queue, with the same bodies in memory."""
    return [copy_of(message) for message in messages]


def copy_of(message: Message) -> Message:
    """Return a message for one more queue, with the same body in memory."""
    return Message(
        message.body, message.headers, delay_ms=message.delay_ms, ttl_ms=message.ttl_ms, groups=message.groups
    )
