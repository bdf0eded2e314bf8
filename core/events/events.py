"""Events: which queues are bound to each of them, and publishing to all of these queues."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby

from curbstone.core.conditions import Fields
from curbstone.core.engine.queue import Queue
from curbstone.core.engine.write_queue import Latch
from curbstone.core.errors import BadRequest, CurbstoneError, EventRefused
from curbstone.core.filters import Filter, fields_of, filter_of
from curbstone.core.host import Host
from curbstone.core.masks import Masks, is_mask
from curbstone.core.message import Message
from curbstone.core.names import QueueName, event_name
from curbstone.core.values import Published

COPIES_AT_ONCE = 200
"""About how many copies are handed to queues before the loop looks at its sockets again."""

_COPY_WEIGHT = 10
"""What a copy costs, in the units of `Filter.weight`."""

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


Filters = tuple[Filter, ...]
"""The filters of which a message has to pass any; if there are none, every message passes."""


def filters_of(text: str) -> Filters:
    """Return the filters of a binding; raise BadRequest. An empty text stands for no filter."""
    return (filter_of(text),) if text else ()


def unknown_filters(bindings: Mapping[str, str]) -> dict[str, str]:
    """Return the bindings of a stored queue whose filters this version does not understand, with the reasons."""
    found: dict[str, str] = {}
    for event, text in bindings.items():
        try:
            filters_of(text)
        except BadRequest as error:
            found[event] = str(error)
    return found


class Bindings:
    """The queues bound to each event or mask. An event to which no queue is bound takes no memory."""

    def __init__(self) -> None:
        self._names: dict[EventKey, dict[QueueName, Filters]] = {}  # in order, so that a simulated run can be repeated
        self._masks: dict[str, Masks] = {}
        """By project, the masks that queues are bound to."""
        self._filtered = 0
        """How many bindings have a filter."""

    def __len__(self) -> int:
        return len(self._names)

    def targets(self, event: str, project: str) -> Mapping[QueueName, Filters]:
        """Return the queues that are bound to an event, directly or by a mask, in a fixed order.

        A queue with several bindings has the filters of all of them, and none if one of them has none.
        """
        names = self._names.get((project, event), {})
        masks = self._masks.get(project)
        if masks is None:
            return names
        targets = dict(names)
        for mask in sorted(masks.taking(event)):
            bound = self._names[project, mask]
            if self._filtered:
                for name, filters in bound.items():
                    earlier = targets.get(name)
                    targets[name] = filters if earlier is None else earlier and filters and (*earlier, *filters)
            else:
                targets |= bound
        return targets

    def change(self, name: QueueName, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Replace the bindings of a queue. A filter that is not understood lets every message pass."""
        gone = [event for event in before if event not in after]
        changed = {event: text for event, text in after.items() if before.get(event) != text}
        for key in keys_of(name, gone):
            names = self._names[key]
            self._filtered -= bool(names.pop(name))
            if not names:
                self._forget(key)
        bad = unknown_filters(changed)
        for key, (event, text) in zip(keys_of(name, changed), changed.items(), strict=True):
            if key not in self._names and is_mask(key[1]):
                self._masks.setdefault(key[0], Masks()).add(key[1])
            filters = () if event in bad else filters_of(text)
            names = self._names.setdefault(key, {})
            self._filtered += bool(filters) - bool(names.get(name))
            names[name] = filters

    def _forget(self, key: EventKey) -> None:
        del self._names[key]
        project, event = key
        if is_mask(event):
            masks = self._masks[project]
            masks.remove(event)
            if not masks:
                del self._masks[project]


LeaveOut = Callable[[Queue, CurbstoneError], bool]
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
        self._waiting: deque[Fanout | Callable[[], object]] = deque()
        """Fanouts, and functions to call when those before them are done."""

    def begin(self, fanout: Fanout) -> None:
        """Publish to the queues of a fanout: at once, if it is not much and no other fanout is under way."""
        self._waiting.append(fanout)
        if len(self._waiting) == 1:
            self._proceed()

    def behind(self, fn: Callable[[], object]) -> None:
        """Call `fn` when everything that was published so far is handed to the queues; at once if it is."""
        if self._waiting:
            self._waiting.append(fn)
        else:
            fn()

    def finish(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if isinstance(first, Fanout):
                first.advance()
            else:
                first()

    def _proceed(self) -> None:
        left = COPIES_AT_ONCE
        while self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Fanout):
                first()
            else:
                left -= first.advance(left)
                if not first.has_begun_all:
                    self._host.call_soon(self._proceed)
                    return
            self._waiting.popleft()


class Fanout:
    """The publishing of messages to all queues bound to an event; see `Broker.publish_event`.

    Copies for private queues are not synced. So they are held until those for all other queues are stored or refused:
    no consumer gets a message that a crash could take from the others.
    """

    def __init__(
        self,
        host: Host,
        targets: Sequence[tuple[Queue, Filters]],
        messages: list[Message],
        leave_out: LeaveOut,
        on_done: Published,
    ) -> None:
        self._host = host
        durable = [target for target in targets if not target[0].name.is_private]
        self._targets = targets if len(durable) == len(targets) else _private_last(durable, targets)
        self._latch = Latch() if 0 < len(durable) < len(targets) else None
        self._durable_left = len(durable) * len(messages)
        """How many copies for queues that are not private have not been answered."""
        self._leave_out = leave_out
        self._begun = 0
        self._messages = messages
        self._on_done = on_done
        self._left = len(targets) * len(messages)
        self._fields: list[Fields] = []
        """The messages as filters see them, made for the first filter."""
        self._looked_at = 0
        """How many messages the filters of the next queue have looked at."""
        self._passing: list[int] = []
        """The places of those that passed."""
        self._places: dict[QueueName, list[int]] = {}
        """The places of the messages for each queue that does not get all of them."""
        self._filtered: dict[int, int] = {}
        """By the place of a message, how many queues do not get it because of their filters."""
        self._answered: dict[QueueName, int] = {}
        self._refused: dict[int, dict[QueueName, CurbstoneError | None]] = {}
        """By the place of a message in the list, the queues that refused it; None for a queue that is left out."""

    @property
    def has_begun_all(self) -> bool:
        """Whether all queues have been given their copies."""
        return self._begun == len(self._targets)

    def advance(self, copies_max: int | None = None) -> int:
        """Give more queues their copies, about `copies_max` in all or everything; return how many copies were made.

        What a filter costs counts as copies.
        """
        copies = 0
        while not self.has_begun_all and (copies_max is None or copies < copies_max):
            queue, filters = self._targets[self._begun]
            messages = self._messages
            if filters:
                copies += self._look(filters, sys.maxsize if copies_max is None else copies_max - copies)
                if self._looked_at < len(messages):
                    break
                messages = self._chosen(queue)
            self._begun += 1
            if messages:
                copies += len(messages)
                latch = self._latch if queue.name.is_private else None
                queue.publish(copies_of(messages), partial(self._done, queue), latch=latch)
        return copies

    def _look(self, filters: Filters, copies_max: int) -> int:
        """Let the filters of the next queue look at more messages; return the costs, as copies."""
        fields = self._fields
        if not fields:
            now_ms = self._host.wall_ms()
            fields = self._fields = [fields_of(message.headers, now_ms) for message in self._messages]
        place, most, costs = self._looked_at, copies_max * _COPY_WEIGHT, 0
        while place < len(fields) and costs < most:
            seen = fields[place]
            for each in filters:
                costs += each.weight
                if each.test(seen):
                    self._passing.append(place)
                    break
            else:
                self._filtered[place] = self._filtered.get(place, 0) + 1
            place += 1
        self._looked_at = place
        return 1 + costs // _COPY_WEIGHT

    def _chosen(self, queue: Queue) -> list[Message]:
        """Return the messages that have passed the filters of the next queue, and answer the others for it."""
        self._looked_at = 0
        places = self._passing
        others = len(self._messages) - len(places)
        if places:
            self._passing = []
        if not others:
            return self._messages
        queue.stats.filtered += others
        if self._count(queue, others):
            self._host.call_soon(self._answer)
        if not places:
            return []
        self._places[queue.name] = places
        return [self._messages[place] for place in places]

    def _done(self, queue: Queue, error: CurbstoneError | None, _first: int, count: int) -> None:
        """Take in that a queue has stored or refused the next `count` messages."""
        first = self._answered.get(queue.name, 0)
        self._answered[queue.name] = first + count
        if error is not None:
            reported = None if self._leave_out(queue, error) else error
            places = self._places.get(queue.name) or range(len(self._messages))
            for place in places[first : first + count]:
                self._refused.setdefault(place, {})[queue.name] = reported
        if self._count(queue, count):
            self._answer()

    def _count(self, queue: Queue, copies: int) -> bool:
        """Note that a queue has its copies, or does not get them; return whether these were the last ones."""
        if self._latch is not None and not queue.name.is_private:
            self._durable_left -= copies
            if not self._durable_left:
                self._latch.open()
        self._left -= copies
        return not self._left

    def _answer(self) -> None:
        """Answer for all messages, in order. Neighbours with the same outcome get one answer."""
        if not self._refused and not self._filtered:
            self._on_done(None, len(self._targets), len(self._messages))
            return
        for _, places in groupby(range(len(self._messages)), self._outcome_key):
            run = list(places)
            error, queues = self._outcome(run[0])
            self._on_done(error, 0 if error is not None else queues, len(run))

    def _outcome_key(self, place: int) -> tuple[int, list[tuple[QueueName, str]]]:
        refused = self._refused.get(place, {})
        texts = [(name, str(error)) for name, error in refused.items() if error is not None]
        return len(refused) + self._filtered.get(place, 0), texts

    def _outcome(self, place: int) -> tuple[EventRefused | None, int]:
        """Return the error for a message, or None if no queue has refused it; and how many queues have it."""
        refused = self._refused.get(place, {})
        errors = {name: error for name, error in refused.items() if error is not None}
        queues = len(self._targets) - len(refused) - self._filtered.get(place, 0)
        return EventRefused(errors, queues) if errors else None, queues


def _private_last(
    durable: list[tuple[Queue, Filters]], targets: Sequence[tuple[Queue, Filters]]
) -> list[tuple[Queue, Filters]]:
    return durable + [target for target in targets if target[0].name.is_private]


def copies_of(messages: list[Message]) -> list[Message]:
    """Return copies of messages for one more queue; they share the bodies in memory."""
    return [copy_of(message) for message in messages]


def copy_of(message: Message) -> Message:
    """Return a copy of a message for one more queue; it shares the body in memory."""
    return Message(message.body, message.headers, message.orders)
