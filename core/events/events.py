"""Events: which queues are bound to each of them, and publishing to all of these queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby

from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import Hold
from curbstone.core.errors import BadRequest, CurbstoneError, EventRefused
from curbstone.core.host import Host
from curbstone.core.masks import Masks, is_mask
from curbstone.core.message import Message
from curbstone.core.names import QueueName, event_name
from curbstone.core.values import Published

COPIES_AT_ONCE = 200
"""About how many copies are handed to queues before the loop looks at its sockets again."""


EventKey = tuple[str, str]
"""A project and an event in it."""


def keys_of(name: QueueName, bindings: Iterable[str]) -> list[EventKey]:
    """Return the events that the bindings of a queue stand for: events of the queue's project.

    A private queue has no project, so each of its bindings names one: `project/event`.
    """
    if not name.is_private:
        return [(name.project, event) for event in bindings]
    return [(project, event) for project, _, event in (binding.partition("/") for binding in bindings)]


def binding_of(name: QueueName, event: str, project: str) -> str:
    """Return the binding of a queue to an event; raise BadRequest if the event is in another project."""
    if name.is_private:
        return f"{project}/{event_name(event)}"
    if project != name.project:
        raise BadRequest(f"queue {name} can be bound to events of its project, and not to those of {project}")
    return event_name(event)


class Bindings:
    """The queues bound to each event or mask. An event to which no queue is bound takes no memory."""

    def __init__(self) -> None:
        self._names: dict[EventKey, dict[QueueName, None]] = {}  # in order, so that a simulated run can be repeated
        self._masks: dict[str, Masks] = {}
        """By project, the masks that queues are bound to."""

    def __len__(self) -> int:
        return len(self._names)

    def names(self, event: str, project: str) -> list[QueueName]:
        """Return the queues that are bound to an event, directly or by a mask, each once and in a fixed order."""
        names = self._names.get((project, event), {})
        masks = self._masks.get(project)
        if masks is None:
            return list(names)
        taking = sorted(masks.taking(event))
        return list(names | {name: None for mask in taking for name in self._names[project, mask]})

    def change(self, name: QueueName, gone: Iterable[str], new: Iterable[str]) -> None:
        """Remove the bindings `gone` of a queue, and add `new`."""
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


IsLeftOut = Callable[[Queue, CurbstoneError], bool]
"""Returns whether a queue that refused a message simply does not get it, which is no error for the publisher.

That is so for a queue that was deleted meanwhile, because it is not bound any more; and for a subscriber's private
queue that is full. Such a queue is deleted, and its consumer gets the reason, because it would lack a message without
knowing. So a subscriber that does not take its messages costs the publishers nothing.
"""


class Fanouts:
    """Carries out fanouts one after the other, so that each queue gets messages in the order of their publishing.

    If there are many copies to make, they are spread over several turns of the loop, so that no other work waits long.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: deque[Fanout] = deque()

    def begin(self, fanout: Fanout) -> None:
        """Publish to the queues of a fanout: at once, if it is not much and no other fanout is under way."""
        self._waiting.append(fanout)
        if len(self._waiting) == 1:
            self._go_on()

    def finish(self) -> None:
        """Publish everything that is left now."""
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
    """The publishing of messages to all queues bound to an event; see `Broker.publish_event`.

    Copies for private queues are not synced. So they are held until those for all other queues are stored or refused:
    no consumer gets a message that a crash could take from the others.
    """

    def __init__(
        self, queues: Sequence[Queue], messages: list[Message], is_left_out: IsLeftOut, on_done: Published
    ) -> None:
        self._queues = sorted(queues, key=lambda queue: queue.name.is_private)
        durable = sum([not queue.name.is_private for queue in queues])
        self._hold = Hold() if 0 < durable < len(queues) else None
        self._durable_left = durable * len(messages)
        """How many copies for queues that are not private have not been answered."""
        self._is_left_out = is_left_out
        self._begun = 0
        self._messages = messages
        self._on_done = on_done
        self._left = len(queues) * len(messages)
        self._answered: dict[QueueName, int] = {}
        self._refused: dict[int, dict[QueueName, CurbstoneError | None]] = {}
        """By the place of a message in the list, the queues that refused it; None for a queue that is left out."""

    @property
    def has_begun_all(self) -> bool:
        """Whether all queues have been given their copies."""
        return self._begun == len(self._queues)

    def advance(self, copies_max: int | None = None) -> int:
        """Give more queues their copies, about `copies_max` in all or everything; return how many copies were made."""
        copies = 0
        while not self.has_begun_all and (copies_max is None or copies < copies_max):
            queue = self._queues[self._begun]
            self._begun += 1
            copies += len(self._messages)
            hold = self._hold if queue.name.is_private else None
            queue.publish(copies_of(self._messages), partial(self._done, queue), hold=hold)
        return copies

    def _done(self, queue: Queue, error: CurbstoneError | None, _first: int, count: int) -> None:
        """Take in that a queue has stored or refused the next `count` messages."""
        first = self._answered.get(queue.name, 0)
        self._answered[queue.name] = first + count
        if error is not None:
            reported = None if self._is_left_out(queue, error) else error
            for place in range(first, first + count):
                self._refused.setdefault(place, {})[queue.name] = reported
        if self._hold is not None and not queue.name.is_private:
            self._durable_left -= count
            if not self._durable_left:
                self._hold.end()
        self._left -= count
        if not self._left:
            self._answer()

    def _answer(self) -> None:
        """Answer for all messages, in order. Neighbours with the same outcome get one answer."""
        if not self._refused:
            self._on_done(None, 0, len(self._messages))
            return
        for _, places in groupby(range(len(self._messages)), self._said):
            run = list(places)
            self._on_done(self._error(run[0]), 0, len(run))

    def _said(self, place: int) -> list[tuple[QueueName, str]]:
        return [(name, str(error)) for name, error in self._refused.get(place, {}).items() if error is not None]

    def _error(self, place: int) -> EventRefused | None:
        """Return the error for a message, or None if no queue has refused it."""
        refused = self._refused.get(place, {})
        errors = {name: error for name, error in refused.items() if error is not None}
        return EventRefused(errors, len(self._queues) - len(refused)) if errors else None


def copies_of(messages: list[Message]) -> list[Message]:
    """Return copies of messages for one more queue; they share the bodies in memory."""
    return [copy_of(message) for message in messages]


def copy_of(message: Message) -> Message:
    """Return a copy of a message for one more queue; it shares the body in memory."""
    return Message(message.body, message.headers, message.orders)
